"""Logs, metrics and traces, without content or secrets."""
