"""Logs: structured, to stderr, without content or secrets."""
