"""What processes listen on, and byte streams to it. The servers are real programs of the session."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.conformance.test_sessions import resume
from tests.conformance.test_survive import kill_server, read_to_end, wait_for
from tests.sandbox.profiles import READ_ONLY, context
from tests.support.port_servers import (
    ECHO,
    FULL,
    LISTEN,
    SEND,
    TALK,
    close_input,
    listen,
    open_port,
    ports,
    sent_by,
    stream_of,
)
from tests.support.wire import PATIENCE, Client, Json, Server, decode, encode

pytestmark = pytest.mark.transports("unix")

MIB = 1 << 20


def listening(client: Client) -> list[tuple[int, bool]]:
    """The events so far: ports, and whether they began or ended."""
    events = [item["params"] for item in client.notifications if item["method"] == "port/listening"]
    return [(each["port"], each["listening"]) for each in events]


# -- what listens


@pytest.mark.transports("unix", "ws")
@pytest.mark.statement("PT1", "PT2")
def test_the_listeners_of_all_descendants_are_listed(endpoint: Endpoint, client: Client) -> None:
    assert ports(client) == []
    process, port = listen(client)
    [entry] = ports(client)
    assert entry == {
        "port": port,
        "address": "127.0.0.1",
        "family": "ipv4",
        "processId": process.id,
        "sessionId": client.session_id,
        "pid": entry["pid"],
        "name": Path(f"/proc/{entry['pid']}/comm").read_text().rstrip("\n"),
        "sandboxed": False,
    }
    assert os.getsid(entry["pid"]) == entry["pid"], "the leader itself"
    assert ports(endpoint.connect()) == [], "another session has none"
    process.terminate()
    process.wait_closed()
    assert ports(client) == []


@pytest.mark.statement("PT1")
def test_a_server_that_outlives_its_command_is_listed(endpoint: Endpoint, here: Path) -> None:
    client = endpoint.private("--process-ttl", "0.2").connect()
    file = here / "port"
    script = 'setsid "$0" -c "$1" ::1 0 </dev/null >"$2" 2>&1 & exit 0'
    client.start("/bin/sh", "-c", script, sys.executable, LISTEN + ECHO, str(file)).wait_closed()
    port = int(wait_for(file, "\n"))
    deadline = time.monotonic() + PATIENCE
    while ports(client)[0]["processId"] is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [entry] = ports(client)
    assert (entry["port"], entry["address"], entry["family"]) == (port, "::1", "ipv6")
    stream = open_port(client, port)
    stream.write("hello", "1")
    stream.wait_output(b"hello")


@pytest.mark.statement("PT2")
def test_what_several_processes_share_is_one_entry(client: Client) -> None:
    process, port = listen(client, "os.fork(); os.fork(); print('up', flush=True)" + ECHO)
    process.wait_output(lambda output: output.count(b"up") == 4)
    [entry] = ports(client)
    assert (entry["port"], entry["pid"]) == (port, os.getpgid(entry["pid"]))


FOREIGN = """
import socket
listener = socket.socket()
listener.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND, which needs no rights
listener.bind(("198.51.100.7", 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
listener.accept()
"""
"""Listens on an address of another machine: no connection arrives, and one to it leaves this machine."""


@pytest.mark.statement("PT11")
def test_a_listener_leads_no_connection_to_another_machine(client: Client) -> None:
    process = client.start(sys.executable, "-c", FOREIGN)
    process.wait_output(lambda output: output.endswith(b"\n"))
    [entry] = ports(client)
    assert entry["address"] == "198.51.100.7"
    refused = client.refused("port/open", {"processId": "s", "port": entry["port"]})
    assert refused.code == -32603
    assert "assign" in refused.message, "it was not tried"
    assert "s" not in {each["processId"] for each in client.call("process/list")["processes"]}


@pytest.mark.transports("unix", "unix-ws")
@pytest.mark.statement("PT1")
def test_those_of_other_sessions_are_reached_where_their_processes_are(
    endpoint: Endpoint, client: Client
) -> None:
    _, port = listen(client)
    other = endpoint.connect()
    [entry] = ports(other, sessionId=client.session_id)
    assert entry in ports(other, allSessions=True)
    assert other.refused("port/list", {"sessionId": client.session_id, "allSessions": True}).code == -32602
    assert other.refused("port/open", {"processId": "s", "port": port}).code == -32600
    stream = open_port(other, port, sessionId=client.session_id)
    stream.write("from outside", "1")
    stream.wait_output(b"from outside")
    assert "stream" in {each["processId"] for each in other.call("process/list")["processes"]}


@pytest.mark.transports("ws")
@pytest.mark.statement("PT1")
def test_a_connection_without_proof_reaches_its_own_session_only(endpoint: Endpoint, client: Client) -> None:
    stranger = endpoint.connect()
    whose: list[Json] = [{"allSessions": True}, {"sessionId": client.session_id}]
    for params in whose:
        assert "only reached over a Unix socket" in stranger.refused("port/list", params).message
    params = {"processId": "s", "port": 1, "sessionId": client.session_id}
    assert "only reached over a Unix socket" in stranger.refused("port/open", params).message


@pytest.mark.statement("PT4", "PT5")
def test_changes_are_reported_while_they_are_watched(endpoint: Endpoint) -> None:
    client = endpoint.connect(extensions=True)
    first, port = listen(client)
    assert [entry["port"] for entry in ports(client, watch=True)] == [port]
    second, other = listen(client)
    client.wait_until(lambda: listening(client) == [(other, True)], 10)
    first.terminate()
    second.terminate()
    client.wait_until(lambda: len(listening(client)) == 3, 10)
    assert sorted(listening(client)[1:]) == sorted([(port, False), (other, False)])
    assert ports(client, watch=False) == []
    listen(client)
    time.sleep(1.2)
    assert len(listening(client)) == 3


# -- streams


@pytest.mark.transports("unix", "ws", "unix-ws", "relay")
@pytest.mark.statement("PT10", "PT12")
def test_bytes_go_both_ways(client: Client) -> None:
    _, port = listen(client)
    answer = client.call("port/open", {"processId": "s", "port": port})
    assert answer == {"processId": "s", "address": "127.0.0.1", "port": port}
    stream = client.process("s")
    data = os.urandom(3 * MIB)
    for start in range(0, len(data), MIB):
        stream.write(data[start : start + MIB], str(start))
    stream.wait_output(lambda output: len(output) >= len(data))
    assert stream.output == data
    close_input(stream)
    stream.wait_closed()
    assert stream.exit_code == 0
    assert stream_of(stream, "stderr") in (b"", b"eof\n")


@pytest.mark.statement("PT12")
def test_either_side_may_end_its_direction_first(client: Client) -> None:
    process, port = listen(client, TALK)
    stream = open_port(client, port)
    stream.wait_output(b"eof\n")
    assert (stream_of(stream), stream_of(stream, "stderr")) == (b"first", b"eof\n")
    kinds = [params["stream"] for _, params in stream.log.events]
    assert kinds == ["stdout", "stderr"]
    assert not stream.log.exited
    stream.write("and more", "1")
    close_input(stream)
    process.wait_output(b"heard and more")
    assert stream.wait_closed().exit_code == 0


@pytest.mark.statement("PT13")
def test_a_connection_that_breaks_ends_the_stream_with_the_reason(client: Client) -> None:
    reset = """
peer, _ = listener.accept()
peer.sendall(b"before")
peer.recv(1)
peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0")
peer.close()
"""
    _, port = listen(client, reset)
    stream = open_port(client, port)
    stream.wait_output(b"before")
    stream.write("x", "1")
    stream.wait_closed()
    assert (stream.exit_code, stream_of(stream)) == (1, b"before")
    assert b"reset by peer" in stream_of(stream, "stderr")


@pytest.mark.statement("PT13")
def test_a_listener_that_does_not_accept_is_an_error_and_leaves_no_process(client: Client) -> None:
    process, port = listen(client, FULL)
    process.wait_output(b"full")
    error = client.refused("port/open", {"processId": "s", "port": port}, timeout=20)
    assert error.code == -32603
    assert f"no connection to 127.0.0.1 port {port}: timed out" in error.message
    assert "s" not in {each["processId"] for each in client.call("process/list")["processes"]}


@pytest.mark.statement("PT11")
def test_only_what_descendants_listen_on_is_opened(endpoint: Endpoint, client: Client) -> None:
    other = endpoint.connect()
    _, foreign = listen(other)
    error = client.refused("port/open", {"processId": "s", "port": foreign})
    assert error.message.endswith(f"listens on port {foreign}; none listens on a TCP port")
    process, port = listen(client)
    error = client.refused("port/open", {"processId": "s", "port": foreign})
    assert error.message.endswith(f"these do: 127.0.0.1 port {port} of process {process.id}")
    for choice in ({"address": "127.0.0.2"}, {"ofProcess": "nobody"}):
        assert client.refused("port/open", {"processId": "s", "port": port, **choice}).code == -32600


@pytest.mark.statement("PT11")
def test_one_of_several_listeners_is_chosen(client: Client) -> None:
    first, port = listen(client)
    argv = [sys.executable, "-c", LISTEN + "while True: listener.accept()[0].sendall(b'second')"]
    second = client.start(*argv, "127.0.0.2", str(port))
    second.wait_output(b"\n")
    error = client.refused("port/open", {"processId": "s", "port": port})
    assert "choose one by `ofProcess` or `address`" in error.message
    assert f"127.0.0.1 port {port} of process {first.id}" in error.message
    assert f"127.0.0.2 port {port} of process {second.id}" in error.message
    open_port(client, port, "a", address="127.0.0.2").wait_output(b"second")
    open_port(client, port, "b", ofProcess=second.id).wait_output(b"second")
    stream = open_port(client, port, "c", ofProcess=first.id)
    stream.write("first", "1")
    stream.wait_output(b"first")


@pytest.mark.statement("PT11")
def test_of_the_sockets_of_one_process_that_of_ipv4_is_preferred(client: Client) -> None:
    both = """
six = socket.socket(socket.AF_INET6)
six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
six.bind(("::", listener.getsockname()[1]))
six.listen()
print("both", flush=True)
"""
    process, port = listen(client, both + ECHO, address="0.0.0.0")
    process.wait_output(b"both")
    assert [entry["address"] for entry in ports(client)] == ["0.0.0.0", "::"]
    answer = client.call("port/open", {"processId": "s", "port": port})
    assert answer["address"] == "0.0.0.0"
    stream = client.process("s")
    stream.write("four", "1")
    stream.wait_output(b"four")


@pytest.mark.statement("PT10")
@pytest.mark.parametrize("address", ["0.0.0.0", "127.9.9.9", "::1", "::", "::ffff:127.0.0.1"])
def test_a_listener_on_any_address_is_reached(client: Client, address: str) -> None:
    _, port = listen(client, address=address)
    assert client.call("port/open", {"processId": "s", "port": port})["address"] == address
    stream = client.process("s")
    stream.write("any", "1")
    stream.wait_output(b"any")


@pytest.mark.statement("PT11")
def test_a_server_for_one_connection_is_reached(client: Client) -> None:
    process, port = listen(
        client, "peer, _ = listener.accept(); listener.close(); peer.sendall(b'once'); peer.recv(1)"
    )
    stream = open_port(client, port)
    stream.wait_output(b"once")
    close_input(stream)
    process.wait_closed()
    assert stream.wait_closed().exit_code == 0


# -- flow control


@pytest.mark.statement("PT14")
def test_a_reader_that_stalls_loses_nothing(endpoint: Endpoint) -> None:
    client = endpoint.private().connect(extensions=True)
    server, port = listen(client, SEND, "80")
    stream = open_port(client, port)
    stream.wait_output(lambda output: len(output) > MIB)
    client.pause()
    with endpoint.endpoints[-1].server.connect() as witness:
        settled = wait_for_rest(lambda: retained(witness, client, "stream"))
        assert settled <= 12 * MIB, "the listener waits"
        client.resume()
        stream.wait_output(lambda output: output.endswith(b"eof\n"), 60)
    close_input(stream)
    stream.wait_closed()
    assert hashlib.sha256(stream_of(stream)).hexdigest() == sent_by(80)
    assert (stream.log.lost_bytes, stream.exit_code) == (0, 0)
    assert server.wait_closed().exit_code == 0


@pytest.mark.statement("PT14")
def test_nothing_is_lost_while_no_client_is_connected(endpoint: Endpoint) -> None:
    private = endpoint.private("--retained-output-bytes", str(4 * MIB))
    client = private.connect(extensions=True)
    _, port = listen(client, SEND, "24")
    stream = open_port(client, port)
    stream.wait_output(lambda output: len(output) > 0)
    session = client.session_id
    client.close()
    with private.server.connect() as witness:
        assert wait_for_rest(lambda: retained(witness, client, "stream")) <= 4 * MIB
    has, cursor = stream_of(stream), stream.log.seqs[-1]
    again = resume(private, session, extensions=True)
    close_input(again.process("stream"))
    chunks, page = read_to_end(again.process("stream"), cursor)
    assert "lostBytes" not in page
    rest = b"".join(decode(chunk["chunk"]) for chunk in chunks if chunk["stream"] == "stdout")
    assert hashlib.sha256(has + rest).hexdigest() == sent_by(24)


def retained(witness: Client, owner: Client, name: str) -> int:
    listed = witness.call("process/list", {"sessionId": owner.session_id})["processes"]
    [size] = [each["retainedBytes"] for each in listed if each["processId"] == name]
    return int(size)


def wait_for_rest(measure: Callable[[], int]) -> int:
    """The value once it has not changed for a second."""
    deadline = time.monotonic() + PATIENCE
    value, since = measure(), time.monotonic()
    while time.monotonic() - since < 1:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        if (now := measure()) != value:
            value, since = now, time.monotonic()
    return value


@pytest.mark.statement("PT14")
def test_on_a_full_disk_the_listener_waits(on_a_small_disk: Server) -> None:
    with on_a_small_disk.connect() as client:
        _, port = listen(client, SEND, "12")
        stream = open_port(client, port)
        stream.wait_output(lambda output: len(output) > MIB)
        client.pause()
        time.sleep(3)
        client.resume()
        stream.wait_output(lambda output: output.endswith(b"eof\n"), 40)
        assert hashlib.sha256(stream_of(stream)).hexdigest() == sent_by(12)
        assert stream.log.lost_bytes == 0


# -- names, limits, cuts


@pytest.mark.statement("PT15")
def test_a_repeated_request_is_answered_again(endpoint: Endpoint, client: Client) -> None:
    process, port = listen(client)
    wanted = {"processId": "s", "port": port, "address": "127.0.0.1"}
    answer = client.call("port/open", wanted)
    assert client.call("port/open", wanted) == answer
    assert "another `address`" in client.refused("port/open", {"processId": "s", "port": port}).message
    taken = client.refused("port/open", {"processId": process.id, "port": port})
    assert taken.message == f"process {process.id} already exists"
    session = client.session_id
    client.close()
    again = resume(endpoint, session)
    assert again.call("port/open", wanted) == answer
    again.process("s").write("still here", "1")
    again.process("s").wait_output(b"still here")


@pytest.mark.statement("PT17")
def test_streams_of_a_session_are_limited(endpoint: Endpoint) -> None:
    client = endpoint.private().connect()
    _, port = listen(client)
    numbers = client.pipeline(
        *(("port/open", {"processId": str(number), "port": port}) for number in range(257))
    )
    errors = [error for number in numbers if (error := client.reply(number, 100).get("error"))]
    assert [error["message"] for error in errors] == ["the session has 256 open streams: close some first"]
    close_input(client.process("0"))
    client.process("0").wait_closed()
    open_port(client, port, "more")


@pytest.mark.statement("PT18")
def test_a_terminate_cancels_an_open_and_ends_a_stream(client: Client) -> None:
    process, port = listen(client, FULL)
    process.wait_output(b"full")
    began = time.monotonic()
    number = client.request("port/open", {"processId": "s", "port": port})
    while len(client.call("process/list")["processes"]) < 2:
        time.sleep(0.01)
    assert client.process("s").terminate() == {"running": True}
    assert client.failure(number).message == "the start of process s was cancelled"
    assert time.monotonic() - began < 9, "the listener would not have accepted it for ten seconds"
    _, port = listen(client)
    at_once, ended = client.pipeline(
        ("port/open", {"processId": "s", "port": port}), ("process/terminate", {"processId": "s"})
    )
    assert client.result(ended) == {"running": True}
    assert client.failure(at_once).message == "the start of process s was cancelled"
    stream = open_port(client, port, "s")
    stream.terminate()
    assert stream.wait_closed().exit_code == 128 + signal.SIGKILL


@pytest.mark.statement("PT16")
def test_no_byte_is_lost_or_doubled_when_servers_are_killed(endpoint: Endpoint) -> None:
    private = endpoint.private()
    client = private.connect(extensions=True)
    _, port = listen(client)
    open_port(client, port)
    data = os.urandom(6 * MIB)
    received, cursor, kills = b"", 0, 0
    for start in range(0, len(data), MIB // 2):
        piece = data[start : start + MIB // 2]
        params = {"processId": "stream", "chunk": encode(piece), "writeId": str(start)}
        number = client.request("process/write", params)
        if start % (2 * MIB) == MIB:
            session = client.session_id
            kill_server(private)
            client.close()
            kills += 1
            client = resume(private, session, extensions=True)
            number = client.request("process/write", params)
        assert client.result(number)["status"] == "accepted"
        while len(received) < start + len(piece):
            page = client.process("stream").read(cursor, wait_ms=10_000)
            assert "lostBytes" not in page
            received += b"".join(decode(each["chunk"]) for each in page["chunks"])
            cursor = page["nextSeq"] - 1
    assert kills == 3
    assert received == data
    close_input(client.process("stream"))
    chunks, page = read_to_end(client.process("stream"), cursor)
    assert page["exitCode"] == 0
    assert {each["stream"] for each in chunks} <= {"stderr"}


@pytest.mark.statement("PT16", "PT14")
def test_a_flood_goes_on_where_it_was_when_servers_are_killed(endpoint: Endpoint) -> None:
    private = endpoint.private()
    client = private.connect(extensions=True)
    _, port = listen(client, SEND, "32")
    close_input(open_port(client, port))
    digest, size, cursor, kills = hashlib.sha256(), 0, 0, 0
    while True:
        page = client.process("stream").read(cursor, max_bytes=MIB, wait_ms=10_000)
        assert "lostBytes" not in page
        for chunk in page["chunks"]:
            if chunk["stream"] == "stdout":
                digest.update(data := decode(chunk["chunk"]))
                size += len(data)
        cursor = page["nextSeq"] - 1
        if page["closed"] and not page["chunks"]:
            break
        if size > (kills + 1) * 8 * MIB:
            kill_server(private)
            session = client.session_id
            client.close()
            kills += 1
            client = resume(private, session, extensions=True)
    assert kills == 3
    assert (size, digest.hexdigest()) == (32 * MIB, sent_by(32))
    assert page["exitCode"] == 0


# -- sandboxes


@pytest.mark.statement("PT3", "PT10", "PT19")
def test_a_server_in_a_sandbox_without_network_is_reached(endpoint: Endpoint) -> None:
    client = endpoint.private("--require-sandbox").connect()
    managed: dict[str, Json] = {"enforceManagedNetwork": True, "networkProxy": {"proxy": {"enabled": True}}}
    servers = [listen(client, sandbox=context(READ_ONLY), **managed) for _ in range(2)]
    assert len(ports(client)) == 2, "and those of the proxy are not listed"
    entries = {entry["processId"]: entry for entry in ports(client)}
    for process, port in servers:
        assert entries[process.id]["port"] == port
        assert entries[process.id]["sandboxed"]
        assert entries[process.id]["name"].startswith("python")
        stream = open_port(client, port, f"to {process.id}", ofProcess=process.id)
        stream.write("into the sandbox", "1")
        stream.wait_output(b"into the sandbox")
        close_input(stream)
        assert stream.wait_closed().exit_code == 0
