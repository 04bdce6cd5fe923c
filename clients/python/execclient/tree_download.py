"""Copy a tree from the executor to this machine.

list level by level, with batches of small files ──> larger files ──> attributes of directories
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pybase64 import b64decode

from execclient.errors import CallFailed, NotFound, TransferFailed
from execclient.local_files import Attributes, set_attributes, write_small
from execclient.results import Copied, Stat, TreeCopied
from execclient.session.session import INVALID_VALUE_ERRORS
from execclient.trees import (
    BATCH_BYTES,
    GET,
    GONE,
    LINK,
    MAX_PATH_BYTES,
    SMALL_BYTES,
    SPECIAL,
    TreeDirectory,
    TreeFile,
    TreeTransfer,
    batches,
    call_batch,
    entry_failed,
    entry_stat,
    invalid_entry,
    parts,
    side_by_side,
)

_GUESSED_BYTES = 16 << 10
"""Of content for each name of a directory, in the first request. Larger files are requested once more."""


class _Folder(NamedTuple):
    """A directory of the tree."""

    source: str
    destination: str
    inside: str
    """The path relative to the top, with a slash at its end; empty for the top."""
    attributes: Attributes


class _Found(NamedTuple):
    """A path that the server has described."""

    file: TreeFile
    stat: Stat
    data: bytes | None
    """The content, if it is a small file."""
    sha256: str
    """Of the content, as the server computed it."""


class TreeDownload(TreeTransfer):
    """A copy of a tree from the executor to this machine."""

    async def run(self, path: str, local: str) -> TreeCopied:
        """Copy the tree."""
        self._batched = GET in self.session.capabilities
        self._small: list[TreeFile] = []
        self._large: list[TreeFile] = []
        self._made: list[tuple[TreeDirectory, bool]] = []
        try:
            top = await self.files.stat(path)
            if not top.is_dir:
                raise TransferFailed(f"{path}: not a directory")
            self._depth = await self.in_thread(_make_parents, local)
            level = [_Folder(path, local, "", _attributes(top))]
            while level:
                made = await self.in_thread(self._make_directories, level)
                self._below: list[_Folder] = []
                await side_by_side([partial(self._list, folder) for folder in made])
                level = self._below
            self.total_files = self.result.files + len(self._small) + len(self._large)
            self.total = self.done + sum(file.size for file in (*self._small, *self._large))
            self.advance(0)
            await side_by_side([partial(self._get_small, batch) for batch in batches(self._small)])
            await side_by_side([partial(self._download, file) for file in self._large])
            await self.in_thread(self._set_attributes)
        finally:
            self.stopped.set()
        return self.result

    # -- directories

    def _make_directories(self, level: Sequence[_Folder]) -> list[_Folder]:
        """Make directories, accessible to their owner only until their files are there.

        Returns:
            Those that are there. The others are left out, with all below them.

        Raises:
            OSError: the top cannot be made.
        """
        made = []
        for folder in level:
            mode = folder.attributes.mode
            try:
                os.mkdir(folder.destination, 0o777 if mode is None else 0o700)
                new = True
            except OSError as error:
                if not os.path.isdir(folder.destination):
                    if not folder.inside:
                        raise
                    self.leave_out_failed(folder.destination, error, remote=False)
                    continue
                new = False
            made.append(folder)
            self._made.append((TreeDirectory(folder.destination, folder.attributes), new))
            self.result.directories += 1
        return made

    def _set_attributes(self) -> None:
        """Set the attributes of the directories, after their files: a directory may forbid writing, and each
        new name in it changes its time.
        """
        for folder, new in reversed(self._made):
            mode, modified, accessed = folder.attributes
            if self.preserve:
                wanted = Attributes(mode, modified, accessed)
            elif new:
                wanted = Attributes(mode)
            else:
                continue
            try:
                set_attributes(folder.path, wanted)
            except OSError as error:
                self.leave_out_failed(folder.path, error, remote=False)

    async def _list(self, folder: _Folder) -> None:
        """List a directory, and take the small files of it."""
        try:
            async with self.budget.taken(0):
                entries = await self.files.iterdir(folder.source)
        except CallFailed as error:
            if not folder.inside:
                raise
            self.leave_out_failed(folder.source, error, remote=True)
            return
        names = sorted(
            each.name for each in entries if not self.ignore(folder.inside + each.name, each.is_dir)
        )
        for name in names:
            if self._depth + len(os.fsencode(folder.inside + name)) >= MAX_PATH_BYTES:
                raise TransferFailed(f"{folder.source}/{name}: the path is too long for a copy here")
        if self._batched:
            await side_by_side([partial(self._take_names, folder, part) for part in parts(names)])
        else:
            await side_by_side([partial(self._take_name, folder, name) for name in names])

    async def _take_names(self, folder: _Folder, names: Sequence[str]) -> None:
        files = [_child(folder, name) for name in names]
        most = min(BATCH_BYTES, len(files) * _GUESSED_BYTES)
        async with self.budget.taken(most):
            found = await self._get(files, most)
            wanted = [each for each in found if self._is_file(folder, each.file, each.stat)]
            for each in wanted:
                if each.data is None:
                    is_small = 0 < each.file.size <= SMALL_BYTES
                    (self._small if is_small else self._large).append(each.file)
            await self._write([each for each in wanted if each.data is not None])

    async def _take_name(self, folder: _Folder, name: str) -> None:
        """`_take_names` at a server without batches."""
        file = _child(folder, name)
        try:
            async with self.budget.taken(0):
                stat = await self.files.stat(file.source)
        except CallFailed as error:
            self._leave_out_gone(file.source, error)
            return
        if self._is_file(folder, file, stat):
            self._large.append(file._replace(size=stat.size))

    def _is_file(self, folder: _Folder, file: TreeFile, stat: Stat) -> bool:
        """Whether it is a regular file; a directory is listed in the next level."""
        if stat.is_dir and stat.is_symlink:
            self.leave_out(file.source, LINK, remote=True)
        elif stat.is_dir:
            inside = folder.inside + posixpath.basename(file.source) + "/"
            self._below.append(_Folder(file.source, file.destination, inside, _attributes(stat)))
        elif not stat.is_file:
            self.leave_out(file.source, SPECIAL, remote=True)
        return stat.is_file

    def _leave_out_gone(self, path: str, error: CallFailed) -> None:
        # Names on the wire are text (F25): the bytes of a name that is not UTF-8 are lost.
        if isinstance(error, NotFound):
            self.leave_out(path, GONE, remote=True)
        else:
            self.leave_out_failed(path, error, remote=True)

    # -- files

    async def _get(self, files: Sequence[TreeFile], most: int) -> list[_Found]:
        """Request files; those that cannot be described or read are left out."""
        params = {"paths": [self.files.uri(file.source) for file in files], "maxBytes": most}
        found = []
        for file, entry in zip(files, await call_batch(self.session, GET, params, len(files)), strict=True):
            if "error" in entry:
                self._leave_out_gone(file.source, entry_failed(GET, file.source, entry["error"]))
            else:
                found.append(_found(file, entry))
        return found

    async def _get_small(self, batch: Sequence[TreeFile]) -> None:
        """Request files whose size is known."""
        async with self.budget.taken(BATCH_BYTES):
            found = await self._get(batch, BATCH_BYTES)
            self._large += [each.file for each in found if each.data is None]  # they have grown
            await self._write([each for each in found if each.data is not None])

    async def _write(self, arrived: Sequence[_Found]) -> None:
        outcomes = await self.in_thread(self._written, arrived)
        for found, outcome in zip(arrived, outcomes, strict=True):
            file = found.file
            if outcome is None:
                self._large.append(file)
            elif isinstance(outcome, OSError):
                self.leave_out_failed(file.destination, outcome, remote=False)
            else:
                size = len(found.data or b"")
                self.note_copied(file.destination, Copied(size, outcome))
                self.advance(size)

    def _written(self, arrived: Sequence[_Found]) -> list[bool | OSError | None]:
        """Write files, in a thread.

        Returns:
            Whether each was written in place. None if it must be copied by itself: it was changed while the
            server read it, or a device or a FIFO is at its destination.
        """
        outcomes: list[bool | OSError | None] = []
        for found in arrived:
            if self.stopped.is_set():
                break
            try:
                outcomes.append(self._written_one(found))
            except OSError as error:
                outcomes.append(error)
        return outcomes

    def _written_one(self, found: _Found) -> bool | None:
        data = found.data or b""
        if hashlib.sha256(data).hexdigest() != found.sha256:
            return None
        attributes = _attributes(found.stat)
        preserved = attributes if self.preserve else None
        return write_small(found.file.destination, data, attributes.mode, preserved)

    async def _download(self, file: TreeFile) -> None:
        try:
            await self.copy_single(self.files.download, file)
        except (CallFailed, TransferFailed) as error:
            self.leave_out_failed(file.source, error, remote=True)
        except OSError as error:
            self.leave_out_failed(file.destination, error, remote=False)


def _make_parents(local: str) -> int:
    """Make the folder above the copy; the length of the copy's absolute path, with a slash."""
    path = os.path.abspath(local)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return len(os.fsencode(path)) + 1


def _child(folder: _Folder, name: str) -> TreeFile:
    return TreeFile(posixpath.join(folder.source, name), os.path.join(folder.destination, name), 0)


def _found(file: TreeFile, entry: dict[str, Any]) -> _Found:
    """An entry of the result of `fs/getFiles`.

    Raises:
        ProtocolFault: it is not of the protocol.
    """
    try:
        stat = entry_stat(entry)
        data = b64decode(entry["dataBase64"], validate=True) if "dataBase64" in entry else None
        return _Found(file._replace(size=stat.size), stat, data, str(entry.get("sha256")))
    except INVALID_VALUE_ERRORS as error:
        raise invalid_entry(GET, error) from error


def _attributes(stat: Stat) -> Attributes:
    mode = None if stat.mode is None else stat.mode & 0o777
    return Attributes(mode, stat.modified_ns, stat.accessed_ns)
