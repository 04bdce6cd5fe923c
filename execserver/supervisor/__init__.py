"""The parent program: sub-reaper and killer of everything that the server runs.

This module imports nothing, so that the supervisor starts in milliseconds (`program.py`).
"""
