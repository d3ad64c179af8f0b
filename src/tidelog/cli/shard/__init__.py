"""The verbs of ``tidelog shard``, a file each."""
