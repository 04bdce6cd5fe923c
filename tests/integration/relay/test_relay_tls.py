"""A relay with a certificate: what it hands out, what passes, and how the certificate is renewed."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from execprotocol.relay import frames
from execprotocol.relay.keys import KeyPair
from tests.support.relay_peers import RawClient, RawExecutor, ask, registration
from tests.support.relay_service import RelayService, command, wait_until

KEYS = KeyPair.generate()


def write_certificate(folder: Path, password: bytes | None = None) -> None:
    """A self-signed one for 127.0.0.1: `cert.pem`, `key.pem`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "relay")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    encoded = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(encoded)


def flags(folder: Path) -> tuple[str, ...]:
    return ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))


def trust(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=folder / "cert.pem")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_certificate(folder)
    return folder


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[RelayService]:
    state = tmp_path_factory.mktemp("relay") / "state"
    with RelayService(state, *flags(files), listen="https://127.0.0.1:0") as relay:
        yield relay
        assert relay.stop() == 0


@pytest.mark.statement("R9")
def test_frames_pass_through_tls_and_urls_are_wss(relay: RelayService, files: Path) -> None:
    executor_token, client_token = relay.token("executor", "box"), relay.token("client", "box")
    tls = trust(files)
    with (
        RawExecutor(relay, "box", executor_token, tls=tls) as executor,
        RawClient(relay, "box", client_token, tls=tls) as client,
    ):
        assert relay.url.startswith("https://127.0.0.1:")
        assert executor.url.startswith(
            f"wss{relay.url.removeprefix('https')}/cloud/environment/box/executor?"
        )
        assert client.url.startswith("wss://")
        client.send(frames.resume("s"))
        assert executor.receive() == frames.resume("s")
        for size in (1, 1000, 61_456, 262_000):
            frame = frames.data("s", 0, os.urandom(size))
            client.send(frame)
            executor.send(frame)
            assert (executor.receive(), client.receive()) == (frame, frame)
        executor.close()
        assert client.closed_with() == 1013


def test_a_slow_client_is_cut_through_tls_too(relay: RelayService, files: Path) -> None:
    executor_token, client_token = relay.token("executor", "slow"), relay.token("client", "slow")
    cut = 'execserver_relay_closed_sockets_total{reason="slow_consumer"}'
    tls = trust(files)
    with (
        RawExecutor(relay, "slow", executor_token, tls=tls) as executor,
        RawClient(relay, "slow", client_token, tls=tls, receive_buffer=4096) as slow,
        RawClient(relay, "slow", client_token, tls=tls) as other,
    ):
        for client, stream in ((slow, "slow"), (other, "other")):
            client.send(frames.resume(stream))
            assert executor.receive() == frames.resume(stream)
        frame = frames.data("slow", 0, bytes(200_000))
        for number in range(1000):
            executor.send(frame)
            if number % 50 == 0:
                executor.send(frames.data("other", 0, b"through"))
                assert other.receive() == frames.data("other", 0, b"through")
                if relay.metrics()[cut]:
                    break
        assert relay.metrics()[cut] == 1
        assert executor.receive() == frames.reset("slow", "relay_peer_closed")


def test_who_speaks_no_tls_gets_nothing(relay: RelayService) -> None:
    with pytest.raises(OSError):
        ask(relay.url.replace("https", "http"), "/healthz")


def test_a_renewed_certificate_is_taken_on_sighup_and_a_broken_one_is_not(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    old = trust(tmp_path)
    with RelayService(tmp_path / "state", *flags(tmp_path), listen="https://127.0.0.1:0") as relay:
        assert ask(relay.url, "/healthz", tls=old).status == 200

        write_certificate(tmp_path)
        relay.signal(signal.SIGHUP)
        wait_until(lambda: bool(relay.log_lines("certificate loaded")))
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(relay.url, "/healthz", tls=old)
        new = trust(tmp_path)
        (tmp_path / "key.pem").write_text("rubbish")
        relay.signal(signal.SIGHUP)
        wait_until(lambda: bool(relay.log_lines("certificate not loaded, the old one stays")))

        assert ask(relay.url, "/healthz", tls=new).status == 200
        assert relay.stop() == 0


def test_a_certificate_whose_key_is_not_there_yet_leaves_the_old_one_in_use(
    tmp_path: Path, files: Path
) -> None:
    write_certificate(tmp_path)
    old = trust(tmp_path)
    with RelayService(tmp_path / "state", *flags(tmp_path), listen="https://127.0.0.1:0") as relay:
        (tmp_path / "cert.pem").write_bytes((files / "cert.pem").read_bytes())
        relay.signal(signal.SIGHUP)
        wait_until(lambda: bool(relay.log_lines("certificate not loaded, the old one stays")))

        assert ask(relay.url, "/healthz", tls=old).status == 200

        (tmp_path / "key.pem").write_bytes((files / "key.pem").read_bytes())
        relay.signal(signal.SIGHUP)
        wait_until(lambda: bool(relay.log_lines("certificate loaded")))
        assert ask(relay.url, "/healthz", tls=trust(files)).status == 200
        assert relay.stop() == 0


@pytest.mark.parametrize("fault", ["missing", "rubbish", "other key", "password"])
def test_files_that_are_no_certificate_end_the_start(tmp_path: Path, files: Path, fault: str) -> None:
    write_certificate(tmp_path, password=b"secret" if fault == "password" else None)
    if fault == "missing":
        (tmp_path / "cert.pem").unlink()
    elif fault == "rubbish":
        (tmp_path / "cert.pem").write_text("rubbish")
    elif fault == "other key":
        (tmp_path / "key.pem").write_bytes((files / "key.pem").read_bytes())

    ended = command(
        "serve", "--listen", "https://127.0.0.1:0", "--state-dir", str(tmp_path / "state"), *flags(tmp_path)
    )

    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"--tls-cert {tmp_path / 'cert.pem'}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_relay_may_listen_on_every_address_with_tls(tmp_path: Path, files: Path) -> None:
    with RelayService(tmp_path / "state", *flags(files), listen="https://0.0.0.0:0") as relay:
        here = relay.url.replace("0.0.0.0", "127.0.0.1")
        token = relay.token("executor", "box")

        answer = ask(
            here,
            "/cloud/environment/box/register",
            "POST",
            token=token,
            body=registration(KEYS),
            tls=trust(files),
        )

        assert answer.json["url"].startswith(f"wss{here.removeprefix('https')}/")
