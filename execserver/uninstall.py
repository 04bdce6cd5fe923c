"""`execserver uninstall`: lists and removes what execserver left on this machine for its user.

Rules kept in this file:

1. Nothing is removed while a daemon of the user runs, or edits of a dead one are unfinished.
2. A place is removed only if it belongs to the user, and nothing else in it is: no link is followed, no other
   file system is entered, and files of other users stay.
3. What the next daemon would do for dead ones is done first: their processes are killed, and their mount
   points in workspaces are removed.
4. Settings, rules and drop-ins are the user's own, and stay unless that is asked for.

The program itself is left to the tool that installed it. `docs/reference/command-line.md`.
"""

from __future__ import annotations

import glob
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from execprotocol.command_line import printable
from execprotocol.trust import owner_name
from execserver.configuration.model import Settings
from execserver.edits import journal
from execserver.private_folder import FolderError, state_folder
from execserver.sandbox import devices
from execserver.sandbox.mount_points.registry import MountPoints
from execserver.supervisor import instance_records
from execserver.supervisor.config_file import SYSTEM_PATH
from execserver.supervisor.earlier_state import earlier_place
from execserver.supervisor.listeners import listeners_from

_UNITS = ("execserver.service", "execserver.socket")
_PARTS = (
    "spool",
    "mount-points",
    journal.FOLDER,
    "devices",
    "empty-file",
    "empty-folder",
    "probe-*",
    "execserver",
)
"""The names that a daemon makes in its state folder. In a folder that the user has named, only these are
removed."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder that execserver made, or that is for execserver."""

    path: str
    what: str
    kept: str = ""
    """Why it stays; empty if it is removed."""

    may_be_link: bool = False
    """Whether a link at the path is removed, and not its target: systemctl makes links."""

    @property
    def exists(self) -> bool:
        """Whether it is there, if only as a link to nowhere."""
        return os.path.lexists(self.path)


