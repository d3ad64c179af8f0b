"""Linearizable logs, by two commit protocols; docs/ARCHITECTURE.md says what is where."""
