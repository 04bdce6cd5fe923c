"""What may be done with which real path, and the mounts that make it so."""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet

import msgspec

from execserver.sandbox.disk import ResolvedPath, resolve_path, writable_inside
from execserver.sandbox.options import DaemonPaths
from execserver.sandbox.policy import Access, depth, is_below


class Bind(msgspec.Struct, frozen=True):
    """A part of the host's file system, at the same or another path."""

    source: str
    target: str
    writable: bool
    device: bool = False
    """Whether device files in it work."""


class Mask(msgspec.Struct, frozen=True):
    """Something empty and without any permission, over what is there."""

    target: str
    directory: bool


class Tmpfs(msgspec.Struct, frozen=True):
    """An empty folder that nobody can write to; deeper mounts are put into it."""

    target: str
    mode: int


class Symlink(msgspec.Struct, frozen=True):
    """A symbolic link that is in the view only."""

    target: str
    text: str


Mount = Bind | Mask | Tmpfs | Symlink


class Tree:
    """Access by real path. Deeper paths win."""

    def __init__(self, root: Access) -> None:
        """Args: root: the access to everything that no rule is about."""
        self._access: dict[str, Access] = {"/": root}
        self._places: dict[str, ResolvedPath] = {}
        self._tmpfs: set[str] = set()
        self._opened: set[str] = set()
        self.bare_roots: list[str] = []
        """Folders that a command could make repositories of."""
        self.guards: list[str] = []
        """Missing folders that have to be made so that something can be put over them."""

    def set(self, place: ResolvedPath, access: Access) -> None:
        """A rule. Of two for one path `deny` wins, then `write`."""
        known = self._access.get(place.path) if place.path in self._places else None
        if known is Access.DENY or (known is Access.WRITE and access is Access.READ):
            return
        self._access[place.path] = access
        self._places[place.path] = place

    def narrow(self, place: ResolvedPath) -> None:
        """Read-only from here on, unless it is narrower already."""
        known = self._access.get(place.path) if place.path in self._places else None
        if known is not Access.DENY:
            self._access[place.path] = Access.READ
            self._places[place.path] = place

    def guard(self, path: str) -> None:
        """Read-only, although it is missing: its place is taken by an empty folder."""
        self.guards.append(path)

    def open(self, path: str) -> None:
        """A rule names this path, links in its last name not followed, as writable."""
        self._opened.add(path)

    def opens(self, path: str) -> bool:
        """Whether a rule says of exactly this path, or link, more or less than that it may be read."""
        return path in self._opened or (path in self._places and self._access[path] is not Access.READ)

    def at(self, path: str) -> Access:
        """The access to a real path."""
        return self._access[self.rule_for(path)]

    def rule_for(self, path: str) -> str:
        """The path of the rule that holds for a real path."""
        while path not in self._access:
            path = path.rpartition("/")[0] or "/"
        return path

    def rules(self) -> list[str]:
        """The real paths that rules name."""
        return list(self._places)

    def has_rule(self, path: str) -> bool:
        """Whether a rule names exactly this path."""
        return path in self._places

    def writable_folders(self) -> list[str]:
        """The folders that rules make writable."""
        return [
            path
            for path, access in self._access.items()
            if access is Access.WRITE and path in self._places and self._places[path].is_folder
        ]

    def readable_folders(self) -> list[str]:
        """The folders that rules, or the lack of rules, make readable at least."""
        return [
            path
            for path, access in self._access.items()
            if access is not Access.DENY and (path == "/" or self._places[path].is_folder)
        ]

    def add_masks(self, own: DaemonPaths) -> None:
        """Cover things whatever entries say of them. Entries for deeper paths still hold."""
        for path in (*own.folders, *own.files):
            place = resolve_path(path)
            if place is not None and place.exists:
                self._access[place.path] = Access.DENY
                self._places[place.path] = place

    def add_tmpfs(self, path: str) -> None:
        """An empty, listable folder in the place of one that is seen, unless a rule names it."""
        place = resolve_path(path)
        if place is None or not place.is_folder or place.links or place.path in self._places:
            return
        if self.at(place.path) is not Access.DENY:
            self._access[place.path] = Access.DENY
            self._places[place.path] = place
            self._tmpfs.add(place.path)

    def mounts(self, *, base_visible: bool, hold: bool = True) -> list[Mount]:
        """What has to be mounted, shallow first.

        Args:
            base_visible: whether what no rule is about is there.
            hold: whether folders are held in place for what is limited in them.
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
        """The folders that a command could move, and what is limited in them with them."""
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
        """The links on the way to a place, those that are not in the view by themselves."""
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
            return []  # What lies around it is not there either.
        return [Mask(path, place.is_folder)]


def _is_device(path: str) -> bool:
    return is_below(path, "/dev")
