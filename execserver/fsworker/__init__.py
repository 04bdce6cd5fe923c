"""The workers that carry out `fs/*` inside a sandbox: their pool, their clients, and their program."""
