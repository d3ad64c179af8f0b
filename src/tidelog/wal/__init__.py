"""One linearizable log on a store.

So far: logs as Chroma's wal3 writes them, read and scrubbed.
"""
