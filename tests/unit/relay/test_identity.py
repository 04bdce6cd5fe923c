"""Who the executor is: one token, one key, and what a server leaves to the next one."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from execprotocol.relay.contract import PoolEntry
from execprotocol.relay.key_files import load_key_pair
from execprotocol.relay.keys import KeyPair
from execserver import __version__
from execserver.relay.executor import identity as module
from execserver.relay.executor.identity import Identity, check_identity, identity_from
from execserver.relay.executor.options import RemoteOptions, options_of_service
from execserver.transports.authentication import ConfigurationError
from tests.support.mounts import NO_FUSE, Mount, can_hang, mounting

PLACE = RemoteOptions(remote="https://registry", environment_id="box")
VARIABLE = {"EXECSERVER_REMOTE_TOKEN": " from-variable "}


@pytest.fixture
def memory() -> Iterator[int]:
    """The supervisor's file, when nothing came on stdin."""
    descriptor = os.memfd_create("test")
    os.write(descriptor, b"\n")
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """`mount("fuse")` gives a folder."""
    yield from mounting(tmp_path_factory)


def make(options: RemoteOptions, folder: Path, memory: int, variables: dict[str, str] = VARIABLE) -> Identity:
    return identity_from(options, folder, variables, memory)


def fault(options: RemoteOptions, folder: Path, memory: int, variables: dict[str, str] = VARIABLE) -> str:
    with pytest.raises(ConfigurationError) as refused:
        make(options, folder, memory, variables)
    return str(refused.value)


async def test_the_token_comes_from_the_variable(tmp_path: Path, memory: int) -> None:
    assert await make(PLACE, tmp_path, memory).token() == "from-variable"


async def test_the_token_file_is_read_at_each_request(tmp_path: Path, memory: int) -> None:
    (tmp_path / "token").write_text("first\n")
    identity = make(replace(PLACE, remote_token_file="token"), tmp_path, memory, {})
    assert await identity.token() == "first"
    (tmp_path / "token").write_text("renewed\n")
    assert await identity.token() == "renewed"
    (tmp_path / "token").unlink()
    with pytest.raises(ConfigurationError, match="No such file"):
        await identity.token()


async def test_the_token_of_stdin_outlives_the_server(tmp_path: Path, memory: int) -> None:
    os.pwrite(memory, b"of-stdin\n", 0)
    options = replace(PLACE, remote_token_stdin=True)
    first = make(options, tmp_path, memory, {})
    second = make(options, tmp_path, memory, {})
    assert await first.token() == await second.token() == "of-stdin"
    assert first.key.seed == second.key.seed


async def test_a_file_that_does_not_answer_is_given_up(
    tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch, mount: Mount
) -> None:
    if not can_hang():
        pytest.skip(NO_FUSE)
    (tmp_path / "token").write_text("x")
    identity = make(replace(PLACE, remote_token_file="token"), tmp_path, memory, {})
    (tmp_path / "token").unlink()
    (tmp_path / "token").symlink_to(mount("fuse") / "token")  # whose server never answers
    monkeypatch.setattr(module, "READ_SECONDS", 0.01)
    with pytest.raises(ConfigurationError, match="the disk does not answer"):
        await identity.token()


def test_exactly_one_token_is_wanted(tmp_path: Path, memory: int) -> None:
    assert fault(PLACE, tmp_path, memory, {}).endswith("--remote-token-stdin: none is given")
    both = replace(PLACE, remote_token_file="token")
    assert "given are EXECSERVER_REMOTE_TOKEN and --remote-token-file" in fault(both, tmp_path, memory)


def test_an_empty_stdin_is_no_token(tmp_path: Path, memory: int) -> None:
    options = replace(PLACE, remote_token_stdin=True)
    assert "there was no token on standard input" in fault(options, tmp_path, memory, {})


