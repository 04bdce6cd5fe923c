"""What a real daemon shows of itself over HTTP."""

from __future__ import annotations

import fcntl
import http.client
import signal
import socket
import struct
import termios
import threading
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.conftest import StartServer
from tests.support.wire import PATIENCE, Server, UpgradeRefusedError, connect_unix

TOKEN = "a token of the tests"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> Answer:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): v for name, v in headers.items()})
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


Samples = defaultdict[tuple[str, ...], float]


def scrape(server: Server) -> Samples:
    """Every sample of the page, by name and label values, that of `method` first."""
    answer = ask(server, "/metrics")
    assert answer.status == 200
    samples: Samples = defaultdict(float)
    for family in parse_text(answer.body.decode()):
        for sample in family.samples:
            labels = sorted(sample.labels.items(), key=lambda label: label[0] != "method")
            values = (value for _, value in labels)
            samples[(sample.name.removeprefix("execserver_"), *values)] = sample.value
    return samples


RESTLESS = (
    "uptime", "request_duration", "received_bytes", "sent_bytes", "process_cpu", "process_resident",
    "process_virtual", "process_open", "filesystem_threads",
)  # fmt: skip


def moved(before: Samples, after: Samples) -> dict[tuple[str, ...], float]:
    """What changed, but for what changes with time."""
    names = {*before, *after}
    return {
        name: after[name] - before[name]
        for name in names
        if after[name] != before[name] and not name[0].startswith(RESTLESS)
    }


def wait_for(server: Server, name: tuple[str, ...], value: float) -> None:
    """Scrape until a sample has a value: what ends at the server's side, and sends nothing."""
    deadline = time.monotonic() + PATIENCE
    while (found := scrape(server)[name]) != value:
        assert time.monotonic() < deadline, f"{name} is {found}, not {value}"


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server("ws://127.0.0.1:0", "--retained-output-bytes", "1048576")


@pytest.fixture
def guarded(start_server: StartServer, tmp_path: Path) -> Server:
    (tmp_path / "token").write_text(TOKEN)
    return start_server(
        "ws://127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file", str(tmp_path / "token")
    )


# -- who may look


@pytest.mark.parametrize("path", ["/readyz", "/livez", "/metrics"])
def test_without_authentication_every_page_is_shown(server: Server, path: str) -> None:
    assert ask(server, path).status == 200


def test_with_authentication_readyz_alone_is_open(guarded: Server) -> None:
    assert ask(guarded, "/readyz").status == 200
    for path in ("/livez", "/metrics"):
        refused = ask(guarded, path)
        assert refused.status == 401
        assert refused.body == b"missing websocket bearer token"
        assert ask(guarded, path, Authorization="Bearer wrong").body == b"invalid websocket bearer token"
        assert ask(guarded, path, Authorization=f"Bearer {TOKEN}").status == 200


@pytest.mark.parametrize("headers", [{"Origin": "http://127.0.0.1"}, {"Host": "rebound.example"}])
def test_browsers_and_foreign_names_are_refused(server: Server, headers: dict[str, str]) -> None:
    for path in ("/readyz", "/livez", "/metrics"):
        assert ask(server, path, **headers).status == 403


@pytest.mark.parametrize("path", ["/readyz", "/livez", "/metrics"])
def test_head_has_headers_only_and_other_methods_are_not_allowed(server: Server, path: str) -> None:
    got, head, posted = (ask(server, path, method) for method in ("GET", "HEAD", "POST"))

    assert (head.status, head.body) == (200, b"")
    assert head.headers.get("content-type") == got.headers.get("content-type")
    assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD")


# -- what the numbers say


