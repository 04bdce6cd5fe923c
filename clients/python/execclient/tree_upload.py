"""Copy a tree from this machine to the executor.

list the local tree ──> directories ──> batches of small files, and larger files ──> attributes of directories
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Sequence
from functools import partial

from pybase64 import b64encode

from execclient.connection.connection import Json
from execclient.errors import CallFailed, SystemFailure, TransferFailed
from execclient.local_files import Attributes, read_small
from execclient.results import Copied, TreeCopied
from execclient.trees import (
    GET,
    LINK,
    PUT,
    SMALL_BYTES,
    SPECIAL,
    TreeDirectory,
    TreeFile,
    TreeTransfer,
    batches,
    call_batch,
    entry_failed,
    parts,
    repeated,
    side_by_side,
)


class TreeUpload(TreeTransfer):
    """A copy of a tree from this machine to the executor."""

    async def run(self, local: str, path: str) -> TreeCopied:
        """Copy the tree."""
        try:
            directories, small, large = await self.in_thread(self._listed, local, path)
            self.total_files = len(small) + len(large)
            self.total = sum(file.size for file in (*small, *large))
            self.advance(0)
            made = await self._make_directories(directories)
            self.result.directories = len(directories)
            grown: list[TreeFile] = []
            await side_by_side(
                [
                    *(partial(self._put, batch, grown) for batch in batches(small)),
                    *(partial(self._upload, file) for file in large),
                ]
            )
            await side_by_side([partial(self._upload, file) for file in grown])
            await self._set_attributes(directories, made)
        finally:
            self.stopped.set()
        return self.result

    def _listed(self, local: str, path: str) -> tuple[list[TreeDirectory], list[TreeFile], list[TreeFile]]:
        """List the local tree: its directories, small files, and larger ones."""
        directories = [TreeDirectory(path, Attributes.of(os.stat(local)))]
        small: list[TreeFile] = []
        large: list[TreeFile] = []
        batched = PUT in self.session.capabilities
        waiting = [(local, path, "")]
        while waiting and not self.stopped.is_set():
            here, there, inside = waiting.pop()
            try:
                with os.scandir(here) as scan:
                    entries = sorted(scan, key=lambda entry: entry.name)
            except OSError as error:
                if not inside:
                    raise
                self.leave_out_failed(here, error, remote=False)
                continue
            for entry in entries:
                target = posixpath.join(there, entry.name)
                relative = inside + entry.name
                try:
                    status = self._status(entry, relative)
                except OSError as error:
                    self.leave_out_failed(entry.path, error, remote=False)
                    continue
                if status is None:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    directories.append(TreeDirectory(target, Attributes.of(status)))
                    waiting.append((entry.path, target, relative + "/"))
                else:
                    is_small = batched and status.st_size <= SMALL_BYTES
                    (small if is_small else large).append(TreeFile(entry.path, target, status.st_size))
        return directories, small, large

    def _status(self, entry: os.DirEntry[str], relative: str) -> os.stat_result | None:
        """The status of a file or a directory to copy; None for what is left out."""
        if self.ignore(relative, entry.is_dir()):
            return None
        if entry.is_dir() and entry.is_symlink():
            self.leave_out(entry.path, LINK, remote=False)
        elif not (entry.is_dir() or entry.is_file()):
            self.leave_out(entry.path, SPECIAL, remote=False)
        else:
            return entry.stat()
        return None

    # -- directories

    async def _make_directories(self, directories: Sequence[TreeDirectory]) -> set[str]:
        """Make the directories, accessible to their owner only until their files are there.

        Returns:
            Those that did not exist before.
        """
        top = directories[0].path
        paths = [folder.path for folder in directories]
        existing: set[str] = set()
        if not await self.files.is_dir(top):
            await repeated(partial(self.files.mkdir, posixpath.dirname(top) or ".", parents=True))
        elif {PUT, GET} <= self.session.capabilities:
            existing = await self._existing(paths)
        if {PUT, GET} <= self.session.capabilities:
            for part in parts(paths):
                entries = [{"path": self.files.uri(path), "permissions": 0o700} for path in part]
                outcomes = await call_batch(self.session, PUT, {"entries": entries}, len(part))
                for path, outcome in zip(part, outcomes, strict=True):
                    if "error" in outcome:
                        raise entry_failed(PUT, path, outcome["error"])
            return set(paths) - existing
        return {path for path in paths if await self._make_directory(path)}

    async def _existing(self, paths: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for part in parts(paths):
            uris = [self.files.uri(path) for path in part]
            outcomes = await call_batch(self.session, GET, {"paths": uris, "maxBytes": 0}, len(uris))
            found |= {path for path, outcome in zip(part, outcomes, strict=True) if "error" not in outcome}
        return found

    async def _make_directory(self, path: str) -> bool:
        """Make a directory at a server without batches; whether it is new."""
        if "fs/createDirectory.permissions" not in self.session.capabilities:
            self.result.modes_kept = False
            await self.files.mkdir(path, parents=True)
            return False
        try:
            await self.files.mkdir(path, mode=0o700)
        except SystemFailure:
            if not await self.files.is_dir(path):
                raise
            return False
        return True

    async def _set_attributes(self, directories: Sequence[TreeDirectory], made: set[str]) -> None:
        """Set the attributes of the directories, after their files: a directory may forbid writing, and each
        new name in it changes its time.
        """
        if "fs/setMetadata" not in self.session.capabilities:
            return
        wanted = [folder for folder in reversed(directories) if self.preserve or folder.path in made]
        await side_by_side([partial(self._set_attributes_of, folder) for folder in wanted])

    async def _set_attributes_of(self, folder: TreeDirectory) -> None:
        mode, modified, accessed = folder.attributes
        params = {"path": self.files.uri(folder.path), "permissions": mode}
        if self.preserve:
            params |= {"modifiedAtNs": modified, "accessedAtNs": accessed}
        async with self.budget.taken(0):
            try:
                await self.session.call("fs/setMetadata", params)
            except CallFailed as error:
                self.leave_out_failed(folder.path, error, remote=True)

    # -- files

    async def _upload(self, file: TreeFile) -> None:
        try:
            await self.copy_single(self.files.upload, file)
        except CallFailed as error:
            self.leave_out_failed(file.destination, error, remote=True)
        except (OSError, TransferFailed) as error:
            self.leave_out_failed(file.source, error, remote=False)

    async def _put(self, batch: Sequence[TreeFile], grown: list[TreeFile]) -> None:
        """Send a batch of small files. Files that are no longer small are added to `grown`."""
        async with self.budget.taken(sum(file.size for file in batch)):
            entries = await self.in_thread(self._read, batch, grown)
            if not entries:
                return
            params = {"entries": [entry for _, entry in entries], "keepMode": not self.preserve}
            outcomes = await call_batch(self.session, PUT, params, len(entries))
        for (file, _), outcome in zip(entries, outcomes, strict=True):
            if "error" in outcome:
                failed = entry_failed(PUT, file.destination, outcome["error"])
                self.leave_out_failed(file.destination, failed, remote=True)
                continue
            self.note_copied(file.destination, Copied(file.size, bool(outcome.get("inPlace"))))
            self.advance(file.size)

    def _read(
        self, batch: Sequence[TreeFile], grown: list[TreeFile]
    ) -> list[tuple[TreeFile, dict[str, Json]]]:
        """Read the files of a batch, in a thread."""
        entries: list[tuple[TreeFile, dict[str, Json]]] = []
        for file in batch:
            if self.stopped.is_set():
                break
            try:
                found = read_small(file.source, SMALL_BYTES)
            except OSError as error:
                self.leave_out_failed(file.source, error, remote=False)
                continue
            if found is None:
                grown.append(file)
                continue
            content, (mode, modified, accessed) = found
            entry: dict[str, Json] = {
                "path": self.files.uri(file.destination),
                "permissions": mode,
                "dataBase64": b64encode(content).decode(),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
            if self.preserve:
                entry |= {"modifiedAtNs": modified, "accessedAtNs": accessed}
            entries.append((file._replace(size=len(content)), entry))
        return entries
