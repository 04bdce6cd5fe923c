"""Adds rules to a file, while other programs read it and add to it.

Rules kept in this file:

1. The file is only ever replaced by one that is whole: nobody reads half a line, and a kill at any moment
   leaves the old content or the new one. What a kill may leave beside it is no rule file by its name, and the
   next one who adds a rule takes it over.
2. Whoever adds holds an exclusive lock on the file that it replaces; one that was replaced while somebody
   waited for its lock is nobody's any more, and the wait begins anew.
3. A link is followed to what it stands for, which is what gets replaced.
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

from execclient.govern.policy.rule_files import MAX_FILE_BYTES

NEW_FILE_MODE = 0o600
"""Whoever may write here decides what runs without a question. The mode of a file that is there is kept."""

NEW_FOLDER_MODE = 0o700


def append_allow_rule(file: Path, prefix: Sequence[str]) -> bool:
    """Add a rule that allows all commands that begin with a prefix, and have it on the disk.

    Waits for others who add to the same file, each of which takes milliseconds.

    Args:
        file: a rule file; made when missing, as is its folder.
        prefix: at least one argument.

    Returns:
        False if the same line was there already.

    Raises:
        ValueError: the prefix is empty, or not text that a rule file can hold.
        OSError: the file cannot be written, or would be larger than a rule file may be; it is as it was.
    """
    line = allow_rule(prefix)
    target = Path(os.path.realpath(file))
    target.parent.mkdir(mode=NEW_FOLDER_MODE, parents=True, exist_ok=True)
    with _locked(target) as (content, state):
        if line.encode() in content.splitlines():
            return False
        separator = b"" if not content or content.endswith(b"\n") else b"\n"
        amended = content + separator + line.encode() + b"\n"
        if len(amended) > MAX_FILE_BYTES:  # nobody could load it
            raise OSError(errno.EFBIG, f"would be larger than {MAX_FILE_BYTES >> 20} MiB", str(file))
        _replace(target, amended, state)
    return True


def allow_rule(prefix: Sequence[str]) -> str:
    """The line of a rule file that allows a prefix.

    Raises:
        ValueError: the prefix is empty, or not text that a rule file can hold.
    """
    if not prefix:
        raise ValueError("prefix: a rule needs at least one argument")
    return f'prefix_rule(pattern=[{", ".join(_quoted(each) for each in prefix)}], decision="allow")'


def _quoted(argument: str) -> str:
    if any(0xD800 <= ord(each) <= 0xDFFF for each in argument):
        raise ValueError(f"prefix: {argument!r} is not text, and a rule file is")
    quoted = json.dumps(argument, ensure_ascii=False)
    # What is not printable could hide in the line, or break it for other readers.
    return "".join(each if each.isprintable() else _escaped(each) for each in quoted)


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


@contextmanager
def _locked(target: Path) -> Iterator[tuple[bytes, os.stat_result]]:
    """The content and the state of a file that nobody else adds to in the meantime."""
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
    """Only under the lock, so that there is one name for what is being written."""
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
    """The mode, and the owner when root adds to somebody's file."""
    if os.geteuid() == 0:
        os.fchown(descriptor, state.st_uid, state.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(state.st_mode))


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
