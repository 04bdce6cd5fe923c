"""Sessions: who is attached to which processes, resume and expiry, and the feed of events."""
