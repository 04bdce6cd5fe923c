"""Inspect: the sandbox environment `execserver`."""
