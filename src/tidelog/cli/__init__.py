"""The command line: one module or package per noun. It parses, calls and prints.

A command imports its part of the engine when it runs, because ``tidelog --help`` must not wait for
Arrow and DuckDB.
"""

INTERRUPTED = 130  # The exit status after Ctrl-C.
