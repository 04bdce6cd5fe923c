"""The network proxy of a process, in a process of its own outside the sandbox."""
