"""The view of a sandbox: an ordered list of mounts, made from a policy and the disk.

    Policy ──┬─ targets of entries ────────┐
             ├─ matches of patterns ───────┼──▶ Tree: real path → access ──▶ View
             ├─ protected names ───────────┤
             └─ the daemon's own files ────┘

The disk is read and not changed; missing mount points are listed, and made later (`registry.py`). All
functions here may block and are called in a thread.

A command can plant links and move folders to affect later commands, under this policy or another one. So a
grant through a link that a command could have made is refused, and so is a limit that depends on such a link.
A folder with limited paths in it is mounted over itself, because a mount point cannot be moved.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from execserver.sandbox import glob_search, refused
from execserver.sandbox.disk import (
    ResolvedPath,
    may_be_mount_point,
    replaceable_inside,
    resolve_path,
)
from execserver.sandbox.options import DaemonPaths
from execserver.sandbox.policy import PLATFORM_FOLDERS, Access, Policy, Rule, is_below
from execserver.sandbox.protected import protect
from execserver.sandbox.tree import Bind, Mask, Mount, Symlink, Tmpfs, Tree
from execserver.telemetry.logs import Logger

__all__ = ["Bind", "DaemonPaths", "Mask", "Mount", "RequiredPaths", "Symlink", "Tmpfs", "View", "build_view"]

log = Logger()

RUNTIME_FOLDERS = ("/run", "/var/run")
"""Folders of daemons' sockets, among them those of container daemons, which run anything for any client."""

RESOLVER_PATHS = (
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager/resolv.conf",
    "/run/NetworkManager/no-stub-resolv.conf",
)
"""The targets of `/etc/resolv.conf` on many systems, so that names can still be resolved. Not the whole
folder of NetworkManager: it also has a socket that lets root do anything.
"""

USER_RUNTIME_FOLDERS = (
    ".docker/run",
    ".docker/desktop",
    ".colima",
    ".rd",
    ".orbstack/run",
    ".lima",
    ".local/share/containers/podman",
)
"""Such folders below a home folder."""

SOCKETS = (("/tmp", ("tmux-", "ssh-", ".X11-unix", ".ICE-unix")),)  # noqa: S108
USER_SOCKETS = (
    (".gnupg", ("S.",)),
    (".ssh", ("agent", "control", "cm-", "sockets", "mux")),
    (".1password", ("agent.sock",)),
)
"""Other folders, and prefixes of names in them, where agents, terminals and desktops listen, which act for
every process of their user. The folders of `USER_SOCKETS` are in the home folder.
"""

_PIPES_DEPTH = 2
"""Levels below a runtime folder that are searched for named pipes: `/run/initctl`, `/run/systemd/pipe`."""

_BASES: Mapping[Access, Literal["read", "write", "empty"]] = {
    Access.DENY: "empty",
    Access.READ: "read",
    Access.WRITE: "write",
}

_SYSTEM_FOLDERS = frozenset({"/", "/home", "/mnt", "/opt", "/srv", "/usr", "/var"})
"""Links in these folders belong to the machine (`/home` to `/var/home`). A command of a root daemon can
change them only under a policy that makes everything writable.
"""


class View(msgspec.Struct, frozen=True):
    """The file system and namespaces of a sandboxed command."""

    base: Literal["read", "write", "empty", "host"]
    """The root: the host's, read-only or writable; an empty one; or the host's with all devices."""

    mounts: tuple[Mount, ...]
    """In the order of mounting."""

    mount_points: tuple[str, ...] = ()
    """Folders that must exist on the host during the command, and must be removed after it."""

    not_shared: frozenset[str] = frozenset()
    """Folders in which mount points are made even if they are marked as one themselves."""

    bare_roots: tuple[str, ...] = ()
    """Folders that a command could turn into repositories (`bare_roots.py`)."""

    network: bool = False
    managed_network: bool = False
    """Whether a network proxy will listen in the network namespace, and TCP is allowed there."""

    namespaces: bool = True
    """Whether the command has its own processes and System V objects."""


