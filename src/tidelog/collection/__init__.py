"""Collections: named, definite, time-varying; with renditions, a controller, and raw sources.

Nouns: `times`, `catalog`, `binding`, `decode`, `envelope`, `plan`. Agents: `controller`, `files`,
    `ingest`, `collection`.
"""
