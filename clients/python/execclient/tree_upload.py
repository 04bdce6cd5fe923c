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

from execclient.connection.connection import Json
from execclient.errors import CallFailed, TransferFailed
from execclient.file_session import repeated
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
    side_by_side,
)
from execprotocol.limits import MAX_BATCH_BYTES


class TreeUpload(TreeTransfer):
    """A copy of a tree from this machine to the executor."""

    async def run(self, local: str, path: str) -> TreeCopied:
        """Copy the tree."""
        self._blocked: tuple[str, ...] = ()
        """The beginnings of paths below directories that could not be made."""
        self._grown: list[TreeFile] = []
        """Files that were small when they were listed."""
        try:
            directories, small, large = await self.in_thread(self._listed, local, path.rstrip("/") or "/")
            self.total_files = len(small) + len(large)
            self.total = sum(file.size for file in (*small, *large))
            self.advance(0)
            made = await self._make_directories(directories)
            await side_by_side(
                [
                    *(partial(self._put, batch) for batch in batches(self._reachable(small))),
                    *(partial(self._upload, file) for file in self._reachable(large)),
                ]
            )
            await side_by_side([partial(self._upload, file) for file in self._grown])
            await self._set_attributes(directories, made)
        finally:
            self.stopped.set()
        return self.result

    def _reachable(self, files: Sequence[TreeFile]) -> list[TreeFile]:
        return [file for file in files if not file.destination.startswith(self._blocked)]

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
            Those that did not exist before. Those that cannot be made are left out, with all below them.

        Raises:
            CallFailed: the top cannot be made.
        """
        top = directories[0].path
        paths = [folder.path for folder in directories]
        existing: set[str] = set()
        is_batched = {PUT, GET} <= self.session.capabilities
        if not await self.files.is_dir(top):
            await repeated(partial(self.files.mkdir, posixpath.dirname(top) or ".", parents=True))
        elif is_batched:
            existing = await self._existing(paths)
        failed: dict[str, CallFailed] = {}
        if is_batched:
            made = set(paths) - existing
            for part in parts(paths):
                failed |= await self._make_batch(part)
        else:
            made = {path for path in paths if await self._make_directory(path, failed)}
        for path, error in failed.items():
            if path == top:
                raise error
            if not path.startswith(self._blocked):
                self.leave_out_failed(path, error, remote=True)
                self._blocked += (f"{path}/",)
        self.result.directories = len(paths) - len(failed)
        return made - failed.keys()

    async def _make_batch(self, paths: Sequence[str]) -> dict[str, CallFailed]:
        """Make directories; the errors of those that could not be made."""
        entries = [{"path": self.files.uri(path), "permissions": 0o700} for path in paths]
        outcomes = await call_batch(self.session, PUT, {"entries": entries}, len(paths))
        return {
            path: entry_failed(PUT, path, outcome["error"])
            for path, outcome in zip(paths, outcomes, strict=True)
            if "error" in outcome
        }

    async def _existing(self, paths: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for part in parts(paths):
            uris = [self.files.uri(path) for path in part]
            outcomes = await call_batch(self.session, GET, {"paths": uris, "maxBytes": 0}, len(uris))
            found |= {path for path, outcome in zip(part, outcomes, strict=True) if "error" not in outcome}
        return found

    async def _make_directory(self, path: str, failed: dict[str, CallFailed]) -> bool:
        """Make a directory at a server without batches; whether it is new. An error is added to `failed`."""
        has_modes = "fs/createDirectory.permissions" in self.session.capabilities
        self.result.modes_kept &= has_modes
        try:
            await self.files.mkdir(path, mode=0o700 if has_modes else None)
        except CallFailed as error:
            try:
                is_there = await self.files.is_dir(path)
            except CallFailed:
                is_there = False
            if not is_there:
                failed[path] = error
            return False
        return has_modes

    async def _set_attributes(self, directories: Sequence[TreeDirectory], made: set[str]) -> None:
        """Set the attributes of the directories, after their files: a directory may forbid writing, and each
        new name in it changes its time.
        """
        if "fs/setMetadata" not in self.session.capabilities:
            return
        wanted = [
            folder
            for folder in reversed(directories)
            if (self.preserve and not f"{folder.path}/".startswith(self._blocked)) or folder.path in made
        ]
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

    async def _put(self, batch: Sequence[TreeFile]) -> None:
        """Send a batch of small files."""
        async with self.budget.taken(sum(file.size for file in batch)):
            entries = await self.in_thread(self._read, batch)
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

    def _read(self, batch: Sequence[TreeFile]) -> list[tuple[TreeFile, dict[str, Json]]]:
        """Read the files of a batch, in a thread. Those that have grown beyond it are kept for later."""
        left = MAX_BATCH_BYTES
        entries: list[tuple[TreeFile, dict[str, Json]]] = []
        for file in batch:
            if self.stopped.is_set():
                break
            try:
                found = read_small(file.source, min(SMALL_BYTES, left))
            except OSError as error:
                self.leave_out_failed(file.source, error, remote=False)
                continue
            if found is None:
                self._grown.append(file)
                continue
            content, (mode, modified, accessed) = found
            left -= len(content)
            entry: dict[str, Json] = {
                "path": self.files.uri(file.destination),
                "permissions": mode,
                "dataBase64": content,
                "sha256": hashlib.sha256(content).hexdigest(),
            }
            if self.preserve:
                entry |= {"modifiedAtNs": modified, "accessedAtNs": accessed}
            entries.append((file._replace(size=len(content)), entry))
        return entries
