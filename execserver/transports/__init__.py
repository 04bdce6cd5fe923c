"""Stdio, Unix sockets and WebSocket: listeners, their authentication, and the channels that
connections speak through.

Nothing is imported here: who serves stdio has no need of the others.
"""
