"""The settings of the daemon, from flags, environment, file and defaults, in that order.

Nothing is imported here: `quick.py` needs little of it.
"""
