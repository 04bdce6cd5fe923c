"""The end of a relay: who is told what, how long it takes, and what is there when it comes back."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from execprotocol.relay import frames
from execprotocol.relay.keys import KeyPair
from execserver.relay.service.sockets import CLOSE_SECONDS
from tests.support.relay_peers import RawClient, RawExecutor, RawSocket, ask, registration
from tests.support.relay_service import RelayService, wait_until
from tests.support.service_manager import ServiceManager
from tests.support.wire import UpgradeRefusedError

QUEUED = 'execserver_relay_queued_bytes{to="client"}'
KEYS = KeyPair.generate()


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayService]:
    with RelayService(tmp_path / "state") as relay:
        yield relay


def tokens(relay: RelayService) -> tuple[str, str]:
    return relay.token("executor", "box"), relay.token("client", "box")


def fill(relay: RelayService, executor: RawExecutor) -> int:
    """Send to the stream `slow`, whose client does not read, until some of it stays in the relay.

    Returns:
        How many frames that were.
    """
    frame = frames.data("slow", 0, bytes(60_000))
    sent = 0
    while not relay.metrics()[QUEUED]:
        for _ in range(4):
            executor.send(frame)
            sent += 1
    return sent


@pytest.mark.statement("R29")
def test_at_its_end_every_peer_is_told_that_it_restarts(relay: RelayService) -> None:
    executor_token, client_token = tokens(relay)
    with (
        RawExecutor(relay, "box", executor_token) as executor,
        RawClient(relay, "box", client_token) as client,
    ):
        began = time.monotonic()
        relay.signal(signal.SIGTERM)

        assert (executor.closed_with(), client.closed_with()) == (1012, 1012)
        assert relay.wait() == 0
        assert time.monotonic() - began < 10
    assert not (relay.state / "control.sock").exists()


@pytest.mark.statement("R29")
def test_a_draining_relay_admits_no_peer_and_a_stuck_client_does_not_delay_it(relay: RelayService) -> None:
    executor_token, client_token = tokens(relay)
    with ExitStack() as sockets:
        executor = sockets.enter_context(RawExecutor(relay, "box", executor_token, KEYS))
        slow = sockets.enter_context(RawClient(relay, "box", client_token, receive_buffer=4096))
        late = ask(
            relay.url,
            "/cloud/environment/box/connect",
            "POST",
            token=client_token,
            body={"harness_public_key": KEYS.public.to_json()},
        )
        slow.send(frames.resume("slow"))
        assert executor.receive() == frames.resume("slow")
        fill(relay, executor)
        began = time.monotonic()

        relay.signal(signal.SIGTERM)
        wait_until(lambda: bool(relay.log_lines("relay drains")))
        registered = ask(
            relay.url,
            "/cloud/environment/box/register",
            "POST",
            token=executor_token,
            body=registration(KEYS),
        )
        connected = ask(
            relay.url,
            "/cloud/environment/box/connect",
            "POST",
            token=client_token,
            body={"harness_public_key": KEYS.public.to_json()},
        )
        ready, healthy = ask(relay.url, "/readyz"), ask(relay.url, "/healthz")
        with pytest.raises(UpgradeRefusedError) as upgrade:
            RawSocket(late.json["url"])

        assert (registered.status, registered.code) == (503, "registration_conflict")
        assert (connected.status, ready.status, healthy.status) == (503, 503, 200)
        assert upgrade.value.status == 503
        assert upgrade.value.headers["x-codex-rendezvous-rejection-reason"] == "pod_draining"
        assert relay.wait() == 0
        assert time.monotonic() - began < 10


def test_a_client_that_reads_late_still_gets_all_that_was_sent(relay: RelayService) -> None:
    executor_token, client_token = tokens(relay)
    for _ in range(3):
        if reads_in_time(relay, executor_token, client_token):
            break
        relay.start()
    else:
        pytest.fail("the client was too late each time")


def reads_in_time(relay: RelayService, executor_token: str, client_token: str) -> bool:
    """Judge what a client gets of an ending relay; False if it read later than the relay waits."""
    drained = len(relay.log_lines("relay drains"))
    with ExitStack() as sockets:
        executor = sockets.enter_context(RawExecutor(relay, "box", executor_token))
        slow = sockets.enter_context(RawClient(relay, "box", client_token, receive_buffer=4096))
        slow.send(frames.resume("slow"))
        assert executor.receive() == frames.resume("slow")
        sent = fill(relay, executor) + 1
        executor.send(frames.data("slow", 0, b"the last one"))
        wait_until(lambda: relay.metrics()['execserver_relay_frames_total{to="client"}'] == sent)

        began = time.monotonic()
        relay.signal(signal.SIGTERM)
        wait_until(lambda: len(relay.log_lines("relay drains")) > drained)
        received: list[bytes] = []
        with suppress(OSError):  # cut off
            while (message := slow.websocket.receive()) is not None:
                received.append(message)
        if time.monotonic() - began > CLOSE_SECONDS - 0.5:
            assert relay.wait() == 0
            return False

        assert len(received) == sent
        assert received[-1] == frames.data("slow", 0, b"the last one")
        assert slow.websocket.close_code == 1012
        assert relay.wait() == 0
    return True


def test_a_second_signal_ends_it_at_once(relay: RelayService) -> None:
    executor_token, client_token = tokens(relay)
    with ExitStack() as sockets:
        executor = sockets.enter_context(RawExecutor(relay, "box", executor_token))
        slow = sockets.enter_context(RawClient(relay, "box", client_token, receive_buffer=4096))
        slow.send(frames.resume("slow"))
        assert executor.receive() == frames.resume("slow")
        fill(relay, executor)

        relay.signal(signal.SIGTERM)
        wait_until(lambda: bool(relay.log_lines("relay drains")))
        relay.signal(signal.SIGINT)

        assert relay.wait() == 128 + signal.SIGINT


def test_after_a_kill_it_comes_back_with_its_tokens_on_the_same_port(relay: RelayService) -> None:
    executor_token, client_token = tokens(relay)
    with RawExecutor(relay, "box", executor_token, KEYS) as executor:
        url = relay.url
        relay.kill()
        with pytest.raises((AssertionError, OSError)):
            executor.receive()
        relay.start()

        assert relay.url == url
        with pytest.raises(UpgradeRefusedError) as again:  # it forgot all tickets, so executors register anew
            RawSocket(executor.url)
        assert again.value.status == 410
        with (
            RawExecutor(relay, "box", executor_token, KEYS) as newer,
            RawClient(relay, "box", client_token) as client,
        ):
            client.send(frames.resume("s"))
            assert newer.receive() == frames.resume("s")


def test_idle_and_half_sent_requests_do_not_keep_it(relay: RelayService) -> None:
    host, port = "127.0.0.1", int(relay.url.rpartition(":")[2])
    token = relay.token("executor", "box")
    with socket.create_connection((host, port)) as idle, socket.create_connection((host, port)) as half:
        head = (
            f"POST /cloud/environment/box/register HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        )
        half.sendall(f"{head}content-length: 10\r\n\r\n{{".encode())
        idle.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert idle.recv(100)
        began = time.monotonic()

        assert relay.stop() == 0
        assert time.monotonic() - began < 10


def test_the_service_manager_is_told_how_it_stands(tmp_path: Path) -> None:
    with (
        ServiceManager(tmp_path / "notify") as manager,
        RelayService(tmp_path / "state", env=manager.environment | {"WATCHDOG_USEC": "100000"}) as relay,
    ):
        ready = manager.message()
        assert (ready["READY"], ready["MAINPID"]) == ("1", str(relay.pid))
        assert ready["STATUS"] == f"Serving {relay.url}"
        assert manager.message() == {"WATCHDOG": "1"}
        relay.signal(signal.SIGHUP)
        said = []
        while "READY" not in (last := manager.message()):
            said.append(last)
        said.append(last)
        relay.signal(signal.SIGTERM)
        while "STOPPING" not in (last := manager.message()):
            said.append(last)
        assert relay.wait() == 0

    order = [next(iter(each)) for each in said if "WATCHDOG" not in each]
    assert order == ["RELOADING", "READY"]
