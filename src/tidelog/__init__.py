"""Durable logs and definite time-varying collections on plain object storage."""
