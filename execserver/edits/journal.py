"""What `fs/applyEdits` is about to do, on disk, so that whoever comes after a dead daemon can end it.

Rules kept in this file:

1. There is a file for each request that has begun, in a folder that all daemons of the state folder share. It
   is there before anything of the request is, and goes when nothing of it is left.
2. It is only appended to, a line of JSON for each state, and each line is durable before what it speaks of is
   begun. A torn line counts as none. So a kill at any point leaves what was true before or after the state:

       {"state": "staging", "policy": …, "files": [...], "folders": [...]}   new files may lie about
       {"state": "forward", "steps": [...], "touched": [...]}                all is there: do the steps
       {"state": "back"}                                                     one failed: undo them
       {"state": "done"}                                                     done; remove what is left of ours

3. The daemon that works at a request holds an exclusive lock (flock) on its file, which the kernel drops at
   its death. A file that nobody has locked belongs to whoever locks it next. Files are made, and looked
   for, only under the lock of the folder.
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
from execserver.filesystem.edit_model import Step, packed, unpacked
from execserver.private_folder import FolderError, lock, lock_folder, open_private
from execserver.sandbox.policy import Access, Glob, Policy, Rule

FOLDER = "edits"
"""Of the state folder. The server looks into it before it imports this module."""
_LOCK = "lock"

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

_VERSION = 1
"""Of the lines. A daemon leaves what it does not know to one that does."""

State = Literal["staging", "forward", "back", "done"]


class UnknownRecordError(Exception):
    """A record that this version cannot read; it stays."""


@dataclass(slots=True)
class Contents:
    """What a record says."""

    policy: Policy | None
    """Under which all is to be done; None for no limits."""

    files: list[str]
    """Names of ours, which must not be there in the end."""

    folders: list[str]
    """The same for folders, innermost first."""

    state: State = "staging"
    steps: list[Step] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    """Folders in which names change."""


class Record:
    """A record that is ours. Its methods block."""

    def __init__(self, folder: int, name: str, descriptor: int, contents: Contents) -> None:
        self.contents = contents
        self.name = name
        self._folder = folder
        self._descriptor = descriptor

    def forward(self, steps: Sequence[Step], touched: Sequence[str]) -> None:
        """All is there that the steps need: from now on they will be done.

        Raises:
            OSError: that could not be made durable. They will not.
        """
        self._append(
            {
                "state": "forward",
                "steps": [step.to_json() for step in steps],
                "touched": [packed(folder) for folder in touched],
            }
        )
        self.contents.state, self.contents.steps = "forward", list(steps)
        self.contents.touched = list(touched)

    def back(self) -> None:
        """The steps will be undone.

        Raises:
            OSError: that could not be made durable.
        """
        self._append({"state": "back"})
        self.contents.state = "back"

    def done(self) -> None:
        """The steps are done, durably.

        Raises:
            OSError: that could not be made durable.
        """
        self._append({"state": "done"})
        self.contents.state = "done"

    def remove(self) -> None:
        """Nothing is left of the request.

        Raises:
            OSError: it could not be removed, and will be found again.
        """
        try:
            os.unlink(self.name, dir_fd=self._folder)
            os.fsync(self._folder)
        finally:
            self.leave()

    def leave(self) -> None:
        """Leave it to the next start of a daemon (idempotent)."""
        for number in (self._descriptor, self._folder):
            if number >= 0:
                os.close(number)
        self._descriptor = self._folder = -1

    def _append(self, line: dict[str, object]) -> None:
        size = os.fstat(self._descriptor).st_size
        try:
            data = memoryview(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            while data:
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)
        except OSError:
            # What follows must not be joined to a torn line.
            with suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise


class Records:
    """The records in a state folder. Methods block.

    Args:
        folder: the state folder. Nothing is opened yet.
    """

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{FOLDER}"

    def begin(self, contents: Contents) -> Record:
        """Make a record of a request that is about to make its first file.

        Raises:
            RpcError: it cannot be made; there is none then.
        """
        try:
            with self._locked() as folder:
                name = secrets.token_hex(8)
                descriptor = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
                lock(descriptor)
                record = Record(os.dup(folder), name, descriptor, contents)
            try:
                record._append(_first_line(contents))  # noqa: SLF001  one thing in two classes
                os.fsync(record._folder)  # noqa: SLF001
            except OSError:
                record.remove()
                raise
        except OSError as error:
            raise file_error(error) from None
        return record

    def left(self, own: Collection[str]) -> tuple[list[Record], list[str], bool]:
        """What dead daemons left, and is ours from now on.

        Args:
            own: names of records that this daemon works at.

        Returns:
            The records; the names of those that were not understood; whether there are some that a daemon
            that lives, or dies just now, has locked.

        Raises:
            RpcError: the folder cannot be used.
        """
        found: list[Record] = []
        unknown: list[str] = []
        locked = False
        if not os.path.isdir(self._path):
            return found, unknown, locked
        with self._locked() as folder:
            for name in sorted(os.listdir(folder)):
                if name == _LOCK or name in own:
                    continue
                try:
                    record = _taken(folder, name)
                except BlockingIOError:
                    locked = True
                except (OSError, UnknownRecordError):
                    unknown.append(name)
                else:
                    found += [record] if record is not None else []
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


def _taken(folder: int, name: str) -> Record | None:
    """A record that is ours from now on; None when nothing had begun yet, and then it is removed.

    Raises:
        BlockingIOError: somebody else has it.
        UnknownRecordError: it is not understood.
        OSError: it is no record.
    """
    descriptor = os.open(name, _FLAGS, dir_fd=folder)
    try:
        if not lock(descriptor):
            raise BlockingIOError
        contents = _read(descriptor)
        if contents is not None:
            return Record(os.dup(folder), name, descriptor, contents)
        os.unlink(name, dir_fd=folder)
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _first_line(contents: Contents) -> dict[str, object]:
    return {
        "version": _VERSION,
        "state": "staging",
        "policy": None if contents.policy is None else _policy_json(contents.policy),
        "files": [packed(path) for path in contents.files],
        "folders": [packed(path) for path in contents.folders],
    }


def _read(descriptor: int) -> Contents | None:
    """What a record's file says; None when its first line was never whole. A torn line is cut off."""
    with open(os.dup(descriptor), "rb") as file:
        file.seek(0)
        lines = file.read().split(b"\n")[:-1]
    contents: Contents | None = None
    whole = 0
    for number, line in enumerate(lines):
        try:
            said = json.loads(line)
        except ValueError:
            break  # torn, and so the last one
        whole += len(line) + 1
        try:
            if number == 0:
                contents = _begun(said)
            elif contents is not None:
                _advance(contents, said)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnknownRecordError(str(error)) from None
    os.ftruncate(descriptor, whole)
    return contents


