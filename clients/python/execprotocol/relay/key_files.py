"""Key pairs in files: one line with the seed in base64, readable for the owner only.

A file is written with its mode under a temporary name and then linked: it is never incomplete, and of two
processes that create the same file at once both use the first one.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from contextlib import suppress
from pathlib import Path

from execprotocol.relay.keys import SEED_BYTES, InvalidKeyError, KeyPair
from execprotocol.trust import UntrustedError, open_trusted

MODE = 0o600

OTHERS = 0o077
"""The bits of a mode for other users than the owner."""

MAX_FILE_BYTES = 1024
"""The line has 129 bytes. A longer file is not a key file, and is not read to its end."""


class KeyFileError(Exception):
    """The file cannot be used. The message names the file and the remedy, and contains no secret."""


def load_key_pair(path: Path, *, create: bool) -> KeyPair:
    """Load the key pair in a file.

    Args:
        path: the file; symbolic links are followed.
        create: whether a missing file is created, with a new pair.

    Raises:
        KeyFileError: the file is missing or cannot be created, other users may read it, or it holds no key
            pair.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        if not create:
            raise KeyFileError(
                f"there is no key file {path}: make one with `execserver relay key {path}`"
            ) from None
    except OSError as error:
        raise KeyFileError(f"cannot read the key file {path}: {error.strerror}") from None
    try:
        _make(path, KeyPair.generate())
        return _read(path)
    except OSError as error:
        raise KeyFileError(
            f"cannot make the key file {path}: {error.strerror}; its folder must exist and be writable"
        ) from None


def _read(path: Path) -> KeyPair:
    try:
        descriptor = open_trusted(str(path), secret=True)
    except UntrustedError as error:
        raise KeyFileError(f"the key file {path} cannot be trusted: {error}") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_mode & OTHERS:
            mode = stat.S_IMODE(status.st_mode)
            raise KeyFileError(
                f"others than its owner have access to the key file {path} (mode {mode:04o}): if no other "
                f"user has read it yet, `chmod 600 {path}`, else remove it and make a new one"
            )
        content = file.read(MAX_FILE_BYTES + 1)
    try:
        seed = base64.b64decode(content.removesuffix(b"\n"), validate=True)
        return KeyPair.from_seed(seed)
    except (binascii.Error, InvalidKeyError):
        raise KeyFileError(
            f"{path} holds no key pair, which is one line, {SEED_BYTES} bytes in base64: unless it is a file "
            "of another program, remove it, and make a new one with `execserver relay key FILE`"
        ) from None


def _make(path: Path, pair: KeyPair) -> None:
    # A dangling link is followed, so that the key is created where its owner wants it.
    place = Path(os.path.realpath(path))
    temporary = place.with_name(f".{place.name[:200]}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, MODE)  # despite the umask
            file.write(base64.b64encode(pair.seed) + b"\n")
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # another process was first: use its key
            os.link(temporary, place)
    finally:
        os.unlink(temporary)
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
