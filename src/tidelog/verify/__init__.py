"""The end-to-end check: it compares the records read from a log with the records appended to it.

The check is independent of the code that it checks. It uses only the interface of a log, and the
openers that end a writer's epoch.
Source: design page 3, "End-to-end check".
"""
