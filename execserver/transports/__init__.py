"""Stdio, Unix sockets and WebSocket: listeners, authentication, and the channels of connections.

Imports nothing: a server on stdio needs none of the others.
"""
