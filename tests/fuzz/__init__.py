"""Hostile and damaged bytes: whatever is stored, a log says what was written, or says no.

``make fuzz FUZZ_ARGS="--seed N --cases M"`` is the long form of `test_fuzz`.

- `specimens`: logs of both protocols, made by the code itself or by Chroma's, and what is in them
- `mutation`: one change of one object; `json_changes`, `byte_changes`, `parquet_changes` make it
- `looking`, `writing`: all that can be asked of a log, and to do with it, each held to the truth
- `unseen`: changes that no reader can notice; the lists are in docs/internals/log-claims.md and
  docs/internals/wal3.md
- `case`: one seed and number, from the specimen to its complaints
- `decoders`: every other decoder of what is stored, a table of them, and its own small loop
- `worker`, `runner`: many cases in a process with little memory; another that counts and tells
"""
