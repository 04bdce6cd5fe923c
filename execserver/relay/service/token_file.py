"""The tokens of one relay, in a file of its state folder.

- The file is written under another name and renamed, under a lock: a reader sees all or nothing of a change,
  and concurrent changes lose nothing.
- An invalid file is an error. It is never taken for an empty one, nor overwritten.

    {"version": 1, "tokens": [{"id", "sha256", "role", "environments", "created", "expires", "note"}, …]}

A token for pools also has `pools`.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from execprotocol.trust import UntrustedError, check_way
from execserver.private_folder import FolderError, lock, open_private
from execserver.relay.service.tokens import TokenError, TokenRecord, TokenRecordError, Tokens, new_token

FILE_NAME, LOCK_NAME = "tokens.json", "tokens.lock"
VERSION = 1

LOCK_SECONDS = 5.0
"""The lock is held for milliseconds; a program that holds it longer is stuck."""

_Signature = tuple[int, int, int, int]


class TokenFileError(TokenError):
    """The token file or its folder is invalid."""


class TokenStore(Tokens):
    """The tokens of one state folder, as the file has them now.

    Args:
        folder: the state folder, owned by this user, of mode 0700.
        create: whether a missing folder is created.
        clock: seconds since 1970.

    Raises:
        TokenFileError: the folder or the file is invalid.
    """

    def __init__(self, folder: Path, *, create: bool = False, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._folder = Path(os.path.abspath(folder))
        self._path = self._folder / FILE_NAME
        self._signature: _Signature | None = None  # of the file that was read last
        if not create and not self._folder.is_dir():
            raise TokenFileError(f"there is no state folder {self._folder}")
        try:
            check_way(os.path.abspath(self._folder))
            os.close(open_private(str(self._folder)))
        except (FolderError, UntrustedError) as error:
            raise TokenFileError(str(error)) from None
        self._load()

    def create(
        self,
        role: str,
        environments: Sequence[str],
        *,
        pools: Sequence[str] = (),
        expires_in: float | None = None,
        note: str = "",
    ) -> tuple[TokenRecord, str]:
        """Create a token. Arguments and result as of `new_token`.

        Raises:
            TokenError: a value or the file is invalid.
        """
        with self._locked():
            taken = {token.id for token in self._tokens}
            while True:
                token, secret = new_token(
                    role, environments, pools=pools, expires_in=expires_in, note=note, now=self._clock()
                )
                if token.id not in taken:
                    break
            self._save((*self._tokens, token))
        return token, secret

    def revoke(self, token_id: str) -> TokenRecord:
        """Remove a token from the file.

        Raises:
            TokenError: there is no token with that id, or the file is invalid.
        """
        with self._locked():
            for token in self._tokens:
                if token.id == token_id:
                    self._save(tuple(each for each in self._tokens if each is not token))
                    return token
        raise TokenError(f"there is no token {token_id!r} in {self._path}; `token list` shows their ids")

    def refresh(self) -> None:
        """Read the file again if it has changed. If it is invalid, `fault` says why."""
        try:
            self._load()
        except TokenFileError as error:
            self.fault = str(error)
        else:
            self.fault = ""

    def _load(self) -> None:
        """Load the file, if it has changed.

        Raises:
            TokenFileError: the file is invalid.
        """
        try:
            # O_NONBLOCK: opening a pipe must not wait for a writer.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self._take(())
            self._signature = None
            return
        except OSError as error:
            raise TokenFileError(f"cannot read {self._path}: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            signature = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
            self._check_status(status)  # first: `open` would fail for a folder
            if signature != self._signature:
                with open(descriptor, "rb", closefd=False) as file:
                    content = file.read()
                self._take(self._parse(content))
                self._signature = signature
        except OSError as error:
            raise TokenFileError(f"cannot read {self._path}: {error.strerror}") from None
        finally:
            os.close(descriptor)

    def _check_status(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise TokenFileError(f"{self._path} is no file; remove it")
        if status.st_uid != os.geteuid():
            raise TokenFileError(
                f"{self._path} belongs to uid {status.st_uid}, not to this user ({os.geteuid()})"
            )
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise TokenFileError(f"{self._path} has mode {mode:04o}, open to others; chmod it to 0600")

    def _parse(self, content: bytes) -> tuple[TokenRecord, ...]:
        way_out = "restore it from a backup, or remove it to begin without tokens"
        try:
            whole = json.loads(content)
        except (ValueError, RecursionError):
            raise TokenFileError(f"{self._path} is no JSON, perhaps cut off; {way_out}") from None
        if not isinstance(whole, dict) or not isinstance(whole.get("tokens"), list):
            raise TokenFileError(f"{self._path} must be an object with a list `tokens`; {way_out}")
        if whole.get("version") != VERSION:
            raise TokenFileError(f"{self._path}: `version` must be {VERSION}, the only supported one")
        tokens = []
        for index, entry in enumerate(whole["tokens"]):
            try:
                tokens.append(TokenRecord.from_json(entry))
            except TokenRecordError as error:
                raise TokenFileError(f"{self._path}: tokens[{index}]: {error}; {way_out}") from None
        if len({token.id for token in tokens}) < len(tokens):
            raise TokenFileError(f"{self._path} has two tokens with the same id; {way_out}")
        return tuple(tokens)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, with the newest tokens loaded."""
        path = self._folder / LOCK_NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TokenFileError(f"cannot lock {path}: {error.strerror}") from None
        try:
            deadline = time.monotonic() + LOCK_SECONDS
            while not lock(descriptor):
                if time.monotonic() >= deadline:
                    raise TokenFileError(
                        f"{path} has been locked by another program for {LOCK_SECONDS:.0f} s"
                    )
                time.sleep(0.005)  # flock offers no wait with a limit
            self._load()
            yield
        finally:
            os.close(descriptor)

    def _save(self, tokens: tuple[TokenRecord, ...]) -> None:
        """Replace the file. If that fails, the old file stays. The lock is held."""
        content = json.dumps({"version": VERSION, "tokens": [token.to_json() for token in tokens]}, indent=1)
        new = self._folder / f"{FILE_NAME}.new"
        try:
            descriptor = os.open(
                new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with open(descriptor, "w") as file:
                os.fchmod(descriptor, 0o600)  # a file left by a crash may have another mode
                file.write(content + "\n")
                file.flush()
                self._make_newer(descriptor)
                os.fsync(descriptor)
            os.rename(new, self._path)
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise TokenFileError(f"cannot write {self._path}: {error.strerror}") from None
        self._load()

    def _make_newer(self, descriptor: int) -> None:
        # Otherwise two changes within one tick of the file system's clock may have the same signature: the
        # third file may get the inode of the first.
        if self._signature is not None:
            moment = max(os.fstat(descriptor).st_mtime_ns, self._signature[2] + 1)
            os.utime(descriptor, ns=(moment, moment))
