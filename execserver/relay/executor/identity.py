"""The executor's identity: its environment, key and token, and its list of allowed clients.

The token has exactly one source: a variable, a file that is read for each request (so that it can be
renewed), or a line of standard input. The key is read from a file, or is generated once and kept in the
supervisor's memory file (`supervisor/remote.py`), so that a new server has the key of the one before it.
Neither is ever logged or shown.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from execprotocol.proxies import PROXY_VARIABLE, Proxies
from execprotocol.relay.contract import PoolEntry
from execprotocol.relay.key_files import KeyFileError, load_key_pair
from execprotocol.relay.keys import InvalidKeyError, KeyPair
from execprotocol.relay.pools import member_id, parse_labels
from execprotocol.trust import UntrustedError, read_trusted
from execserver import __version__
from execserver.relay.executor.allowed_clients import AllowedClients, AllowedClientsError
from execserver.relay.executor.options import TOKEN_VARIABLE, RemoteOptions, check_place
from execserver.transports.authentication import ConfigurationError

MAX_TOKEN_BYTES = 16 << 10
"""Limit of a line on stdin. HTTP servers accept no longer headers either."""

READ_SECONDS = 10.0
"""How long reading a small file may take: a dead mount never answers."""

_threads = ThreadPoolExecutor(2, thread_name_prefix="relay-files")
"""Separate from the loop's threads, for which its end waits: a read in a dead mount never ends."""

Got = TypeVar("Got")
Given = ParamSpec("Given")

_SOURCES = f"{TOKEN_VARIABLE}, --remote-token-file and --remote-token-stdin"


async def read_in_thread(read: Callable[Given, Got], *args: Given.args, **kwargs: Given.kwargs) -> Got:
    """Call a function that reads a file, in a thread.

    Raises:
        TimeoutError: the call took more than `READ_SECONDS`. Its thread may never end.
    """
    async with asyncio.timeout(READ_SECONDS):
        return await asyncio.get_running_loop().run_in_executor(_threads, partial(read, *args, **kwargs))


