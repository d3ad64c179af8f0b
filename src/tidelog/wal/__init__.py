"""Linearizable logs on a store, by two commit protocols; docs/ARCHITECTURE.md says what is where."""
