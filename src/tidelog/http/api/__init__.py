"""The HTTP API of keyed logs: messages, their encodings, and errors. Pure.

Source: the HTTP API of OpenData's log (RFC 0004), with its names and field numbers. The fields that
tidelog adds have the numbers 16 and above.
"""
