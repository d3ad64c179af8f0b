"""One linearizable log on a store.

So far: logs in the form of Chroma's wal3, read, scrubbed, appended to,
collected and copied.
"""
