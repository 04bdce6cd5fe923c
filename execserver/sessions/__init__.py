"""Sessions: the processes of each client, resume and expiry, and the event streams to connections."""
