"""The settings of the daemon: from flags, variables, the file and defaults, in order of priority."""
