"""The connection to NATS: what it accepts, what it refuses and why, and that it comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from execserver.relay.fleet.connection import FleetError, FleetUnreachable, NatsConnection
from execserver.relay.service.settings import NatsSettings, RelaySettingsError
from tests.integration.http.certificates import make_authority, server_context
from tests.support.nats_servers import NatsServers, jwt_files, key_pair
from tests.support.wire import PATIENCE

UNREACHABLE_SECONDS = 1.0


def is_connected(connection: NatsConnection) -> bool:
    return connection.is_connected


async def connect(url: str, seconds: float = PATIENCE, **flags: Any) -> NatsConnection:
    connection = NatsConnection(NatsSettings.parse(url, **flags), "test")
    await connection.open(seconds)
    return connection


async def refusal(url: str, **flags: Any) -> str:
    with pytest.raises(FleetError) as caught:
        await connect(url, **flags)
    assert not isinstance(caught.value, FleetUnreachable)
    return str(caught.value)


@contextlib.contextmanager
def other_users_folder() -> Iterator[Path]:
    """A folder that other users can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder)
    server_context(folder)
    return folder


@pytest.fixture(scope="module")
def tls_servers(authority: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    settings = (
        f'tls {{ cert_file: "{authority}/certificate.pem", key_file: "{authority}/key.pem", '
        f'ca_file: "{authority}/ca.pem", verify: true }}'
    )
    with NatsServers(tmp_path_factory.mktemp("nats"), settings=settings) as servers:
        yield servers


async def test_a_lost_connection_comes_back_and_is_counted(tmp_path: Path) -> None:
    with NatsServers(tmp_path) as servers:
        connection = await connect(servers.url)
        back = asyncio.Event()
        connection.on_reconnect(back.set)
        assert is_connected(connection)
        assert connection.fault == ""
        servers[0].kill()
        async with asyncio.timeout(PATIENCE):
            while is_connected(connection):
                await asyncio.sleep(0.01)
        assert connection.fault.startswith(f"no connection to NATS at {servers.url}")
        servers.start()
        await asyncio.wait_for(back.wait(), PATIENCE)
        assert connection.is_connected
        assert connection.fault == ""
        assert connection.reconnects == 1
        assert not connection.closed.is_set()
        await connection.close()


async def test_a_server_that_does_not_run_is_unreachable_and_not_a_refusal(tmp_path: Path) -> None:
    servers = NatsServers(tmp_path, start=False)
    with pytest.raises(
        FleetUnreachable, match=rf"no connection to NATS at {servers.url}: .*Connect call fail"
    ):
        await connect(servers.url, UNREACHABLE_SECONDS)


async def test_a_stopped_server_is_unreachable(tmp_path: Path) -> None:
    with NatsServers(tmp_path) as servers:
        servers[0].pause()
        with pytest.raises(FleetUnreachable):
            await connect(servers.url, UNREACHABLE_SECONDS)


# The client leaves a connection that was not answered to the garbage collector.
@pytest.mark.filterwarnings("ignore:.*StreamWriter:pytest.PytestUnraisableExceptionWarning")
async def test_a_stopped_server_is_given_up_for_another_of_the_cluster(tmp_path: Path) -> None:
    with NatsServers(tmp_path, 2, jetstream=False) as servers:
        connection = await connect(servers.url)
        url = connection.client.connected_url
        assert url is not None
        mine = next(each for each in servers.servers if each.port == url.port)
        mine.pause()
        async with asyncio.timeout(PATIENCE):
            while not connection.reconnects:
                await asyncio.sleep(0.05)
        assert connection.is_connected
        await connection.close()


async def test_a_credentials_file_of_nats_is_accepted_and_another_users_is_not(tmp_path: Path) -> None:
    files = jwt_files(tmp_path)
    strange = tmp_path / "strange"
    strange.mkdir()
    with NatsServers(tmp_path / "nats", settings=files.settings) as servers:
        connection = await connect(servers.url, creds=str(files.credentials))
        await connection.close()
        other = jwt_files(strange).credentials
        assert f"does not accept {other}" in await refusal(servers.url, creds=str(other))
        assert "give --nats-creds FILE" in await refusal(servers.url)


@pytest.mark.parametrize(
    ("line", "authorization"),
    [("a-token", 'token: "a-token"'), ("relay:pass:word", 'user: "relay", password: "pass:word"')],
    ids=["token", "user and password"],
)
async def test_a_file_with_one_line_is_a_token_or_a_user(
    tmp_path: Path, line: str, authorization: str
) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(f"{line}\n")
    wrong.write_text(f"{line}x\n")
    with NatsServers(tmp_path / "nats", settings=f"authorization {{ {authorization} }}") as servers:
        await (await connect(servers.url, creds=str(right))).close()
        text = await refusal(servers.url, creds=str(wrong))
        assert "Authorization Violation" in text
        assert line not in text


async def test_a_file_with_an_nkey_seed_is_accepted(tmp_path: Path) -> None:
    pair, path = key_pair("user"), tmp_path / "seed"
    path.write_bytes(pair.seed)
    settings = f"authorization {{ users: [ {{ nkey: {pair.public_key.decode()} }} ] }}"
    with NatsServers(tmp_path / "nats", settings=settings) as servers:
        await (await connect(servers.url, creds=str(path))).close()


@pytest.mark.parametrize("content", ["", "two words\n", "-----BEGIN NATS USER JWT-----\nx\n", "SUxyz"])
async def test_a_file_that_has_no_credentials_is_refused_before_a_server_is_asked(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "user.creds"
    path.write_text(content)
    assert str(path) in await refusal("nats://127.0.0.1:1", creds=str(path))


async def test_credentials_that_other_users_can_read_or_replace_are_refused(tmp_path: Path) -> None:
    with other_users_folder() as folder:
        path = folder / "user.creds"
        path.write_text("relay:password\n")
        path.chmod(0o644)
        text = await refusal("nats://127.0.0.1:1", creds=str(path))
        assert f"--nats-creds {path}" in text
        assert "chmod 600" in text
        assert "password\n" not in text
        path.chmod(0o600)
        folder.chmod(0o777)
        assert "can be written by others" in await refusal("nats://127.0.0.1:1", creds=str(path))


@pytest.mark.parametrize(
    ("flag", "name"), [("ca", "ca.pem"), ("cert", "certificate.pem"), ("key", "key.pem")]
)
async def test_certificates_that_other_users_can_change_and_a_key_that_they_can_read_are_refused(
    authority: Path, flag: str, name: str
) -> None:
    files = {
        "ca": f"{authority}/ca.pem",
        "cert": f"{authority}/certificate.pem",
        "key": f"{authority}/key.pem",
    }
    with other_users_folder() as folder:
        path = folder / name
        path.write_bytes((authority / name).read_bytes())
        path.chmod(0o644 if flag == "key" else 0o666)
        text = await refusal("tls://127.0.0.1:1", **files | {flag: str(path)})
        assert f"--nats-{flag}" in text
        assert "by others" in text


async def test_a_key_with_a_password_is_refused_and_does_not_ask_for_it(
    authority: Path, tmp_path: Path
) -> None:
    key = load_pem_private_key((authority / "key.pem").read_bytes(), None)
    path = tmp_path / "key.pem"
    encryption = BestAvailableEncryption(b"password")
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    path.chmod(0o600)

    text = await refusal("tls://127.0.0.1:1", cert=f"{authority}/certificate.pem", key=str(path))

    assert "the key has a password" in text


async def test_tls_with_a_certificate_of_its_own_is_accepted(
    authority: Path, tls_servers: NatsServers
) -> None:
    url = tls_servers.url.replace("nats://", "tls://")
    cert: dict[str, Any] = {"cert": f"{authority}/certificate.pem", "key": f"{authority}/key.pem"}
    await (await connect(url, ca=f"{authority}/ca.pem", **cert)).close()
    assert "--nats-ca" in await refusal(url, **cert)


async def test_a_server_without_tls_is_refused_if_tls_was_asked_for_and_gets_no_password(
    authority: Path, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_text("a-token")
    with NatsServers(tmp_path / "nats", settings="trace: true") as servers:
        url = servers.url.replace("nats://", "tls://")
        assert "does not speak TLS" in await refusal(url, ca=f"{authority}/ca.pem", creds=str(path))
        assert "CONNECT" not in servers[0].log
        assert "does not speak TLS" in await refusal(url, ca=f"{authority}/ca.pem")
        assert "CONNECT" in servers[0].log


async def test_a_small_max_payload_is_refused(tmp_path: Path) -> None:
    with NatsServers(tmp_path, settings="max_payload: 65536") as servers:
        assert "raise `max_payload`" in await refusal(servers.url)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"servers": "http://127.0.0.1:1"}, "give nats://HOST:PORT"),
        ({"servers": "nats://u:secret@127.0.0.1:1"}, "--nats-creds"),
        ({"servers": "nats://127.0.0.1:1,tls://127.0.0.1:2"}, "the same scheme"),
        ({"servers": "nats://127.0.0.1:1", "ca": "ca.pem"}, "--nats tls://"),
        ({"servers": "tls://127.0.0.1:1", "cert": "c.pem"}, "go together"),
        ({"servers": "nats://127.0.0.1:1", "prefix": "a.b"}, "--nats-prefix"),
        ({"servers": "nats://127.0.0.1:1", "replicas": 2}, "--nats-replicas"),
    ],
)
def test_flags_that_cannot_be_used_are_refused(flags: dict[str, Any], reason: str) -> None:
    with pytest.raises(RelaySettingsError, match=reason) as caught:
        NatsSettings.parse(**flags)
    assert "secret" not in str(caught.value)


def test_a_port_is_filled_in() -> None:
    assert NatsSettings.parse("nats://a, nats://[::1]:5").servers == ("nats://a:4222", "nats://[::1]:5")
