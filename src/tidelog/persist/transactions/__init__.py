"""Transaction shards: atomic writes to several shards at one time.

Types and decisions: `state`, `transition`, `next_time`, `applying`. Agents: `transactions`,
`applier`, `begun`.
"""
