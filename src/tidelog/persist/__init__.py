"""Shards: durable, definite time-varying collections.

Types and decisions: `states`, `format`. Agents: `write`, `read`, `handle`, `maintenance`.
`transactions` writes several shards at one time.
"""
