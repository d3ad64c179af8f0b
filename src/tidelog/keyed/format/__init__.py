"""The format of runs: records, parts, key directories and their pages. Pure."""
