"""Confinement: what a request may touch, and how that is enforced.

    SandboxContext ──resolve──▶ Policy ──look at the disk──▶ View ──▶ arguments of a backend ──▶ spawn
      (the wire)    (policy.py)        (view.py, protected.py,      (bubblewrap.py, landlock.py,
                                        tree.py, globs.py, disk.py)  seccomp.py, seatbelt.py)

A request that asks for confinement is confined or refused; there is no third way.
"""
