"""The audit folder: what clients had the daemon do, one line for each act, chained by hashes."""
