"""A session that survives its connections: replay of output, recovery, events."""
