"""Linearizable logs with two commit protocols; docs/internals/architecture.md lists the parts."""
