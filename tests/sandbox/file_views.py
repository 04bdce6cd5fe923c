"""What the requests that read many files show of a tree, under one policy or without a sandbox."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote_to_bytes

from tests.sandbox.host import Host
from tests.support.wire import Client, Json, ReplyError, path_uri
from tests.vectors.policies import PERMISSIONS, prepare, sandbox

POLICIES = sorted(PERMISSIONS)
"""The policies that the vectors name."""

_WATCHES = itertools.count(1)


def path_of(uri: str) -> Path:
    """The path of a URI as the server writes it."""
    assert uri.startswith("file:///"), uri
    return Path(os.fsdecode(unquote_to_bytes(uri.removeprefix("file://"))))


def files_below(folder: Path) -> set[Path]:
    """The regular files below a folder that have content, as the test itself sees them."""
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return {path for path in found if path.is_file() and not path.is_symlink() and path.stat().st_size}


def is_folder(path: Path) -> bool:
    """Whether it is a folder, and no link to one."""
    return path.is_dir() and not path.is_symlink()


class View:
    """Requests to one daemon with one `sandbox`, which is `None` for requests without one.

    Nothing is ignored and nothing hidden is left out. A root that cannot be read shows nothing.
    """

    def __init__(self, host: Host, sandbox: Json) -> None:
        self.client: Client = host.client
        self._confined = {} if sandbox is None else {"sandbox": sandbox}

    def call(self, method: str, path: str | bytes | os.PathLike[str], **params: Json) -> Json:
        """A request for a path."""
        return self.client.call(f"fs/{method}", {"path": path_uri(path), **self._confined, **params})

    def reads(self, path: Path) -> bool:
        """Whether `fs/readFile` reads it."""
        try:
            self.call("readFile", path)
        except ReplyError:
            return False
        return True

    def lists(self, folder: Path) -> set[Path]:
        """The names that `fs/readDirectory` lists."""
        try:
            entries = self.call("readDirectory", folder)["entries"]
        except ReplyError:
            return set()
        return {folder / entry["fileName"] for entry in entries}

    def searched(self, *roots: Path, pattern: str = ".", **params: Json) -> set[Path]:
        """The files with a match of a regular expression, by one `fs/search` for each root."""
        given = {"regex": True, "hidden": True, "ignoreRules": False, "maxMatches": 100_000, **params}
        return set(self._found("search", roots, "files", {"pattern": pattern, **given}))

    def globbed(self, *roots: Path) -> set[Path]:
        """All names of files, by one `fs/glob` for each root."""
        given: Json = {"globs": ["*", ".*"], "hidden": True, "ignoreRules": False, "maxFiles": 100_000}
        return set(self._found("glob", roots, "paths", given))

    def _found(self, method: str, roots: Iterable[Path], member: str, params: Json) -> Iterator[Path]:
        for root in roots:
            try:
                page = self.call(method, root, **params)
            except ReplyError:
                continue
            assert page["truncated"] is None, page
            for found in page[member]:
                yield path_of(found["path"] if method == "search" else found)

    def watch(self, root: Path) -> Watch:
        """Watch everything below a root.

        Raises:
            ReplyError: it cannot be watched.
        """
        name = f"view-{next(_WATCHES)}"
        self.call("watch", root, watchId=name, ignoreRules=False)
        return Watch(self.client, name)


class Place:
    """A tree, its folders, and views of it in the sandbox of a policy and without one."""

    def __init__(self, host: Host, policy: str) -> None:
        self.tree = prepare(host, policy)
        self.confined = View(host, sandbox(policy, self.tree))
        self.plain = View(host, None)
        self.folders = [self.tree.base, *(path for path in self.tree.base.rglob("*") if is_folder(path))]
        """Each is a root: a policy may hide a folder and show what is in it."""

    @property
    def readable(self) -> set[Path]:
        """The files that `fs/readFile` reads in the sandbox."""
        return {path for path in files_below(self.tree.base) if self.confined.reads(path)}


class Watch:
    """A watch that is active."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name
        self.changes: list[Json] = []
        """All changes so far."""

    def more(self, wait_ms: int) -> list[Json]:
        """The changes since the last call; waits for the first of them."""
        params = {"watchId": self._name, "afterSeq": len(self.changes), "waitMs": wait_ms}
        page = self._client.call("fs/watchRead", params)
        assert page["nextSeq"] == page["firstSeq"] + len(page["changes"])
        assert page["firstSeq"] == len(self.changes) + 1
        self.changes += page["changes"]
        return list(page["changes"])

    def until(self, path: Path) -> None:
        """Read changes until one is of this path."""
        while not any(path_of(change["path"]) == path for change in self.changes):
            assert self.more(10_000), f"no change of {path}: {self.changes}"

    def paths(self) -> set[Path]:
        """All paths that the changes name."""
        members = (change[name] for change in self.changes for name in ("path", "from") if name in change)
        return {path_of(uri) for uri in members}

    def end(self) -> None:
        """End it."""
        self._client.call("fs/unwatch", {"watchId": self._name})
