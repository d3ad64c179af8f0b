"""From parts to rows: snapshots, conditions, and reads that are larger than memory."""
