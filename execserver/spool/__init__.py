"""The data that outlives a server in descriptors that the supervisor keeps: output, its index, the ledger."""
