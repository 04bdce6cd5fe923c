"""`fs/applyEdits`, which changes several files at once: plan, journal, transaction, recovery."""
