"""Adds rules to a file that other programs may read and write at the same time.

Rules kept in this file:

1. The file is replaced atomically: no reader sees half a line, and a kill leaves the old or the new content.
   The temporary file that a kill may leave has no name of a rule file, and the next writer overwrites it.
2. A writer holds an exclusive lock on the file that it replaces. If the file was replaced while the writer
   waited for the lock, it opens and locks the new file.
3. A link is followed, and its target is replaced.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from execclient.govern.network import host_and_port
from execclient.govern.policy.rule_files import MAX_FILE_BYTES
from execclient.govern.policy.rules import NetworkRule

NEW_FILE_MODE = 0o600
"""A user who may write this file decides what runs without an approval. An existing file keeps its mode."""

NEW_FOLDER_MODE = 0o700


def append_rule(file: Path, line: str) -> bool:
    """Add the line of a rule, and sync it to the disk.

    Waits for other writers of the file, each of which takes milliseconds.

    Args:
        file: a rule file; created with its folder if it is missing.
        line: from `allow_rule` or `network_rule`.

    Returns:
        False if the file had the same line before.

    Raises:
        OSError: the file cannot be written, or would be larger than a rule file may be; it is unchanged.
    """
    target = Path(os.path.realpath(file))
    target.parent.mkdir(mode=NEW_FOLDER_MODE, parents=True, exist_ok=True)
    with _locked(target) as (content, state):
        if line.encode() in content.splitlines():
            return False
        separator = b"" if not content or content.endswith(b"\n") else b"\n"
        amended = content + separator + line.encode() + b"\n"
        if len(amended) > MAX_FILE_BYTES:  # it could not be loaded
            raise OSError(errno.EFBIG, f"would be larger than {MAX_FILE_BYTES >> 20} MiB", str(file))
        _replace(target, amended, state)
    return True


def allow_rule(prefix: Sequence[str]) -> str:
    """The line of a rule file that allows all commands with a prefix.

    Raises:
        ValueError: the prefix is empty, or not text that a rule file can hold.
    """
    if not prefix:
        raise ValueError("prefix: a rule needs at least one argument")
    return f'prefix_rule(pattern=[{", ".join(_quoted(each) for each in prefix)}], decision="allow")'


def network_rule(rule: NetworkRule) -> str:
    """The line of a rule file with a decision on a host; without a justification.

    Raises:
        ValueError: the host is not text that a rule file can hold.
    """
    host = _quoted(host_and_port(rule.host, rule.port), "host")
    return f'network_rule(host={host}, protocol="{rule.protocol}", decision="{rule.decision}")'


def _quoted(argument: str, name: str = "prefix") -> str:
    if any(0xD800 <= ord(each) <= 0xDFFF for each in argument):
        raise ValueError(f"{name}: {argument!r} is not text, and a rule file is")
    quoted = json.dumps(argument, ensure_ascii=False)
    # Invisible characters could hide in the line, or break it for other readers.
    return "".join(each if each.isprintable() else _escaped(each) for each in quoted)


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


@contextmanager
def _locked(target: Path) -> Iterator[tuple[bytes, os.stat_result]]:
    """Lock a file against other writers; yields its content and status."""
    while True:
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, NEW_FILE_MODE)
        with open(descriptor, "rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if not _is_still(target, descriptor):
                continue
            yield stream.read(), os.fstat(descriptor)
            return


def _is_still(target: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(target), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _replace(target: Path, content: bytes, state: os.stat_result) -> None:
    """Replace the file. Only under the lock, since the name of the temporary file is fixed."""
    new = target.with_name(f".{target.name}.new")
    try:
        descriptor = os.open(
            new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, NEW_FILE_MODE
        )
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            _take_after(stream.fileno(), state)
            os.fsync(stream.fileno())
        new.replace(target)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _take_after(descriptor: int, state: os.stat_result) -> None:
    """Copy the mode, and as root the owner."""
    if os.geteuid() == 0:
        os.fchown(descriptor, state.st_uid, state.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(state.st_mode))


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
