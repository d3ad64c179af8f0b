"""Messy files: each row of any files in a folder is once in the collection or in ``_errors``.

``make messy MESSY_ARGS="--seed N --cases M"`` is the long form of `test_messy`.

- `values`, `parquet_values`: a value as a format writes it, and its result
- `settings`: the source that a seed draws: format, dialect, columns, envelope, times
- `records`, `json_records`, `csv_records`: records with known results
- `layout`: a text of records, with a header, blank lines and line ends
- `packing`: files as bytes: plain, compressed, damaged; `world`: a folder that changes
- `model`: the expected contents of the collection, in plain Python; it decodes nothing
- `case`: one seed, from the folder to the differences; `test_found`: faults found by seeds
"""