class TokenSource:
    """Returns the token for each request.

    Args:
        token: the token; None: it is in `file`.
        file: the file with the token; None: `token` is given.
    """

    def __init__(self, token: str | None, file: Path | None) -> None:
        self._token = token
        self._file = file

    async def __call__(self) -> str:
        """The current token.

        Raises:
            ConfigurationError: the file has no token.
        """
        if self._token is not None:
            return self._token
        try:
            return await read_in_thread(self.read)
        except TimeoutError:
            raise ConfigurationError("--remote-token-file cannot be read: the disk does not answer") from None

    def read(self) -> str:
        """The current token, for a caller that may block on the disk."""
        if self._token is not None:
            return self._token
        assert self._file is not None
        return _token_in(self._file)


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of one executor."""

    base_url: str
    environment_id: str
    key: KeyPair
    token: TokenSource
    clients: AllowedClients | None
    """The clients that are admitted if the registry sent them; None: all that it sent."""
    proxies: Proxies | None = None
    """Chooses the proxies for dialling out; None: connect directly."""
    pool: PoolEntry | None = None
    """What the registry learns if the executor is a member of a pool; None: it is none."""


def identity_from(
    options: RemoteOptions,
    base: Path,
    variables: Mapping[str, str],
    memory: int,
) -> Identity:
    """Make the identity from the options: read the files they name, and generate a key if there is none.

    Args:
        options: with the supervisor's URL and environment.
        base: the folder of relative file names.
        variables: the daemon's environment variables.
        memory: descriptor of the supervisor's memory file.

    Raises:
        ConfigurationError: an option is missing, there is not exactly one token, or a file cannot be used.
    """
    check_place(options)
    on_stdin, seed = _remembered(memory)
    token = _token_source(options, base, variables, on_stdin)
    if options.remote_key_file is not None:
        key = _key_in(base / options.remote_key_file, create=True)
    elif seed is not None:
        key = KeyPair.from_seed(seed)
    else:
        key = KeyPair.generate()
        _remember(memory, key.seed)
    assert options.remote is not None
    if options.pool is None:
        environment_id, entry = options.environment_id, None
    else:
        environment_id = member_id(options.pool, key.public.fingerprint)
        entry = _pool_entry(options)
    assert environment_id is not None
    return Identity(
        options.remote,
        environment_id,
        key,
        token,
        _clients(options, base),
        _proxies(options, variables),
        entry,
    )


def _proxies(options: RemoteOptions, variables: Mapping[str, str]) -> Proxies:
    try:
        return Proxies(options.proxy, f"--proxy ({PROXY_VARIABLE})", variables)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def check_identity(options: RemoteOptions, base: Path, variables: Mapping[str, str]) -> None:
    """Check that the options make an identity. Creates no file and does not read stdin.

    Raises:
        ConfigurationError: as `identity_from`.
    """
    check_place(options)
    _pool_entry(options)
    _token_source(options, base, variables, on_stdin="not-read-yet")
    if options.remote_key_file is not None:
        path = base / options.remote_key_file
        if path.exists():
            _key_in(path, create=False)
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            raise ConfigurationError(
                f"--remote-key-file: {path} is missing, and cannot be made in its folder"
            )
    _clients(options, base)


def _token_source(
    options: RemoteOptions, base: Path, variables: Mapping[str, str], on_stdin: str
) -> TokenSource:
    variable = variables.get(TOKEN_VARIABLE, "").strip()
    given = {
        TOKEN_VARIABLE: bool(variable),
        "--remote-token-file": options.remote_token_file is not None,
        "--remote-token-stdin": options.remote_token_stdin,
    }
    named = [name for name, is_given in given.items() if is_given]
    if len(named) != 1:
        found = f"given are {' and '.join(named)}" if named else "none is given"
        raise ConfigurationError(f"--remote needs exactly one of {_SOURCES}: {found}")
    if options.remote_token_stdin and not on_stdin:
        raise ConfigurationError(
            "--remote-token-stdin: there was no token on standard input when the service was started; with "
            "--listen stdio that is the client's, so give the token another way"
        )
    if options.remote_token_file is not None:
        source = TokenSource(None, base / options.remote_token_file)
    else:
        source = TokenSource(_usable(variable or on_stdin, named[0]), None)
    source.read()
    return source


def _token_in(path: Path) -> str:
    place = f"--remote-token-file: {path}"
    try:
        content = read_trusted(str(path), secret=True)
    except UntrustedError as error:
        raise ConfigurationError(f"{place} decides who may connect: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{place}: {error.strerror}") from None
    return _usable(content.decode(errors="replace").strip(), place)


def _usable(token: str, place: str) -> str:
    if not token or len(token) > MAX_TOKEN_BYTES or not token.isascii() or not token.isprintable():
        raise ConfigurationError(
            f"{place} must hold a token: 1 to {MAX_TOKEN_BYTES} printable ASCII characters"
        )
    if " " in token:
        raise ConfigurationError(f"{place} must hold a token and nothing else; there are blanks in it")
    return token


def _key_in(path: Path, *, create: bool) -> KeyPair:
    try:
        return load_key_pair(path, create=create)
    except KeyFileError as error:
        raise ConfigurationError(f"--remote-key-file: {error}") from None


def _pool_entry(options: RemoteOptions) -> PoolEntry:
    try:
        labels = {name: value or "" for name, value in parse_labels(options.label).items()}
    except ValueError as error:
        raise ConfigurationError(f"--label {error}") from None
    return PoolEntry(labels, options.capacity, __version__)


def _clients(options: RemoteOptions, base: Path) -> AllowedClients | None:
    if options.remote_allowed_clients is None:
        return None
    clients = AllowedClients(base / options.remote_allowed_clients)
    try:
        clients.read()
    except AllowedClientsError as error:
        raise ConfigurationError(f"--remote-allowed-clients: {error}") from None
    return clients


def _remembered(memory: int) -> tuple[str, bytes | None]:
    """The contents of the memory file: the token from stdin, and the seed if an earlier server wrote one."""
    content = os.pread(memory, 2 * MAX_TOKEN_BYTES, 0)
    lines = content.split(b"\n")
    # A line without its end is incomplete: the server that wrote it may have been killed.
    seed = None
    if len(lines) > 2:
        try:
            seed = base64.b64decode(lines[1], validate=True)
            KeyPair.from_seed(seed)
        except (binascii.Error, InvalidKeyError):
            seed = None
    return lines[0].decode(errors="replace"), seed


def _remember(memory: int, seed: bytes) -> None:
    first_line = os.pread(memory, 2 * MAX_TOKEN_BYTES, 0).partition(b"\n")[0]
    os.pwrite(memory, base64.b64encode(seed) + b"\n", len(first_line) + 1)
