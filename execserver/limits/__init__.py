"""Limits of what a command and all its descendants may use together, enforced by control groups.

The path of a start with `limits` (a start without them touches none of this):

    api/process.py       decodes `ResourceLimits` (`execprotocol/process.py`); `settings.py` adds the defaults
       │                 of the daemon and refuses what is above its ceiling
    processes/limited_start.py
       │                 numbers the process and records `Launching`: a new server kills such a number
    leaves.py            opens the service's group below the daemon's own one, once in each hierarchy
       │                 (`hierarchies.py`), and makes a *leaf* for the number (`leaf.py`, in a thread)
    processes/gated_spawn.py
       │                 forks. The child waits in an `open` before its exec; its pid is written into the
       │                 leaf, then the gate is opened: the program's first instruction runs in the leaf
    processes/executor.py
       │                 records `Started` with the limits, then opens the gate of a sandbox
       ▼
    processes/process_limits.py
                         at the end of the leader: which limit ended it, and what the leaf was used for

    own group (of the unit)                    cgroup v2                 own group        cgroup v1, each of
    ├── execserver.daemon    supervisor, server, other commands          │                memory, pids, cpu, …
    └── execserver.INSTANCE  the service's group, locked                 └── execserver.INSTANCE
        ├── 17               the leaf of process 17                          └── 17
        └── 18                                                               └── 18

Rules of this package:

1. No process of a command runs an instruction outside its leaf, and the daemon never runs inside one.
2. What cannot be enforced is refused with `LimitRefused`, which names the member and the way out. Nothing is
   ignored.
3. A leaf lives as long as a process in it, also without a server. The server that finds it empty removes it.
   The group of the service is locked by server and supervisor together; the next start of any service removes
   a group whose lock is free, with everything in it.
4. Nothing outside the daemon's own group is changed. In it, only processes of this service are moved.
"""
