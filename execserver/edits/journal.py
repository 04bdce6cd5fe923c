"""The journal of `fs/applyEdits`: intentions on disk, so that a later daemon can complete a transaction.

Rules kept in this file:

1. Each transaction has an entry: a file in a folder that all daemons of the state folder share. The entry is
   made before any other file of the transaction, and removed after all of them.
2. An entry is only appended to: one line of JSON for each state, durable before the state begins. A torn line
   is ignored. So a kill at any point leaves an entry that is true:

       {"state": "staging", "policy": …, "files": [...], "folders": [...]}   there may be temporary files
       {"state": "forward", "steps": [...], "touched": [...]}                all is staged: do the steps
       {"state": "back"}                                                     a step failed: undo them
       {"state": "done"}                                                     remove the temporary files

3. The daemon that carries out a transaction holds an exclusive lock (flock) on the entry, which ends with the
   process. An unlocked entry belongs to the next daemon that locks it. Entries are made, and looked for, only
   under the lock of the folder.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from execprotocol.errors import InternalError, file_error
from execserver.filesystem.edit_model import Step, path_from_json, path_to_json
from execserver.private_folder import FolderError, lock, lock_folder, open_private
from execserver.sandbox.policy import Access, Glob, Policy, Rule

FOLDER = "edits"
"""In the state folder. The server lists it before it imports this module."""
_LOCK = "lock"

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

_VERSION = 1
"""Of the format. A daemon leaves entries of another version alone."""

State = Literal["staging", "forward", "back", "done"]


class UnknownEntryError(Exception):
    """An entry that this version cannot read. It stays on disk."""


@dataclass(slots=True)
class EntryContents:
    """The contents of an entry."""

    policy: Policy | None
    """The policy of the request; None for no limits."""

    files: list[str]
    """Our temporary files, which must be gone in the end."""

    folders: list[str]
    """Our temporary folders, innermost first."""

    state: State = "staging"
    steps: list[Step] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    """Folders in which names change."""


class JournalEntry:
    """An entry that this process has locked. Its methods block."""

    def __init__(self, folder: int, name: str, descriptor: int, contents: EntryContents) -> None:
        self.contents = contents
        self.name = name
        self._folder = folder
        self._descriptor = descriptor

    def forward(self, steps: Sequence[Step], touched: Sequence[str]) -> None:
        """All files are staged: from now on the steps will be done.

        Raises:
            OSError: the line is not durable, and the steps will not be done.
        """
        self._append(
            {
                "state": "forward",
                "steps": [step.to_json() for step in steps],
                "touched": [path_to_json(folder) for folder in touched],
            }
        )
        self.contents.state, self.contents.steps = "forward", list(steps)
        self.contents.touched = list(touched)

    def back(self) -> None:
        """The steps will be undone.

        Raises:
            OSError: the line is not durable.
        """
        self._append({"state": "back"})
        self.contents.state = "back"

    def done(self) -> None:
        """The steps are done, and durable.

        Raises:
            OSError: the line is not durable.
        """
        self._append({"state": "done"})
        self.contents.state = "done"

    def remove(self) -> None:
        """Remove the entry: no temporary file is left.

        Raises:
            OSError: it was not removed, and will be found again.
        """
        try:
            os.unlink(self.name, dir_fd=self._folder)
            os.fsync(self._folder)
        finally:
            self.leave()

    def leave(self) -> None:
        """Close the entry, and leave it to the next daemon (idempotent)."""
        for fd in (self._descriptor, self._folder):
            if fd >= 0:
                os.close(fd)
        self._descriptor = self._folder = -1

    def _append(self, line: dict[str, object]) -> None:
        size = os.fstat(self._descriptor).st_size
        try:
            data = memoryview(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            while data:
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)
        except OSError:
            # The next line must not be appended to a torn one.
            with suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise


class Journal:
    """All entries in a state folder. Methods block.

    Args:
        folder: the state folder. It is not opened yet.
    """

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{FOLDER}"

    def begin(self, contents: EntryContents) -> JournalEntry:
        """Make the entry of a new transaction.

        Raises:
            RpcError: it cannot be made. No entry is left then.
        """
        try:
            with self._locked() as folder:
                name = secrets.token_hex(8)
                descriptor = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
                lock(descriptor)
                entry = JournalEntry(os.dup(folder), name, descriptor, contents)
            try:
                entry._append(_first_line(contents))  # noqa: SLF001  two classes of one format
                os.fsync(entry._folder)  # noqa: SLF001
            except OSError:
                entry.remove()
                raise
        except OSError as error:
            raise file_error(error) from None
        return entry

    def take_unfinished(self, own: Collection[str]) -> tuple[list[JournalEntry], list[str], bool]:
        """Lock and return the entries that dead daemons have left.

        Args:
            own: names of the entries that this daemon has.

        Returns:
            The entries; the names of those that this version cannot read; whether another daemon, which may
            be about to end, has locked some.

        Raises:
            RpcError: the folder cannot be used.
        """
        found: list[JournalEntry] = []
        unknown: list[str] = []
        locked = False
        if not os.path.isdir(self._path):
            return found, unknown, locked
        with self._locked() as folder:
            for name in sorted(os.listdir(folder)):
                if name == _LOCK or name in own:
                    continue
                try:
                    entry = _take(folder, name)
                except BlockingIOError:
                    locked = True
                except (OSError, UnknownEntryError):
                    unknown.append(name)
                else:
                    found += [entry] if entry is not None else []
        return found, unknown, locked

    @contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            folder = open_private(self._path)
        except FolderError as error:
            raise InternalError(f"no place for the record of edits: {error}") from None
        try:
            guard = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder)
            try:
                lock_folder(guard, self._path)
                yield folder
            finally:
                os.close(guard)
        except FolderError as error:
            raise InternalError(str(error)) from None
        finally:
            os.close(folder)


def _take(folder: int, name: str) -> JournalEntry | None:
    """Lock and read an entry; None if its transaction had not begun, and then the entry is removed.

    Raises:
        BlockingIOError: another process has locked it.
        UnknownEntryError: this version cannot read it.
        OSError: it is no entry.
    """
    descriptor = os.open(name, _FLAGS, dir_fd=folder)
    try:
        if not lock(descriptor):
            raise BlockingIOError
        contents = _read(descriptor)
        if contents is not None:
            return JournalEntry(os.dup(folder), name, descriptor, contents)
        os.unlink(name, dir_fd=folder)
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _first_line(contents: EntryContents) -> dict[str, object]:
    return {
        "version": _VERSION,
        "state": "staging",
        "policy": None if contents.policy is None else _policy_json(contents.policy),
        "files": [path_to_json(path) for path in contents.files],
        "folders": [path_to_json(path) for path in contents.folders],
    }


def _read(descriptor: int) -> EntryContents | None:
    """Read an entry, and remove a torn line; None if the first line is torn."""
    with open(os.dup(descriptor), "rb") as file:
        file.seek(0)
        lines = file.read().split(b"\n")[:-1]
    contents: EntryContents | None = None
    whole = 0
    for index, line in enumerate(lines):
        try:
            fields = json.loads(line)
        except ValueError:
            break  # a torn line, which is the last one
        whole += len(line) + 1
        try:
            if index == 0:
                contents = _first_contents(fields)
            elif contents is not None:
                _advance(contents, fields)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnknownEntryError(str(error)) from None
    os.ftruncate(descriptor, whole)
    return contents


def _first_contents(fields: dict[str, object]) -> EntryContents:
    if fields["version"] != _VERSION:
        raise ValueError("of another version")
    policy, files, folders = fields["policy"], fields["files"], fields["folders"]
    if not isinstance(files, list) or not isinstance(folders, list):
        raise TypeError("no lists")
    return EntryContents(
        None if policy is None else _policy(policy),
        [path_from_json(path) for path in files],
        [path_from_json(path) for path in folders],
    )


def _advance(contents: EntryContents, fields: dict[str, object]) -> None:
    state = fields["state"]
    if state not in ("forward", "back", "done"):
        raise ValueError("an unknown state")
    contents.state = state
    if state == "forward":
        steps, touched = fields["steps"], fields["touched"]
        if not isinstance(steps, list) or not isinstance(touched, list):
            raise TypeError("no lists")
        contents.steps = [Step.from_json(step) for step in steps]
        contents.touched = [path_from_json(path) for path in touched]


def _policy_json(policy: Policy) -> dict[str, object]:
    return {
        "network": policy.network,
        "rules": [[path_to_json(rule.path), int(rule.access), rule.skip_missing] for rule in policy.rules],
        "minimal": policy.minimal,
        "globs": [[path_to_json(glob.pattern), int(glob.access)] for glob in policy.globs],
        "glob_depth": policy.glob_depth,
    }


def _policy(fields: object) -> Policy:
    if not isinstance(fields, dict):
        raise TypeError("no policy")
    return Policy(
        unrestricted=False,
        network=bool(fields["network"]),
        rules=tuple(
            Rule(path_from_json(path), Access(access), bool(skip)) for path, access, skip in fields["rules"]
        ),
        minimal=bool(fields["minimal"]),
        globs=tuple(Glob(path_from_json(pattern), Access(access)) for pattern, access in fields["globs"]),
        glob_depth=fields["glob_depth"],
    )
