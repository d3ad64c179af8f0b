"""Messy files: whatever lies in a folder, each row is in the collection or in ``_errors``, once.

``make messy MESSY_ARGS="--seed N --cases M"`` is the long form of `test_messy`.

- `values`, `parquet_values`: a value as a format writes it, and what it becomes
- `settings`: what a seed draws of the source: format, dialect, columns, envelope, times
- `records`, `json_records`, `csv_records`: records of which it is known what each becomes
- `layout`: how they make a text, with a header, blank lines, line ends
- `packing`: files as bytes: plain, compressed, damaged; `world`: a folder that changes
- `model`: what has to be in the collection then, in plain Python: it decodes nothing
- `case`: one seed, from the folder to the differences; `regressions`: seeds that once failed
"""