def _begun(said: dict[str, object]) -> Contents:
    if said["version"] != _VERSION:
        raise ValueError("of another version")
    policy, files, folders = said["policy"], said["files"], said["folders"]
    if not isinstance(files, list) or not isinstance(folders, list):
        raise TypeError("no lists")
    return Contents(
        None if policy is None else _policy(policy),
        [unpacked(path) for path in files],
        [unpacked(path) for path in folders],
    )


def _advance(contents: Contents, said: dict[str, object]) -> None:
    state = said["state"]
    if state not in ("forward", "back", "done"):
        raise ValueError("an unknown state")
    contents.state = state
    if state == "forward":
        steps, touched = said["steps"], said["touched"]
        if not isinstance(steps, list) or not isinstance(touched, list):
            raise TypeError("no lists")
        contents.steps = [Step.from_json(step) for step in steps]
        contents.touched = [unpacked(path) for path in touched]


def _policy_json(policy: Policy) -> dict[str, object]:
    return {
        "network": policy.network,
        "rules": [[packed(rule.path), int(rule.access), rule.skip_missing] for rule in policy.rules],
        "minimal": policy.minimal,
        "globs": [[packed(glob.pattern), int(glob.access)] for glob in policy.globs],
        "glob_depth": policy.glob_depth,
    }


def _policy(said: object) -> Policy:
    if not isinstance(said, dict):
        raise TypeError("no policy")
    return Policy(
        unrestricted=False,
        network=bool(said["network"]),
        rules=tuple(Rule(unpacked(path), Access(access), bool(skip)) for path, access, skip in said["rules"]),
        minimal=bool(said["minimal"]),
        globs=tuple(Glob(unpacked(pattern), Access(access)) for pattern, access in said["globs"]),
        glob_depth=said["glob_depth"],
    )
