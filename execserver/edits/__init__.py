"""Several files changed as one by `fs/applyEdits`: plan, journal, transaction, recovery."""
