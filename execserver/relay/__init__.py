"""Executors behind firewalls: `executor` is a daemon's end of the relay protocol, `service` the relay itself.

`execprotocol.relay` holds what both share with clients: keys, handshake, records, frames, and HTTP bodies.
"""
