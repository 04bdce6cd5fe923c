"""Implementations of other projects' interfaces, one module and one extra for each.

A module imports its project, and no other module imports it. `pip install "execclient[NAME]"` installs what
it needs; `docs/how-to/use-with.md` shows each in use.
"""
