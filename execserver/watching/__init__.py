"""`fs/watch`: the program of a watch, the log of its changes, and the watches of a session."""
