"""The access to real paths, and the mounts that enforce it."""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet

import msgspec

from execserver.sandbox.disk import ResolvedPath, may_be_mount_point, resolve_path, writable_inside
from execserver.sandbox.mount_points.entry import is_mount_point
from execserver.sandbox.options import DaemonPaths
from execserver.sandbox.policy import Access, depth, is_below


class Bind(msgspec.Struct, frozen=True):
    """A part of the host's file system, mounted at the same or another path."""

    source: str
    target: str
    writable: bool
    device: bool = False
    """Whether device files in it can be used."""


class Mask(msgspec.Struct, frozen=True):
    """An empty file or folder without permissions, mounted over a path."""

    target: str
    directory: bool


class Tmpfs(msgspec.Struct, frozen=True):
    """An empty read-only folder, in which deeper mounts are made."""

    target: str
    mode: int


class Symlink(msgspec.Struct, frozen=True):
    """A symbolic link that exists only in the sandbox."""

    target: str
    text: str


Mount = Bind | Mask | Tmpfs | Symlink


class Tree:
    """Access by real path. Deeper paths win."""

    def __init__(self, root: Access) -> None:
        """Args: root: the access to all paths without a rule."""
        self._access: dict[str, Access] = {"/": root}
        self._places: dict[str, ResolvedPath] = {}
        self._tmpfs: set[str] = set()
        self._opened: set[str] = set()
        self.bare_roots: list[str] = []
        """Folders that a command could turn into repositories."""
        self.guards: list[str] = []
        """Missing folders that must be made as mount points, so that commands cannot create them."""

    def set(self, place: ResolvedPath, access: Access) -> None:
        """Add a rule. Of two rules for one path `deny` wins, then `write`."""
        known = self._access.get(place.path) if place.path in self._places else None
        if known is Access.DENY or (known is Access.WRITE and access is Access.READ):
            return
        self._access[place.path] = access
        self._places[place.path] = place

    def narrow(self, place: ResolvedPath) -> None:
        """Make a path read-only, unless it is denied."""
        known = self._access.get(place.path) if place.path in self._places else None
        if known is not Access.DENY:
            self._access[place.path] = Access.READ
            self._places[place.path] = place

    def guard(self, path: str) -> None:
        """Make a missing path read-only: an empty folder is mounted there."""
        self.guards.append(path)

    def guard_missing(self, place: ResolvedPath) -> None:
        """Keep commands from creating a path that is missing, or an empty folder, if they could."""
        path = place.missing or place.path
        parent = os.path.dirname(path)
        # A folder made in the mount point of another sandbox would keep that from being removed: share it.
        while is_mount_point(parent) and may_be_mount_point(parent) and not self.is_never_shared(parent):
            path, parent = parent, os.path.dirname(parent)
        if self.at(parent) is Access.WRITE and writable_inside(parent):
            self.guard(path)

    def is_never_shared(self, folder: str) -> bool:
        """Whether a folder is not the mount point of another sandbox, even if it is marked as one.

        Commands can set the mark, too: on a folder that the policy makes writable, or one where no sandbox
        makes mount points. The answer depends on nothing that another sandbox changes when it begins or ends.
        """
        return self.has_rule(folder) or not writable_inside(os.path.dirname(folder))

    def open(self, path: str) -> None:
        """Note that a rule makes exactly this path writable; a link in the last name is not followed."""
        self._opened.add(path)

    def opens(self, path: str) -> bool:
        """Whether a rule gives exactly this path, or link, an access other than reading."""
        return path in self._opened or (path in self._places and self._access[path] is not Access.READ)

    def at(self, path: str) -> Access:
        """The access to a real path."""
        return self._access[self.rule_for(path)]

    def rule_for(self, path: str) -> str:
        """The path of the rule that applies to a real path."""
        while path not in self._access:
            path = path.rpartition("/")[0] or "/"
        return path

    def rules(self) -> list[str]:
        """The real paths with rules."""
        return list(self._places)

    def has_rule(self, path: str) -> bool:
        """Whether exactly this path has a rule."""
        return path in self._places

    def writable_folders(self) -> list[str]:
        """The folders with a rule that makes them writable."""
        return [
            path
            for path, access in self._access.items()
            if access is Access.WRITE and path in self._places and self._places[path].is_folder
        ]

    def readable_folders(self) -> list[str]:
        """The folders with a rule that allows reading, and the root if it is readable."""
        return [
            path
            for path, access in self._access.items()
            if access is not Access.DENY and (path == "/" or self._places[path].is_folder)
        ]

    def add_masks(self, own: DaemonPaths) -> None:
        """Deny paths regardless of entries for them. Entries for deeper paths still apply.

        An empty folder at the path of a file has nothing to hide. It may be the mount point of another
        sandbox: then it disappears with that, and a mask over it too. Guard it as if it was missing.
        """
        for path in (*own.folders, *own.files):
            place = resolve_path(path)
            if place is None or not place.exists:
                continue
            if path in own.folders or not (place.is_folder and may_be_mount_point(place.path)):
                self._access[place.path] = Access.DENY
                self._places[place.path] = place

    def add_tmpfs(self, path: str) -> None:
        """Cover a visible folder by an empty one that can be listed, unless it has a rule."""
        place = resolve_path(path)
        if place is None or not place.is_folder or place.links or place.path in self._places:
            return
        if self.at(place.path) is not Access.DENY:
            self._access[place.path] = Access.DENY
            self._places[place.path] = place
            self._tmpfs.add(place.path)

    def mounts(self, *, base_visible: bool, hold: bool = True) -> list[Mount]:
        """The mounts, shallow paths first.

        Args:
            base_visible: whether paths without rules are visible.
            hold: whether folders with limited paths in them are mounted over themselves, so that commands
                cannot move them.
        """
        made: list[Mount] = []
        guards = {path for path in self.guards if self._access.get(path) is not Access.DENY}
        held = self._held(guards) if hold else set()
        paths = sorted({*self._places, *guards, *held} - {"/"}, key=lambda path: (depth(path), path))
        for path in paths:
            if path in guards:
                made.append(Bind(path, path, writable=False))
                continue
            outside = self.at(os.path.dirname(path))
            if path not in self._places:
                made.append(Bind(path, path, writable=True, device=_is_device(path)))
                continue
            place, access = self._places[path], self._access[path]
            if not base_visible and outside is Access.DENY and access is not Access.DENY:
                made += self.links_to(place)
            if access is Access.DENY:
                made += self._deny(place, outside)
            elif access is not outside or path in held or (access is Access.WRITE and _is_device(path)):
                made.append(Bind(path, path, access is Access.WRITE, _is_device(path)))
        return made

    def _held(self, guards: AbstractSet[str]) -> AbstractSet[str]:
        """The folders that a command could move, together with limited paths in them."""
        held: set[str] = set()
        for path in {*guards, *(path for path in self._places if self._access[path] is not Access.WRITE)}:
            parent = os.path.dirname(path)
            while parent not in held and parent != "/" and self.at(parent) is Access.WRITE:
                above = os.path.dirname(parent)
                if self.at(above) is Access.WRITE and writable_inside(above):
                    held.add(parent)
                parent = above
        return held

    def links_to(self, place: ResolvedPath) -> list[Mount]:
        """The links on the way to a path that the view does not show already."""
        return [
            Symlink(target, text)
            for target, text in place.links
            if self.at(os.path.dirname(target)) is Access.DENY
        ]

    def _deny(self, place: ResolvedPath, outside: Access) -> list[Mount]:
        path = place.path
        if path in self._tmpfs:
            return [Tmpfs(path, 0o755)]
        opens = any(
            access is not Access.DENY and is_below(other, path) and self._places[other].exists
            for other, access in self._access.items()
            if other != "/"
        )
        if opens and place.is_folder:
            return [Tmpfs(path, 0o111)]
        if outside is Access.DENY:
            return []  # the folder around it is not visible either
        return [Mask(path, place.is_folder)]


def _is_device(path: str) -> bool:
    return is_below(path, "/dev")
