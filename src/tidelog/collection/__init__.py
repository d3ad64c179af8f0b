"""Collections: named, definite, time-varying; with renditions, a controller, and raw sources.

Nouns: `times`, `catalog`, `decode`, `envelope`. Agents: `controller`, `ingest`, `collection`.
    `source` reads the raw sources, and has the proofs of the data read.
"""
