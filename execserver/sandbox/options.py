"""Settings of sandboxes, and the daemon's own files that sandboxes hide."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

import msgspec

TOOL_PATH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/run/current-system/sw/bin"
"""Where programs that start a command inside are looked for, instead of the command's `PATH`."""


class SandboxOptions(msgspec.Struct, frozen=True):
    """The settings of `Sandboxes`."""

    bubblewrap: str | None = None
    """The program; None for the first `bwrap` in the daemon's `PATH` and the system's folders."""

    allow_landlock: bool = False
    spool_dir: str | None = None
    """The state folder; None for the default (`state_folder.py`)."""

    backend: str = "auto"
    """`auto`, `bubblewrap`, `landlock`, or the name of an entry point (`backend.py`)."""


class DaemonPaths(msgspec.Struct, frozen=True):
    """Files of the daemon, which sandboxes hide or make read-only."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Commands cannot create missing ones either."""

    code: tuple[str, ...] = ()
    """Files and folders that the daemon executes; read-only in every sandbox."""

    sockets: tuple[str, ...] = ()
    """Sockets of the user's other programs, which are hidden while the network is on."""

    home: str | None = None
    """The home folder of the daemon's user."""


_SHARED_PREFIXES = frozenset({"/", "/usr", "/usr/local"})
"""Folders that a distribution's Python shares with other programs; its own folders are in `sys.path`."""


PACKAGES = ("execserver", "execprotocol", "execclient")
"""All that this project installs: the daemon executes the first two, and `execserver run` the third."""


def executed() -> tuple[str, ...]:
    """The files and folders that this installation executes, for `DaemonPaths.code`.

    The interpreter, its libraries, a virtual environment as a whole, and of a checkout only the packages: the
    rest may be a workspace. Each path as named, and without links.
    """
    # Outer folders first, so that links in them cannot be replaced.
    paths = [prefix for prefix in (sys.prefix, sys.base_prefix) if prefix not in _SHARED_PREFIXES]
    paths += [*_folders_of_code(), sys.executable]
    known = [os.path.abspath(path) for path in paths if path and os.path.exists(path)]
    return tuple(dict.fromkeys([*known, *map(os.path.realpath, known)]))


def _folders_of_code() -> Iterator[str]:
    for entry in filter(None, sys.path):
        packages = [f"{entry}/{name}" for name in PACKAGES]
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
