"""Collections: named, definite, time-varying; with renditions, a controller, and raw sources.

Nouns: `times`, `catalog`, `decode`, `envelope`. Agents: `controller`, `ingest`, `collection`.
    What is taken, and by which proof, is in `source`.
"""
