"""Transaction shards: atomic writes to several shards at one time.

Types and decisions: `state`, `transition`, `applying`. Agents: `transactions`, `begun`.
"""