def test_counters_move_by_exactly_what_was_done(server: Server) -> None:
    before = scrape(server)
    with server.connect() as client:
        for _ in range(3):
            client.call("environment/status")
        for script in ("printf 12345", "exit 3", "kill -9 $$"):
            client.shell(script).wait_closed()
        cat = client.start("/bin/cat", pipeStdin=True)
        cat.write(b"seven b", "w1")
        cat.wait_output(b"seven b")
        cat.interrupt()
        cat.wait_closed()
        client.refused("process/start", client.start_params(["/no/such/program"]))
        client.refused("process/read", {"processId": "unknown"})
        client.refused("fs/readFile", {"path": 7})
        client.refused("no/such")
        after = scrape(server)

    assert moved(before, after) == {
        ("requests_total", "initialize", "ok"): 1,
        ("requests_total", "environment/status", "ok"): 3,
        ("requests_total", "process/start", "ok"): 4,
        ("requests_total", "process/start", "-32603"): 1,
        ("requests_total", "process/read", "-32600"): 1,
        ("requests_total", "process/write", "ok"): 1,
        ("requests_total", "process/signal", "ok"): 1,
        ("requests_total", "fs/readFile", "-32602"): 1,
        ("requests_total", "unknown", "-32601"): 1,
        ("connections_opened_total", "websocket"): 1,
        ("connections", "websocket"): 1,
        ("dialects_total", "lean"): 1,
        ("sessions_opened_total",): 1,
        ("sessions",): 1,
        ("processes_started_total",): 4,
        ("process_start_failures_total",): 1,
        ("process_exits_total", "success"): 1,
        ("process_exits_total", "failure"): 1,
        ("process_exits_total", "signal"): 2,
        ("process_signals_total", "interrupt"): 1,
        ("output_bytes_total",): 12,
        ("retained_output_bytes",): 12,
        ("stdin_bytes_total",): 7,
    }
    assert after["request_duration_seconds_count", "environment/status"] == 3
    assert after["request_duration_seconds_bucket", "process/start", "+Inf"] == 5
    assert 0 < after["request_duration_seconds_sum", "process/start"] < PATIENCE
    wait_for(server, ("connections", "websocket"), 0)


def test_a_request_that_waits_takes_as_long_as_it_waited(server: Server) -> None:
    with server.connect() as client:
        process = client.shell("exec sleep 600")

        client.call("process/read", {"processId": process.id, "afterSeq": 0, "waitMs": 300})

        samples = scrape(server)
        assert samples["requests_total", "process/read", "ok"] == 1
        assert 0.3 <= samples["request_duration_seconds_sum", "process/read"] < PATIENCE
        process.terminate()
        process.wait_closed()


def test_sessions_whose_time_is_over_are_counted(start_server: StartServer) -> None:
    server = start_server("ws://127.0.0.1:0", "--session-ttl", "0.1")
    with server.connect() as client:
        client.shell("exec sleep 600")
    server.connect().close()
    wait_for(server, ("sessions_ended_total",), 2)
    wait_for(server, ("processes",), 0)

    samples = scrape(server)
    assert (samples["sessions",], samples["sessions_opened_total",]) == (0, 2)
    assert samples["process_signals_total", "tree"] == 1
    assert samples["kill_survivors_total",] == 0


def test_a_session_that_is_resumed_is_counted(server: Server) -> None:
    first = server.connect()
    first.close()
    wait_for(server, ("connections", "websocket"), 0)

    with server.connect(resume=first.session_id):
        samples = scrape(server)

    assert samples["sessions_resumed_total",] == 1
    assert samples["sessions_opened_total",] == 1


def test_a_gap_is_counted_when_a_client_is_told_of_it(server: Server) -> None:
    with server.connect() as client:
        process = client.shell("head -c 3000000 /dev/zero").wait_closed()
        before = scrape(server)

        page = client.call("process/read", {"processId": process.id, "afterSeq": 0})

        assert page["lostBytes"] > 0
        assert moved(before, scrape(server)) == {
            ("requests_total", "process/read", "ok"): 1,
            ("output_gaps_total",): 1,
            ("output_gap_bytes_total",): page["lostBytes"],
        }


def test_refusals_are_counted_by_status(guarded: Server) -> None:
    def refusals() -> dict[str, str]:
        page = ask(guarded, "/metrics", Authorization=f"Bearer {TOKEN}").body.decode()
        lines = [line for line in page.splitlines() if "connections_refused_total{" in line]
        return {line.split('"')[1]: line.rpartition(" ")[2] for line in lines}

    ask(guarded, "/livez")
    ask(guarded, "/livez")
    ask(guarded, "/nowhere")
    with pytest.raises(UpgradeRefusedError):
        guarded.connect()

    assert refusals() == {"401": "3.0", "404": "1.0"}


