"""execserver: a JSON-RPC daemon that runs commands and edits files for AI agents.

This module imports nothing, so that the supervisor starts in milliseconds
(`docs/explanation/architecture.md`).
"""

__version__ = "0.2.0"
