"""The end-to-end check: what was appended to a log is compared with what is read of it.

Stands outside the code that it checks: it knows the face of a log, and how one is opened.
Source: design page 3, "End-to-end check".
"""
