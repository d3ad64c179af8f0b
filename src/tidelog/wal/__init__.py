"""Linearizable logs, by two commit protocols; docs/internals/architecture.md says what is where."""
