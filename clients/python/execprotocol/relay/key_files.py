"""Key pairs in files: one line, the seed in base64, for nobody's eyes but the owner's.

A file is made whole, with its mode, under a name of its own, and linked to the right one: nobody ever sees
half of it, and of two who make the same file at once both use the one that was first.
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
"""What of a mode concerns anybody but the owner."""

MAX_FILE_BYTES = 1024
"""The line has 129. A longer file is something else, and is not read to its end."""


class KeyFileError(Exception):
    """The file cannot be used; the message names it and says the way out, and has nothing of its contents."""


def load_key_pair(path: Path, *, create: bool) -> KeyPair:
    """The key pair in a file.

    Args:
        path: the file; symbolic links are followed.
        create: make it, with a new pair, when it is missing.

    Raises:
        KeyFileError: it is missing and not to be made, others may read it, or it holds no key pair.
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
                f"others than its owner have access to the key file {path} (mode {mode:04o}): if nobody has "
                f"read it yet, `chmod 600 {path}`, else remove it and make a new one"
            )
        content = file.read(MAX_FILE_BYTES + 1)
    try:
        seed = base64.b64decode(content.removesuffix(b"\n"), validate=True)
        return KeyPair.from_seed(seed)
    except (binascii.Error, InvalidKeyError):
        raise KeyFileError(
            f"{path} holds no key pair, which is one line, {SEED_BYTES} bytes in base64: if it is no file of "
            "something else, remove it, and make a new one with `execserver relay key FILE`"
        ) from None


def _make(path: Path, pair: KeyPair) -> None:
    # A link that points nowhere yet is followed, so that the key goes where its owner wants it.
    place = Path(os.path.realpath(path))
    temporary = place.with_name(f".{place.name[:200]}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, MODE)  # whatever the umask took
            file.write(base64.b64encode(pair.seed) + b"\n")
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # somebody else was first: theirs it is
            os.link(temporary, place)
    finally:
        os.unlink(temporary)
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
