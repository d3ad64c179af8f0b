"""Shards: durable, definite time-varying collections.

Nouns: `schema`, `part`, `state`, `transition`. Agents: `writer`, `reader`, `shard`.
"""
