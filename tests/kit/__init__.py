"""The shared parts of tests: logs, shards and sources for them, and faulty stores and clocks.

- `clocks`, `stores`: wrappers that delay requests, or run other work between them
- `lying`, `s3_servers`: stores that break a promise; real S3 servers on loopback
- `server_process`, `kafka_server`, `registry_server`: servers that tests kill and start again
- `services`, `installs`: the same servers for people; their installation
- `protocols`: both protocols of logs, by their writers and readers
- `saturated`: a writer that is never idle, in virtual time
- `wal3_logs`, `wal3_trees`, `goldens`: logs in wal3's form: small logs, trees, Chroma's own logs
- `named_logs`, `lake_logs`: logs by name, in a store and in a location on disk
- `damage`: damaged logs, and the results of scrubs and reads
- `shards`, `shard_tables`, `rowhash_model`: shards, tables for them, the model of their hash
- `sim_days`: the simulator's schedules of faults, one test for each
- `sources`: sources of files, and locations with their collections
"""
