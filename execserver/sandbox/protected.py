"""Protected names: files in a writable root that stay read-only.

Programs outside the sandbox execute or trust them: a hook in `.git`, a setting in `.codex`. So each direct
child of a writable root with such a name is read-only. A missing one is mounted over, so that a command
cannot create it. For git, more than `.git` is protected (`git_files.py`):

1. The folders that a `.git` file names, and the files that the settings include.
2. A root without a usable `.git`: with `HEAD`, `objects` and `refs`, git takes the root itself for a
   repository. If it has a valid `HEAD`, it is read-only; if it has no `HEAD`, it is watched
   (`bare_roots.py`).
3. `.git` of submodules and of linked worktrees: `git status` in the root reads submodules too.
"""

from __future__ import annotations

import os
import stat

from execserver.sandbox import git_files, refused
from execserver.sandbox.disk import (
    ResolvedPath,
    may_be_mount_point,
    replaceable_inside,
    resolve_path,
    writable_inside,
)
from execserver.sandbox.policy import PROTECTED_NAMES, Access, is_below
from execserver.sandbox.tree import Tree
from execserver.telemetry.logs import Logger

log = Logger()

_MOST_REPOSITORIES = 256
"""In one root, including nested submodules."""


def protect(tree: Tree) -> None:
    """Make the protected names in all writable folders of a tree read-only.

    Raises:
        InvalidRequest: a symbolic link to one of them could be replaced by a command.
    """
    roots = tree.writable_folders()
    for root in roots:
        _WritableRoot(tree, root.rstrip("/"), roots).protect()


class _WritableRoot:
    """One writable folder; `path` has no trailing slash."""

    def __init__(self, tree: Tree, path: str, roots: list[str]) -> None:
        self._tree = tree
        self._path = path
        self._roots = roots
        self._seen: set[str] = set()
        """Repositories that were handled."""

    def protect(self) -> None:
        paths = [f"{self._path}/{name}" for name in PROTECTED_NAMES]
        paths = [path for path in paths if not self._tree.opens(path)]
        repository = f"{self._path}/.git"
        looked_past = repository in paths and not git_files.is_found(repository)
        if looked_past and not self._is_repository_of_a_root() and self._protect_head():
            return
        missing = [path for path in paths if not self._protect(path)]
        if missing and writable_inside(self._path or "/"):
            for path in missing:
                self._tree.guard(path)

    def _is_repository_of_a_root(self) -> bool:
        """Whether the root is the target of a `.git`: then an entry makes it writable on purpose."""
        if ".git" in self._path.split("/"):  # a submodule's repository lies in `.git/modules`
            return True
        files = (f"{root.rstrip('/')}/.git" for root in self._roots if root.rstrip("/") != self._path)
        found = (each for file in files for each in git_files.repository(file))
        return any(os.path.realpath(each) == self._path for each in found)

    def _protect_head(self) -> bool:
        """Keep git from trusting the root as a repository; returns whether it is one and now read-only."""
        path, folder = f"{self._path}/HEAD", self._path or "/"
        try:
            root = os.stat(folder)
        except OSError:
            return False
        # Git ignores a repository in a folder of another user, like /tmp (`safe.directory`).
        is_sticky = bool(root.st_mode & stat.S_ISVTX)
        if is_sticky and root.st_uid != os.geteuid():
            return False
        try:
            status = os.lstat(path)
        except OSError:
            self._tree.bare_roots.append(folder)
            return False
        if not git_files.is_head(path):
            self._protect(path)
            return False
        # In our own sticky folder, a file of another user is not ours to protect.
        if is_sticky and status.st_uid != os.geteuid():
            return False
        log.warning("a writable root is a bare git repository, and read-only")
        self._tree.narrow(ResolvedPath(folder, root, None, ()))
        return True

    def _protect(self, path: str) -> bool:
        """Make one name read-only; returns False if it is missing."""
        try:
            status = os.lstat(path)
        except OSError:
            return False
        if stat.S_ISLNK(status.st_mode):
            self._protect_link(path)
            return True
        self._narrow(ResolvedPath(path, status, None, ()))
        if path.endswith("/.git"):
            self._protect_repository(path)
        return True

    def _narrow(self, place: ResolvedPath) -> None:
        self._tree.narrow(place)
        if place.is_folder and may_be_mount_point(place.path):
            self._tree.guard(place.path)

    def _protect_link(self, path: str) -> None:
        place = resolve_path(path)
        if replaceable_inside(path):
            # A commit writes to the repository, wherever it is.
            is_repository = place is not None and place.is_folder and path.endswith("/.git")
            commits = f", and one for {place.path} to commit" if place is not None and is_repository else ""
            raise refused(
                f"{path} is a symbolic link, which a command could replace: replace it by its target, or add "
                f"an entry with access `write` for {path} if commands may change it{commits}",
            )
        if place is not None and place.exists and any(is_below(place.path, root) for root in self._roots):
            self._tree.narrow(place)

    # -- repositories

    def _protect_repository(self, path: str) -> None:
        """Protect the files of the repository of a `.git`."""
        found = git_files.repository(path)
        folder = next(iter(found), None)
        if folder is None or folder in self._seen:
            return
        if len(self._seen) == _MOST_REPOSITORIES:
            raise refused(
                f"{self._path} has more than {_MOST_REPOSITORIES} submodules and worktrees, and each of them "
                "has to be protected: make folders below it writable",
            )
        self._seen.add(folder)
        common = found[-1]
        for pointed in found:
            if pointed != path:
                self._protect_pointed_at(pointed, path, common)
        for included in git_files.included(folder, common):
            self._protect_pointed_at(included, f"an include of {path}", common)
        worktree = os.path.dirname(path)
        for checkout in git_files.submodules(worktree, folder, common):
            self._protect_checkout(checkout, path)
        for checkout in git_files.linked_worktrees(common):
            if os.path.lexists(f"{checkout}/.git"):
                self._protect_checkout(checkout, path)

    def _protect_checkout(self, folder: str, source: str) -> None:
        """Protect the `.git` of a submodule or linked worktree.

        If the `.git` is missing, protect the folder: git fails on a submodule with an empty `.git`.
        """
        place = self._located(folder, source)
        if place is None:
            return
        if not place.exists:
            self._tree.guard_missing(place)
        elif place.is_folder and self._tree.at(place.path) is Access.WRITE:
            path = f"{place.path}/.git"
            if not self._tree.opens(path) and not self._protect(path):
                self._narrow(place)

    def _protect_pointed_at(self, path: str, source: str, common: str) -> None:
        """Protect a file or folder that a repository names, unless an entry makes it writable.

        A commit in a linked worktree needs such an entry.
        """
        place = self._located(path, source)
        if place is None:
            return
        rule = self._tree.rule_for(place.path)
        if not place.exists:
            # Git would use a file that a command creates there.
            self._tree.guard_missing(place)
        elif self._tree.at(rule) is Access.WRITE and not is_below(rule, os.path.realpath(common)):
            self._narrow(place)

    def _located(self, path: str, source: str) -> ResolvedPath | None:
        """Resolve a path in git's files; None if it has too many links.

        Raises:
            InvalidRequest: it leads through a link that a command could replace.
        """
        place = resolve_path(path)
        for link, _ in place.links if place is not None else ():
            if self._tree.at(os.path.dirname(link)) is Access.WRITE and replaceable_inside(link):
                raise refused(
                    f"{source} leads through the symbolic link {link}, which a command could replace: "
                    "replace the link by its target",
                )
        return place
