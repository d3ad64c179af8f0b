"""The command line: one file a verb. Parses, calls and prints; decides nothing.

What a command needs of the engine is imported when the command runs: ``tidelog --help`` must not
wait for Arrow and DuckDB.
"""
