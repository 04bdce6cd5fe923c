"""What the operator says of sandboxes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

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


class DaemonPaths(msgspec.Struct, frozen=True):
    """What belongs to the daemon and is nobody's business inside."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Those that are missing are not to be made, either."""

    code: tuple[str, ...] = ()
    """What the daemon executes: files and folders that are read-only in every sandbox."""

    sockets: tuple[str, ...] = ()
    """Sockets of the user's other programs, which are covered where the network is on."""

    home: str | None = None
    """The home folder of the daemon's user."""


_SHARED_PREFIXES = frozenset({"/", "/usr", "/usr/local"})
"""Where a Python of the distribution lives among other things: its own folders are in `sys.path`."""


def executed() -> tuple[str, ...]:
    """What this process executes, and the next one of this installation: for `DaemonPaths.code`.

    The interpreter, its libraries, a virtual environment as a whole, and of a checkout the packages only: the
    rest of it may be a workspace. By their names and without links.
    """
    # What holds others comes first: a link in it cannot be replaced then.
    paths = [prefix for prefix in (sys.prefix, sys.base_prefix) if prefix not in _SHARED_PREFIXES]
    paths += [*_folders_of_code(), sys.executable]
    known = [os.path.abspath(path) for path in paths if path and os.path.exists(path)]
    return tuple(dict.fromkeys([*known, *map(os.path.realpath, known)]))


def _folders_of_code() -> Iterator[str]:
    for entry in filter(None, sys.path):
        packages = [f"{entry}/{name}" for name in ("execserver", "execclient")]
        is_checkout = not os.path.basename(entry).endswith("-packages") and any(map(os.path.isdir, packages))
        yield from packages if is_checkout else [entry]


def socket_addresses(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The Unix sockets of other programs that an environment names: for `DaemonPaths.sockets`."""
    named = [environment.get("SSH_AUTH_SOCK", ""), environment.get("TMUX", "").partition(",")[0]]
    for address in environment.get("DBUS_SESSION_BUS_ADDRESS", "").split(";"):
        named.append(address.removeprefix("unix:path=").partition(",")[0])
    if (display := environment.get("WAYLAND_DISPLAY", "")) and not display.startswith("/"):
        display = f"{environment.get('XDG_RUNTIME_DIR', '')}/{display}"
    return tuple(path for path in (*named, display) if path.startswith("/"))