class RequiredPaths(msgspec.Struct, frozen=True):
    """Paths that the request needs in the sandbox."""

    cwd: str | None = None
    program: str | None = None
    tools: tuple[str, ...] = ()
    """Programs that start the command inside."""

    extra: tuple[str, ...] = ()
    """Paths that are readable under every policy: the interpreter of an fs worker."""


def build_view(policy: Policy, own: DaemonPaths, needs: RequiredPaths) -> View:
    """Make the view for a policy, as the disk is now.

    Raises:
        InvalidRequest: a limit cannot be enforced, or a path that the request needs would not be visible.
    """
    if policy.unrestricted:
        tree = Tree(Access.WRITE)
        tree.add_masks(own)
        mounts = tree.mounts(base_visible=True, hold=False)
        if policy.managed_network:
            # Processes of the host have its network, so the command must not see them.
            return View("write", tuple(mounts), managed_network=True)
        return View("host", tuple(mounts), network=policy.network, namespaces=False)
    return _ViewBuilder(policy, own, needs).view()


class _ViewBuilder:
    """Makes the view for one policy."""

    def __init__(self, policy: Policy, own: DaemonPaths, needs: RequiredPaths) -> None:
        self._policy = policy
        self._own = own
        self._needs = needs
        self._tree = Tree(Access.DENY)
        self._links: list[Mount] = []

    def view(self) -> View:
        self._add_rules()
        self._add_globs()
        protect(self._tree)
        if self._policy.network:
            self._add_runtime_folders()
        else:
            self._cover_pipes()
        self._add_own()
        self._add_platform()
        for path in self._needs.extra:
            place = resolve_path(path)
            if place is not None and place.exists and self._tree.at(place.path) is Access.DENY:
                self._tree.set(place, Access.READ)
        self._check_needs()
        mounts = [*self._links, *self._tree.mounts(base_visible=self._root is not Access.DENY)]
        guards = tuple(dict.fromkeys(self._tree.guards))
        bare_roots = tuple(self._tree.bare_roots)
        return View(
            _BASES[self._root],
            _without_repeats(mounts),
            guards,
            frozenset(filter(self._tree.is_never_shared, map(os.path.dirname, guards))),
            bare_roots,
            self._policy.network,
            self._policy.managed_network,
        )

    @property
    def _root(self) -> Access:
        return self._tree.at("/")

    def _add_rules(self) -> None:
        found = [(rule, self._place(rule)) for rule in self._policy.rules]
        # Which links commands may replace depends on everything that they can write to.
        everything = Tree(Access.DENY)
        for rule, place in found:
            if place is not None and place.exists:
                everything.set(place, rule.access)
        for rule, place in found:
            if place is None or not self._is_reliable(rule, place, everything):
                continue
            if place.exists:
                self._tree.set(place, rule.access)
        self._open_links(found)
        for rule, place in found:
            limits = rule.access is not Access.WRITE and not rule.skip_missing
            if limits and place is not None:
                self._guard(place)

    def _open_links(self, found: Sequence[tuple[Rule, ResolvedPath | None]]) -> None:
        """A rule that makes a protected name writable applies to a link with that name, too."""
        for rule, _ in found:
            folder = resolve_path(os.path.dirname(rule.path))
            if rule.access is Access.WRITE and folder is not None:
                self._tree.open(f"{folder.path.rstrip('/')}/{os.path.basename(rule.path)}")

    def _place(self, rule: Rule) -> ResolvedPath | None:
        """The target of a rule; None if the rule changes nothing."""
        place = resolve_path(rule.path)
        if place is None:
            if rule.access is Access.WRITE:
                return None
            raise refused(f"{rule.path} leads through too many links: name what it leads to")
        if not is_below(place.path, "/proc"):
            return place
        if rule.access is Access.DENY:
            raise refused(
                f"{rule.path} cannot be denied: every sandbox has its own /proc, which shows only its own "
                "processes; remove the entry",
            )
        return None

    def _is_reliable(self, rule: Rule, place: ResolvedPath, everything: Tree) -> bool:
        link = next((link for link, _ in place.links if _is_replaceable(link, everything)), None)
        if link is None:
            self._refuse_planted(rule, place)
            return True
        if rule.access is Access.WRITE:
            log.warning("a sandbox entry leads through a link that commands may replace; it grants nothing")
            return False
        raise refused(
            f"{rule.path} leads through the symbolic link {link}, which a command could replace: name what "
            f"it leads to, {place.path}",
        )

    def _refuse_planted(self, rule: Rule, place: ResolvedPath) -> None:
        """Refuse a grant through a link that a command under another policy may have made."""
        root = max((each.access for each in self._policy.rules if each.path == "/"), default=Access.DENY)
        if rule.access is Access.DENY or (rule.access is Access.READ and root is not Access.DENY):
            return
        link = next((link for link, _ in place.links if _may_be_planted(link)), None)
        if link is not None:
            raise refused(
                f"{rule.path} leads through the symbolic link {link}, which a command may have put there: "
                f"name what it leads to, {place.path}",
            )

    def _guard(self, place: ResolvedPath) -> None:
        """Keep commands from creating a path that must not be written and is missing."""
        if not place.exists or (place.is_folder and may_be_mount_point(place.path)):
            self._tree.guard_missing(place)

    def _replaceable_here(self, link: str) -> bool:
        return _is_replaceable(link, self._tree)

    def _replaceable(self, link: str) -> bool:
        return self._replaceable_here(link) or _may_be_planted(link)

    def _add_globs(self) -> None:
        if not self._policy.globs:
            return
        budget = glob_search.Budget()
        folders = self._tree.writable_folders()
        if self._needs.cwd is not None:
            folders.append(self._needs.cwd)
        # `fs/*` matches the pattern against every path, so it must apply wherever commands may read.
        readable = [*folders, *self._tree.readable_folders()]
        if self._policy.minimal:
            readable += PLATFORM_FOLDERS
        for glob in self._policy.globs:
            found = glob_search.expand(
                glob.pattern,
                readable if glob.access is Access.DENY else folders,
                self._policy.glob_depth,
                budget,
                denies=glob.access is Access.DENY,
            )
            for path in found:
                # A link that matches stands for its target; for a grant only if the link can be trusted.
                place = (
                    resolve_path(path)
                    if glob.access is Access.DENY
                    else resolve_path(path, self._replaceable)
                )
                if place is None or not place.exists or is_below(place.path, "/proc"):
                    continue
                if place.path == "/" and glob.access is Access.DENY:
                    raise refused(f"the link {path} leads to / and a pattern denies it: remove it")
                self._set_for_glob(place, glob.access)

    def _set_for_glob(self, place: ResolvedPath, access: Access) -> None:
        if access is Access.READ and self._tree.at(place.path) is Access.WRITE:
            self._tree.narrow(place)
        elif access is not self._tree.at(place.path):
            self._tree.set(place, access)

    def _add_runtime_folders(self) -> None:
        for path in RUNTIME_FOLDERS:
            self._tree.add_tmpfs(path)
        for path in RESOLVER_PATHS if self._root is not Access.DENY else ():
            place = resolve_path(path)
            if place is not None and place.exists and not self._tree.has_rule(place.path):
                self._tree.set(place, Access.READ)
        home = self._own.home
        if home is not None:
            masked = DaemonPaths(folders=tuple(f"{home}/{name}" for name in USER_RUNTIME_FOLDERS))
            self._tree.add_masks(masked)
        folders = [*SOCKETS, *((f"{home}/{name}", names) for name, names in USER_SOCKETS if home is not None)]
        found = [path for folder, names in folders for path in _beginning(folder, names)]
        self._tree.add_masks(DaemonPaths(files=(*found, *self._own.sockets)))

    def _cover_pipes(self) -> None:
        """Hide named pipes in runtime folders, which stay visible without the network.

        Sockets cannot be used then, but a write to a named pipe reaches its reader even on a read-only mount.
        """
        found = (path for folder in RUNTIME_FOLDERS for path in self._pipes_in(folder, _PIPES_DEPTH))
        self._tree.add_masks(DaemonPaths(files=tuple(found)))

    def _pipes_in(self, folder: str, depth: int) -> Iterator[str]:
        """The named pipes that could be written to although no rule allows it."""
        if self._tree.at(folder) is not Access.READ or os.path.islink(folder):
            return
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if depth > 1:
                        yield from self._pipes_in(entry.path, depth - 1)
                elif _is_pipe(entry) and self._is_only_readable(entry.path):
                    yield entry.path

    def _is_only_readable(self, path: str) -> bool:
        return self._tree.at(path) is Access.READ and not self._tree.has_rule(path)

    def _add_own(self) -> None:
        """Hide the daemon's own files, and keep commands from creating files that its next start reads."""
        for folder in self._own.folders:
            self._refuse_entries_in(folder)
        self._tree.add_masks(self._own)
        roots = self._tree.writable_folders()
        for path in self._own.code:
            # Rarely true, so these paths are not resolved each time.
            if any(is_below(path, root) for root in roots) and self._tree.at(path) is Access.WRITE:
                place = self._own_place(path)
                if place is not None and place.exists:
                    self._tree.narrow(place)
        for path in self._own.files:
            place = self._own_place(path)
            if place is not None:
                self._guard(place)

    def _own_place(self, path: str) -> ResolvedPath | None:
        place = resolve_path(path)
        links = place.links if place is not None else ()
        link = next((link for link, _ in links if self._replaceable_here(link)), None)
        if link is not None:
            raise refused(
                f"the daemon's own {path} leads through the symbolic link {link}, which a command could "
                "replace: replace the link by its target",
            )
        return place

    def _refuse_entries_in(self, folder: str) -> None:
        """Refuse entries that grant access to a path in a folder of the daemon, which trusts its content."""
        own = resolve_path(folder)
        if own is None or not own.exists:
            return
        for path in self._tree.rules():
            if path != own.path and is_below(path, own.path) and self._tree.at(path) is not Access.DENY:
                raise refused(f"{path} lies in {folder}, which is the daemon's own: name another path")

    def _add_platform(self) -> None:
        if not self._policy.minimal or self._root is not Access.DENY:
            return
        for path in PLATFORM_FOLDERS:
            place = resolve_path(path)
            if place is None or not place.exists:
                continue
            self._links += self._tree.links_to(place)
            if not self._tree.has_rule(place.path):
                self._tree.set(place, Access.READ)

    def _check_needs(self) -> None:
        cwd, program = self._needs.cwd, self._needs.program
        if cwd is not None:
            self._require(cwd, "the working directory", "cwd")
        if program is not None:
            self._require(program, "the program", "argv")
        for tool in self._needs.tools:
            self._require(tool, "the program", "tty")

    def _require(self, path: str, what: str, field: str) -> None:
        place = resolve_path(path)
        if place is None or not place.exists or place.path == "/":
            return  # the spawn reports a missing path by its errno, and there always is a root
        if self._tree.at(place.path) is Access.DENY and not is_below(place.path, "/proc"):
            raise refused(
                f"{what} {path} cannot be read under this policy: allow reading it, or take another", field
            )
        if self._root is Access.DENY:
            self._links += self._tree.links_to(place)


def _beginning(folder: str, names: tuple[str, ...]) -> list[str]:
    """The paths in a folder whose names begin with one of these prefixes."""
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder) if name.startswith(names)]
    except OSError:
        return []


def _is_pipe(entry: os.DirEntry[str]) -> bool:
    try:
        if entry.is_symlink() or entry.is_file(follow_symlinks=False):  # known without a stat call
            return False
        return stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _is_replaceable(link: str, tree: Tree) -> bool:
    """Whether a command under these rules could replace a link."""
    return tree.at(os.path.dirname(link)) is Access.WRITE and replaceable_inside(link)


def _may_be_planted(link: str) -> bool:
    """Whether a command of this user, under any policy, could have made a link."""
    return os.path.dirname(link) not in _SYSTEM_FOLDERS and replaceable_inside(link)


def _without_repeats(mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    return tuple(dict.fromkeys(mounts))
