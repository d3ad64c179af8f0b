"""Hostile and damaged bytes: a log returns the written records, or an error.

``make fuzz FUZZ_ARGS="--seed N --cases M"`` is the long form of `test_fuzz`.

- `specimens`: logs of both protocols, made by tidelog or by Chroma, and their contents
- `mutation`: one change of one object; `json_changes`, `byte_changes`, `parquet_changes` make it
- `looking`, `writing`: all calls of a log, compared with its contents
- `unseen`: changes that no reader can detect, listed in docs/internals/log-claims.md and
  docs/internals/wal3.md
- `case`: one seed and number, from the specimen to its complaints
- `decoders`: a table of all other decoders of stored bytes, with a small loop
- `worker`, `runner`: a process with little memory that runs cases, and one that counts results
"""
