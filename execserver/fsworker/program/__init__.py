"""The program of an fs worker, which runs inside the sandbox of its requests."""