class Uninstall:
    """The places of one user, and what stands in the way of their removal. All methods block.

    Args:
        settings: the settings that daemons of the user have.
        environment: the variables that they have.
        with_settings: whether settings and rules are removed, too.
    """

    def __init__(
        self, settings: Settings, environment: Mapping[str, str], *, with_settings: bool = False
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._kept = "" if with_settings else "yours; --settings removes it"
        self._states = list(dict.fromkeys(self._state_folders()))
        # The latter two are those of a daemon with RUNTIME_DIRECTORY.
        runtime = self._runtime_folder()
        self._places_of_records = [*self._states, runtime, f"{runtime}/execserver"]
        self.places = [_checked(place) for place in self._all() if place.exists]

    def obstacles(self) -> list[str]:
        """Why nothing can be removed now, each with the way out."""
        found = []
        for folder in filter(_is_private, self._places_of_records):
            running, dead = instance_records.examine(f"{folder}/instances")
            for record in dead:
                record.close()
            for path in running:
                pids = " ".join(map(str, _supervisors(path)))
                found.append(
                    f"a daemon runs (record {path}): stop it with `kill {pids or 'PID'}`, or "
                    "`systemctl --user stop execserver.socket execserver.service` if systemd started it"
                )
            if any(name != "lock" for name in _names(f"{folder}/{journal.FOLDER}")):
                found.append(
                    f"{folder}/{journal.FOLDER} has edits of a dead daemon: start execserver serve once, "
                    "which completes them"
                )
        listening = _listening_sockets()
        if not found:  # else the sockets of that daemon
            found += [
                f"a program listens on {socket}: stop it, with systemctl --user stop execserver.socket if it "
                "is systemd"
                for socket in sorted(listening.intersection(self._sockets()))
            ]
        return found

    def remove(self) -> list[str]:
        """Remove all places that are not kept; returns what is left, with the reasons."""
        left = []
        for folder in filter(_is_private, self._places_of_records):
            if folder == earlier_place():
                continue  # any command could have written it: it decides nothing
            _, dead = instance_records.examine(f"{folder}/instances")
            survivors = instance_records.sweep(dead)
            left += [f"process {pid} of a dead daemon could not be killed" for pid in survivors]
            if os.path.isdir(f"{folder}/mount-points"):
                mount_points = MountPoints(folder)
                with suppress(OSError, FolderError):
                    mount_points.sweep()
                mount_points.close()
        for place in self.places:
            if not place.kept:
                left += _remove(place.path)
        return left

    # -- places

    def _all(self) -> Iterator[Place]:
        for folder in self._states:
            if folder != self._named_state() or folder in self._states[:1]:
                yield Place(folder, "state and output")
            elif _is_private(folder):
                ours = {path for name in _PARTS for path in glob.glob(f"{glob.escape(folder)}/{name}")}
                yield from (Place(path, "state") for path in sorted(ours))
                others = any(f"{folder}/{name}" not in ours for name in _names(folder))
                yield Place(folder, "state", "it has other files, too" if others else "")
        yield Place(self._runtime_folder(), "sockets")
        for path in self._sockets():
            if not any(path.startswith(f"{folder}/") for folder in (*self._states, self._runtime_folder())):
                yield Place(path, "socket")
        if os.geteuid() == 0:
            yield Place(devices.ELSEWHERE, "device nodes of sandboxes")
        yield from self._units()
        yield from self._settings_files()

    def _state_folders(self) -> Iterator[str]:
        with suppress(FolderError):
            yield state_folder(self._environment)
        yield earlier_place()
        if (named := self._named_state()) is not None:
            yield named

    def _named_state(self) -> str | None:
        return None if self._settings.spool_dir is None else str(self._settings.spool_dir)

    def _runtime_folder(self) -> str:
        base = self._environment.get("XDG_RUNTIME_DIR", "")
        return f"{base.rstrip('/') if base.startswith('/') else f'/run/user/{os.geteuid()}'}/execserver"

    def _sockets(self) -> Iterator[str]:
        for folder in (*self._states, self._runtime_folder()):
            yield from (f"{folder}/{name}" for name in _names(folder) if _is_socket(f"{folder}/{name}"))
        for listener in listeners_from(self._settings.listen):
            path = listener.url.removeprefix("unix://")
            if listener.kind == "unix" and _is_socket(path):
                yield path

    def _units(self) -> Iterator[Place]:
        bases = (self._base("XDG_CONFIG_HOME", ".config"), self._base("XDG_DATA_HOME", ".local/share"))
        for folder in (f"{base}/systemd/user" for base in bases if base is not None):
            for unit in _UNITS:
                yield Place(f"{folder}/{unit}", "unit", may_be_link=True)
                for link in sorted(glob.glob(f"{glob.escape(folder)}/*.wants/{unit}")):
                    yield Place(link, "enables the unit", may_be_link=True)
                yield Place(f"{folder}/{unit}.d", "drop-ins of the unit", self._kept)

    def _settings_files(self) -> Iterator[Place]:
        if (base := self._base("XDG_CONFIG_HOME", ".config")) is not None:
            yield Place(f"{base}/execserver", "settings and rules", self._kept)
        yield Place(SYSTEM_PATH, "settings", "of the machine")
        settings = self._settings
        for file in (settings.remote_key_file, settings.remote_token_file, settings.ws_token_file):
            if file is not None:
                yield Place(str(file), "named in the settings", "yours; remove it by hand")

    def _base(self, variable: str, below_home: str) -> str | None:
        base, home = self._environment.get(variable, ""), self._environment.get("HOME", "")
        if base.startswith("/"):
            return base.rstrip("/")
        return f"{home.rstrip('/')}/{below_home}" if home.startswith("/") else None


def run(settings: Settings, environment: Mapping[str, str], *, dry_run: bool, with_settings: bool) -> int:
    """List the places, and remove them unless `dry_run`; returns the exit code: 1 if something is in the way
    or left.
    """
    uninstall = Uninstall(settings, environment, with_settings=with_settings)
    try:
        obstacles = uninstall.obstacles()
        sizes = [_size(place.path) for place in uninstall.places]
        left = [] if dry_run or obstacles else uninstall.remove()
    except FolderError as error:
        _print(f"execserver: {error}", error=True)
        return 1
    pending = "remove" if dry_run or obstacles else "left"
    for place, size in zip(uninstall.places, sizes, strict=True):
        act = "keep" if place.kept else pending if place.exists else "removed"
        _print(f"{act:8}{size:>10}  {place.path}  ({place.what}{f': {place.kept}' if place.kept else ''})")
    if not uninstall.places:
        _print("nothing of execserver is in the folders of this user")
    for reason in (*obstacles, *left):
        _print(f"execserver: {reason}", error=True)
    if obstacles:
        return 1
    if any(place.what == "unit" and not place.kept for place in uninstall.places):
        _print("then: systemctl --user daemon-reload")
    _print(f"the program itself: {_program_removal()}")
    return 1 if left else 0


def _print(text: str, *, error: bool = False) -> None:
    print(printable(text), file=sys.stderr if error else sys.stdout)


def _program_removal() -> str:
    """The command that removes the packages, by the tool that installed them."""
    if "/pipx/venvs/" in f"{sys.prefix}/":
        return "pipx uninstall execserver"
    if "/uv/tools/" in f"{sys.prefix}/":
        return "uv tool uninstall execserver"
    return f"{sys.executable} -m pip uninstall execserver execclient"


# -- what is there


def _checked(place: Place) -> Place:
    """The place, kept if it is not this user's."""
    status = os.lstat(place.path)
    reason = place.kept
    if status.st_uid != os.geteuid():
        reason = f"belongs to {owner_name(status.st_uid)}"
    elif stat.S_ISLNK(status.st_mode) and not place.may_be_link:
        reason = "a symbolic link, which execserver did not make"
    return replace(place, kept=reason)


def _is_private(folder: str) -> bool:
    """Whether only this user can have written the records in a folder."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _listening_sockets() -> set[str]:
    """The paths of all Unix sockets in use in this network namespace."""
    lines = Path("/proc/net/unix").read_bytes().splitlines()[1:]
    return {os.fsdecode(fields[7]) for line in lines if len(fields := line.split(None, 7)) == 8}


def _supervisors(record: str) -> list[int]:
    """The processes that have a file open, without those whose parents have, too."""
    target = os.path.realpath(record)
    holders = {}
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            folder = f"/proc/{process.pid}/fd"
            if any(os.readlink(f"{folder}/{name}") == target for name in os.listdir(folder)):
                holders[process.pid] = process.ppid()
    return sorted(pid for pid, parent in holders.items() if parent not in holders)


def _size(path: str) -> str:
    """The disk space of a file or tree, without links."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{folder}/{name}").st_blocks * 512
    with suppress(OSError):
        total += os.lstat(path).st_blocks * 512
    return f"{total / 1024:,.0f} KiB" if total < 10 << 20 else f"{total / (1 << 20):,.0f} MiB"


