"""What a server and a client say to each other: messages, their bytes, and errors. Pure.

Source: the HTTP API of OpenData's log (RFC 0004), whose names and field numbers these are; what
tidelog adds has numbers from 16 on.
"""
