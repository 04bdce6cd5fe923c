"""What the operator says of sandboxes."""

from __future__ import annotations

import msgspec

TOOL_PATH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/run/current-system/sw/bin"
"""Where programs that set a command up inside are looked for: never in the `PATH` of a command."""


class SandboxOptions(msgspec.Struct, frozen=True):
    """The settings that `Sandboxes` goes by."""

    bubblewrap: str | None = None
    """The program; None is the first `bwrap` of the daemon's `PATH` and of the system's folders."""

    allow_landlock: bool = False
    spool_dir: str | None = None
    """The state folder; None is the default (`state_folder.py`)."""


class OwnThings(msgspec.Struct, frozen=True):
    """What belongs to the daemon and is nobody's business inside."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Those that are missing are not to be made, either."""

    home: str | None = None
    """The home folder of the daemon's user."""
