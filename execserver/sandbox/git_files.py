"""Reads the files by which git finds repositories, settings and submodules, without running git.

A file that cannot be read or parsed names nothing. Returned paths are absolute, with `..` and links
unresolved. Blocking.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import struct
from collections.abc import Iterator

_MOST_BYTES = 1 << 20
"""Of a text file; git writes some hundred bytes."""

_MOST_INDEX_BYTES = 1 << 29
"""Of an index; enough for a tree with some four million files."""

_MOST_INCLUDES = 64
_DEEPEST_MODULE = 8

_GITLINK = b"\0\0\xe0\0"
"""The mode of a submodule in the index."""

_SECTION = re.compile(r'\s*\[\s*([\w.-]+)\s*(?:"(?:[^"\\]|\\.)*")?\s*\]')
_SETTING = re.compile(r"\s*([A-Za-z][\w-]*)\s*=\s*(?:\"([^\"]*)\"|([^#;]*))")
_HEAD = re.compile(rb"ref:\s*refs/|[0-9a-f]{40}")


def pointed_at(path: str, keyword: str) -> str | None:
    """The path that a file like `.git` or `commondir` names after a keyword; None if it names none."""
    data = _read(path, _MOST_BYTES)
    line = "" if data is None else os.fsdecode(data).strip()
    named = line[len(keyword) :].strip()
    if not line.startswith(keyword) or not named or "\0" in line:
        return None
    return os.path.join(os.path.dirname(path), named)


def repository(path: str) -> list[str]:
    """The folders of the repository that a `.git` is or names; the last one is shared by its worktrees."""
    folder = path if os.path.isdir(path) else pointed_at(path, "gitdir:")
    if folder is None:
        return []
    common = pointed_at(f"{folder}/commondir", "")
    return [folder] if common is None else [folder, common]


def is_head(path: str) -> bool:
    """Whether git accepts a file as the `HEAD` of a repository."""
    if os.path.islink(path):
        return os.readlink(path).startswith("refs/")
    return _HEAD.match(_read(path, _MOST_BYTES) or b"") is not None


def is_found(path: str) -> bool:
    """Whether git stops its search at this `.git`: it is a file, or a folder with a repository."""
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            return True
    except OSError:
        return False
    return is_bare(path)


def is_bare(folder: str) -> bool:
    """Whether git takes the folder itself for a repository."""
    common = pointed_at(f"{folder}/commondir", "") or folder
    return is_head(f"{folder}/HEAD") and all(
        os.path.isdir(f"{common}/{name}") for name in ("objects", "refs")
    )


def included(folder: str, common: str) -> list[str]:
    """The settings files that a repository's settings include, directly or not; existing or not."""
    found: dict[str, None] = {}
    pending = [f"{common}/config", f"{folder}/config.worktree"]
    while pending and len(found) < _MOST_INCLUDES:
        source = pending.pop()
        for section, key, value in _settings(source):
            if section in ("include", "includeif") and key == "path":
                path = os.path.join(os.path.dirname(source), os.path.expanduser(value))
                if path not in found:
                    found[path] = None
                    pending.append(path)
    return list(found)


def submodules(worktree: str, folder: str, common: str) -> Iterator[str]:
    """The folders of a worktree's submodules: those in the index, and those whose repository is there.

    Args:
        worktree: the folder with the files.
        folder: its repository.
        common: the folder that its worktrees share; the same as `folder` unless the worktree is linked.
    """
    for name in _names(folder):
        if name == "index" or name.startswith("sharedindex."):
            for path in _gitlinks(f"{folder}/{name}", f"{common}/config"):
                yield f"{worktree}/{path}"
    for place in {folder, common}:
        for module in _modules(f"{place}/modules", _DEEPEST_MODULE):
            for section, key, value in _settings(f"{module}/config"):
                if (section, key) == ("core", "worktree"):
                    yield os.path.join(module, value)


def linked_worktrees(common: str) -> Iterator[str]:
    """The folders of the worktrees that `git worktree add` made."""
    for name in _names(f"{common}/worktrees"):
        git = pointed_at(f"{common}/worktrees/{name}/gitdir", "")
        if git is not None:
            yield os.path.dirname(git)


def _read(path: str, most: int) -> bytes | None:
    """At most `most` bytes of a regular file; None if there is none."""
    try:
        # A plain `open` would block on a FIFO, which a command may have made.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return file.read(most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except (OSError, ValueError):
        return None


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _settings(path: str) -> list[tuple[str, str, str]]:
    """Sections, keys (both in lower case) and values of a settings file, without subsections."""
    data = _read(path, _MOST_BYTES)
    if data is None:
        return []
    found = []
    section = ""
    for text in os.fsdecode(data).splitlines():
        if (header := _SECTION.match(text)) is not None:
            section, text = header[1].lower(), text[header.end() :]
        if (setting := _SETTING.match(text)) is not None:
            value = setting[2] if setting[2] is not None else setting[3].strip()
            if value and "\0" not in value:
                found.append((section, setting[1].lower(), value))
    return found


def _modules(folder: str, depth: int) -> Iterator[str]:
    """The repositories below a folder `modules`, whose names may have slashes."""
    for name in _names(folder) if depth else []:
        path = f"{folder}/{name}"
        if os.path.exists(f"{path}/HEAD"):
            yield path
            yield from _modules(f"{path}/modules", depth - 1)
        elif os.path.isdir(path):
            yield from _modules(path, depth - 1)


def _gitlinks(path: str, config: str) -> tuple[str, ...]:
    """The submodules in an index, by their paths in the worktree; `config` says how long digests are."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    version = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return _gitlinks_of(path, config, version)


@functools.lru_cache(maxsize=64)
def _gitlinks_of(path: str, config: str, _version: tuple[int, ...]) -> tuple[str, ...]:
    data = _read(path, _MOST_INDEX_BYTES)
    # Most indexes have no submodules, and need no parsing.
    if data is None or _GITLINK not in data:
        return ()
    is_sha256 = ("extensions", "objectformat", "sha256") in _settings(config)
    try:
        return tuple(_entries(data, 32 if is_sha256 else 20))
    except (struct.error, ValueError, IndexError):
        return ()


def _entries(data: bytes, digest_bytes: int) -> Iterator[str]:
    """The paths of submodules in an index (git's Documentation/gitformat-index), versions 2 to 4."""
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        return
    offset, name = 12, b""
    for _ in range(count):
        begin = offset
        is_link = data[offset + 24 : offset + 28] == _GITLINK
        offset += 40 + digest_bytes
        (flags,) = struct.unpack_from(">H", data, offset)
        offset += 4 if flags & 0x4000 else 2
        kept = b""
        if version == 4:
            dropped, offset = _varint(data, offset)
            kept = name[: len(name) - dropped]
        end = data.index(b"\0", offset)
        name = kept + data[offset:end]
        # Up to version 3 an entry is filled up with NUL bytes, one at least, to a multiple of eight.
        offset = end + 1 if version == 4 else begin + ((end - begin) // 8 + 1) * 8
        if is_link and name:
            yield os.fsdecode(name)


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """A number in the offset encoding of packs, and the position after it."""
    value = data[offset] & 0x7F
    while data[offset] & 0x80:
        offset += 1
        value = ((value + 1) << 7) | (data[offset] & 0x7F)
    return value, offset + 1
