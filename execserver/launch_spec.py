"""What is spawned: a request makes one `LaunchSpec`, a sandbox may wrap it into another, and `posix_spawn`
runs the result.

    api/process.py → processes/launch.py → Confinement.wrap → processes/spawn.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from execprotocol.limits import TTY_COLUMNS, TTY_ROWS


class LaunchSpec(msgspec.Struct, frozen=True):
    """A program with all that a spawn needs."""

    program: str
    """Its path."""
    arguments: tuple[str, ...]
    """The child's `argv`. Its first element may be another name than the program's (`arg0`)."""
    cwd: str
    environment: Mapping[str, str]
    tty: bool = False
    pipe_stdin: bool = False
    size: tuple[int, int] = (TTY_ROWS, TTY_COLUMNS)
    """Rows and columns of the terminal."""

    # What a sandbox adds. Descriptors belong to the caller of `wrap` from then on.

    passed: tuple[int, ...] = ()
    """Descriptors that the child gets under the same numbers, and that the caller closes afterwards."""
    status: int | None = None
    """The file for the launcher's report (`processes/sandboxed_child.py`); to be read by offset."""
    limit: Callable[[str | None], None] | None = None
    """Takes the limits on, for the thread that spawns (`sandbox/thread_limits.py`). The argument is the path
    of the child's terminal, if it gets one."""
    null: str | None = None
    """What to open as an empty standard input, if not `/dev/null`."""
    takes_terminal: bool = False
    """Whether the command makes the terminal its own by itself, inside."""
