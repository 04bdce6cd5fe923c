"""The program that does `fs/*` inside a sandbox, and what starts it. Standard library only."""
