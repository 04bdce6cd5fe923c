"""Shell snapshots: the state that a login shell has after the account's profile, restored in later shells
without running the profile again (`shellSnapshot` of `process/start`).

    api/process.py → snapshots.Snapshots → quiet_run (runs the shell)
                              ├─────────── bash (what it prints of its state, and the script that restores it)
                              └─────────── startup_files (whether it is still true)
"""


class UnfitError(Exception):
    """The state after a profile cannot be kept. The text says why; its subject is the profile."""
