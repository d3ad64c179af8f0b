"""What tests share: logs, shards and sources made for them, stores and clocks that misbehave.

- `clocks`, `stores`: over others; they are late, or let something happen in between
- `lying`, `s3_servers`: stores that break a promise; real S3 servers on loopback
- `protocols`: both protocols of logs, by their writers and readers
- `saturated`: a writer that is never idle, in virtual time
- `wal3_logs`, `wal3_trees`, `goldens`: logs in wal3's form: small ones, trees alone, Chroma's own
- `named_logs`, `lake_logs`: logs by their names; in a store, and in a location on disk
- `damage`: what scrub and reads make of a log that was damaged
- `shards`, `shard_tables`, `rowhash_model`: shards, tables for them, the model of their hash
- `sim_days`: the days of the simulator's weather, one test for each
- `sources`: sources of files, and locations that were fed from them
"""