# -- removal


def _remove(path: str) -> list[str]:
    """Remove a file, a link or a tree; returns what is left, with the reasons."""
    owners = {os.geteuid()} | ({devices.OWNER} if os.geteuid() == 0 else set())
    left: list[str] = []

    def remove(name: str, shown: str, folder: int | None) -> None:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if status.st_uid not in owners:
                left.append(f"{shown} stays: it belongs to {owner_name(status.st_uid)}")
            else:
                (os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink)(name, dir_fd=folder)
        except OSError as error:
            left.append(f"{shown} stays: {error.strerror}")

    with suppress(OSError):  # a folder that cannot be listed may be empty
        mount, is_folder = _mount_at(path)
        # Opens each folder without following links, and works by descriptors.
        walk = os.fwalk(path, topdown=False, follow_symlinks=False) if is_folder else ()
        for root, folders, files, descriptor in walk:
            if _mount_of(descriptor) != mount:
                continue  # another file system, or a folder from elsewhere (a bind mount): it stays as it is
            for name in (*files, *folders):
                remove(name, f"{root}/{name}", descriptor)
    remove(path, path, None)
    return left


def _mount_at(path: str) -> tuple[bytes, bool]:
    """The mount that a path is in, and whether it is a folder, and no link."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return _mount_of(descriptor), stat.S_ISDIR(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def _mount_of(descriptor: int) -> bytes:
    """The mount of an open file. Device numbers do not tell a bind mount from the file system around it."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_bytes().splitlines()
    return next(line for line in lines if line.startswith(b"mnt_id:"))
