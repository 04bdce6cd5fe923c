"""Names in a writable root that stay read-only, because others act on what is in them.

A hook in `.git`, a setting in `.codex`: programs outside the sandbox run or trust these. So each direct
child of a writable root that has such a name is narrowed, also when it is missing: then its place is
taken, or a command could make it.
"""

from __future__ import annotations

import os
import stat

from execserver.sandbox.disk import Place, locate, replaceable_inside, writable_inside
from execserver.sandbox.policy import PROTECTED_NAMES, Access, is_below
from execserver.sandbox.refusal import refused
from execserver.sandbox.tree import Tree

_MOST_POINTER_BYTES = 64 << 10
"""Of a file that names another repository folder; more is no such file."""


def protect(tree: Tree) -> None:
    """Narrow the protected names of all writable folders of a tree.

    Raises:
        InvalidRequest: one is a symbolic link that a command could replace.
    """
    roots = tree.writable_folders()
    for root in roots:
        paths = [f"{root.rstrip('/')}/{name}" for name in PROTECTED_NAMES]
        paths = [path for path in paths if not (tree.has_rule(path) and tree.at(path) is not Access.READ)]
        missing = [path for path in paths if not _protect(tree, path, roots)]
        if missing and writable_inside(root):
            for path in missing:
                tree.guard(path)


def _protect(tree: Tree, path: str, roots: list[str]) -> bool:
    """Narrow one name; False: it is missing."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    if stat.S_ISLNK(status.st_mode):
        _protect_link(tree, path, roots)
        return True
    tree.narrow(Place(path, status, None, ()))
    if stat.S_ISDIR(status.st_mode):
        if may_be_stand_in(path):
            tree.guard(path)
    elif stat.S_ISREG(status.st_mode) and path.endswith("/.git"):
        _protect_repository(tree, path)
    return True


def _protect_link(tree: Tree, path: str, roots: list[str]) -> None:
    if replaceable_inside(path):
        raise refused(
            f"{path} is a symbolic link, and nothing can keep a command from replacing it: put what it "
            "leads to in its place, or add an entry with access `write` for it if that is meant",
            "sandbox.permissions.file_system.entries",
        )
    place = locate(path)
    if place is not None and place.exists and any(is_below(place.path, root) for root in roots):
        tree.narrow(place)


def _protect_repository(tree: Tree, path: str) -> None:
    """`.git` is a file that says where the repository is: in a worktree or a submodule."""
    folder = _pointed_at(path, "gitdir:")
    if folder is None:
        return
    _narrow_pointed_at(tree, folder)
    common = _pointed_at(f"{folder}/commondir", "")
    if common is not None:
        _narrow_pointed_at(tree, common)


def _narrow_pointed_at(tree: Tree, path: str) -> None:
    place = locate(path)
    if place is None:
        return
    if place.exists:
        if tree.at(place.path) is Access.WRITE:
            tree.narrow(place)
            if place.is_folder and may_be_stand_in(place.path):
                tree.guard(place.path)
        return
    # Git would take what a command makes there for the repository.
    missing = place.missing or place.path
    parent = os.path.dirname(missing)
    if tree.at(parent) is Access.WRITE and writable_inside(parent):
        tree.guard(missing)


def _pointed_at(path: str, keyword: str) -> str | None:
    """The folder that a file of git's names, absolute."""
    try:
        # A fifo, which a command may have made, would let an ordinary `open` wait for ever.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            line = os.fsdecode(file.read(_MOST_POINTER_BYTES)).strip()
    except OSError:
        return None
    if not line.startswith(keyword) or "\0" in line:
        return None
    return os.path.normpath(os.path.join(os.path.dirname(path), line[len(keyword) :].strip()))


def may_be_stand_in(path: str) -> bool:
    """Whether a folder is empty, and so may be another command's mount point: it would be gone with that one,
    and has to be asked for like one that is missing.
    """
    try:
        with os.scandir(path) as scan:
            return next(scan, None) is None
    except OSError:
        # Gone just now: it was somebody's stand-in. What may not be listed is told apart when it is taken.
        return True