@pytest.mark.parametrize("token", ["", "two words", "caf\u00e9", "a\nb", "x" * 16385, "bell\a"])
def test_what_cannot_be_a_token_is_refused_without_being_shown(
    tmp_path: Path, memory: int, token: str
) -> None:
    (tmp_path / "token").write_text(token)
    said = fault(replace(PLACE, remote_token_file="token"), tmp_path, memory, {})
    assert said.startswith(f"--remote-token-file: {tmp_path}/token must hold a token")
    assert not token or token not in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (replace(PLACE, remote=None), "--remote is missing"),
        (replace(PLACE, environment_id=None), "--environment-id and --pool are missing"),
        (replace(PLACE, pool="gpu"), "--environment-id and --pool exclude each other"),
        (replace(PLACE, label=("gpu",)), "--label needs --pool"),
        (replace(PLACE, capacity=1), "--capacity needs --pool"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, memory: int, options: RemoteOptions, says: str
) -> None:
    assert fault(options, tmp_path, memory).startswith(says)
    with pytest.raises(ConfigurationError, match=says):
        check_identity(options, tmp_path, VARIABLE)


def test_a_member_of_a_pool_is_named_by_its_key_and_describes_itself(tmp_path: Path, memory: int) -> None:
    options = replace(PLACE, environment_id=None, pool="gpu", label=("ssd", "zone=eu"), capacity=4)
    identity = make(options, tmp_path, memory)

    assert identity.environment_id == f"gpu--{identity.key.public.fingerprint[:16]}"
    assert identity.pool == PoolEntry({"ssd": "", "zone": "eu"}, 4, __version__)
    again = make(replace(options, capacity=None), tmp_path, memory)
    assert again.environment_id == identity.environment_id
    assert again.pool is not None
    assert again.pool.capacity is None


def test_an_invalid_label_is_refused(tmp_path: Path, memory: int) -> None:
    options = replace(PLACE, environment_id=None, pool="gpu", label=("a b",))
    assert fault(options, tmp_path, memory).startswith("--label must have names")


def test_a_key_file_is_made_private_and_kept(tmp_path: Path, memory: int) -> None:
    options = replace(PLACE, remote_key_file="key")
    first = make(options, tmp_path, memory)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert load_key_pair(tmp_path / "key", create=False).seed == first.key.seed
    assert make(options, tmp_path, memory).key.seed == first.key.seed
    (tmp_path / "key").chmod(0o644)
    assert fault(options, tmp_path, memory).startswith("--remote-key-file: ")


@pytest.mark.parametrize("left", [b"\n", b"\nhalf of a seed", b"\nno seed at all\n", b"\n" + b"A" * 128])
def test_a_key_that_was_not_left_whole_is_made_anew(tmp_path: Path, memory: int, left: bytes) -> None:
    os.pwrite(memory, left, 0)
    first = make(PLACE, tmp_path, memory)
    assert make(PLACE, tmp_path, memory).key.seed == first.key.seed


def test_the_key_that_was_left_is_used(tmp_path: Path, memory: int) -> None:
    pair = KeyPair.generate()
    os.pwrite(memory, b"\n" + base64.b64encode(pair.seed) + b"\n", 0)
    assert make(PLACE, tmp_path, memory).key.public == pair.public


def test_the_list_of_clients_must_be_usable(tmp_path: Path, memory: int) -> None:
    options = replace(PLACE, remote_allowed_clients="clients")
    assert fault(options, tmp_path, memory).startswith("--remote-allowed-clients: cannot read")
    (tmp_path / "clients").write_text("1" * 64)
    clients = make(options, tmp_path, memory).clients
    assert clients is not None
    assert clients.admits("1" * 64)


def test_the_check_makes_nothing(tmp_path: Path) -> None:
    check_identity(replace(PLACE, remote_key_file="key", remote_token_stdin=True), tmp_path, {})
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigurationError, match="cannot be made in its folder"):
        check_identity(replace(PLACE, remote_key_file="none/key"), tmp_path, VARIABLE)


@pytest.mark.parametrize("served", [None, ("https://first", "first", None)])
def test_a_service_goes_on_where_it_began(served: tuple[str, str, None] | None) -> None:
    if served is None:
        assert options_of_service(RemoteOptions(), None) is None
        with pytest.raises(ConfigurationError, match="stop the service and start it again"):
            options_of_service(PLACE, None)
    else:
        assert options_of_service(PLACE, served) == replace(PLACE, remote=served[0], environment_id=served[1])


def test_options_without_a_registry_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="--remote-token-stdin needs --remote"):
        options_of_service(RemoteOptions(remote_token_stdin=True), None)
