"""Transaction shards: several shards written at one time, all or none.

Nouns and decisions: `state`, `transition`, `applying`. Agents: `transactions`, `begun`.
"""
