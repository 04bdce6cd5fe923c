"""The probes of a sandbox: which mechanisms this machine has, and whether they confine."""
