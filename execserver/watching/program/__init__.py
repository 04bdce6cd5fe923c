"""The program of a watch, which runs in the sandbox of its request."""
