"""The supervisor: the parent process of the server, which restarts it and kills all its processes at the end.

This module imports nothing, so that the supervisor starts in milliseconds (`program.py`).
"""
