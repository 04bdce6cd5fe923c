"""Load generator and comparison runner: this exec server beside the reference, in one run.

`python -m benchmarks.compare` is the program; `docs/benchmarks.md` says how to read what it prints.
"""
