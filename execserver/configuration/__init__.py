"""The settings of the daemon, from flags, environment, file and defaults, in that order."""