def test_messages_that_cannot_be_read_are_counted(server: Server) -> None:
    with server.connect() as client:
        client.send_raw(b"{not json")
        client.reply(-1)

        assert scrape(server)["parse_errors_total",] == 1


def test_bytes_are_counted_with_their_framing(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("ws://127.0.0.1:0")
    with server.connect() as client:
        before = scrape(server)

        client.call("environment/status")

        # A masked frame has a head of 6 bytes, one of ours 2: both messages are short.
        after, answer = scrape(server), len(client.raw[-1])
        question = len(b'{"id": 2, "method": "environment/status"}')
        assert after["sent_bytes_total",] - before["sent_bytes_total",] == 2 + answer
        assert after["received_bytes_total",] - before["received_bytes_total",] == 6 + question


def test_no_label_and_no_line_comes_from_a_client(server: Server, tmp_path: Path) -> None:
    secret = "Xq7-never-to-be-shown"
    with server.connect() as client:
        process = client.start("/bin/echo", secret, processId=secret, env={"NAME": secret})
        process.wait_closed()
        client.refused(secret)
        client.refused(f'"}} 1\n{secret}{{a="')
        client.refused("fs/readFile", {"path": f"file:///{secret}"})
        ask(server, f"/{secret}", X_Header=secret)

        page = ask(server, "/metrics").body.decode()

    assert scrape(server)["requests_total", "unknown", "-32601"] == 2
    for word in (secret, client.session_id, "/bin/echo", "127.0.0.1", str(server.port)):
        assert word not in page


def test_openmetrics_is_shown_to_clients_that_accept_it(server: Server) -> None:
    plain = ask(server, "/metrics")
    other = ask(server, "/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.3")

    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert other.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in parse_openmetrics(other.body.decode())}  # type: ignore[no-untyped-call]
    assert {"execserver_requests", "process_resident_memory_bytes"} <= names


def test_scrapes_at_once_are_all_answered(server: Server) -> None:
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(server, "/metrics"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert [answer.status for answer in answers] == [200] * 8


def test_the_pages_are_on_unix_sockets_too(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(f"unix://{tmp_path}/s")
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(PATIENCE)
        peer.connect(f"{tmp_path}/s")
        peer.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = b"".join(iter(lambda: peer.recv(65536), b""))

    assert page.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'execserver_connections{transport="unix"} 0.0\n' in page
    assert server.running


# -- the end


def test_while_it_stops_readyz_says_so(server: Server) -> None:
    client = server.connect()
    client.call("environment/status")
    client.pause()
    # More than the sockets hold: the daemon waits for it to be taken before it goes.
    client.send_all(*({"id": f"info{n}", "method": "environment/info"} for n in range(40_000)))
    wait_until_full(client.websocket.socket)
    server.process.send_signal(signal.SIGTERM)

    deadline = time.monotonic() + PATIENCE
    while (answer := ask(server, "/readyz")).status == 200:
        assert time.monotonic() < deadline

    assert (answer.status, answer.body) == (503, b"stopping")
    assert server.process.wait(PATIENCE) == 0
    client.resume()
    client.close()


def test_a_newline_peer_is_no_http(start_server: StartServer, tmp_path: Path) -> None:
    start_server(f"unix://{tmp_path}/s")
    with connect_unix(tmp_path / "s") as client:
        assert client.call("server/health")["status"] == "ok"


def wait_until_full(peer: socket.socket) -> None:
    """Until the kernel holds unread answers for us, and no more come."""
    queued, deadline = -1, time.monotonic() + PATIENCE
    while (now := unread(peer)) != queued or not now:
        queued = now
        assert time.monotonic() < deadline
        time.sleep(0.05)


def unread(peer: socket.socket) -> int:
    return struct.unpack("i", fcntl.ioctl(peer.fileno(), termios.FIONREAD, b"\0" * 4))[0]  # type: ignore[no-any-return]
