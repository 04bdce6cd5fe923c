"""Running commands: launch planning, spawning, output logs, one process's life, the store."""
