"""The demo: real flights, ingested exactly once though the ingester is killed in between."""
