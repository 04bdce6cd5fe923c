"""A client that loses its connection, once or again and again."""

from __future__ import annotations

import fcntl
import os
import random
import sys
import termios
import time
from collections.abc import Callable

import pytest

from tests.faults.counters import LINE_BYTES, CounterCheck
from tests.faults.resuming_client import ResumingClient
from tests.faults.service import Fifo, Serve, Service, eventually
from tests.support.wire import PATIENCE, Client, ReplyError, SocketTransport, decode

CYCLES = 200
COUNT = 60_000
ATTACHED = -32010
"""The server may learn of a cut a moment after us."""


@pytest.mark.over("unix", "ws")
def test_two_hundred_cuts_lose_and_double_nothing(transport: str, serve: Serve) -> None:
    service, chance = serve(transport), random.Random(21)
    body = "i=$((i+1)); echo $i; [ $((i%250)) = 0 ] && sleep 0.01"
    script = f"i=0; while [ $i -lt {COUNT} ]; do {body}; done; exit 7"
    client = service.connect()
    client.shell(script, processId="counter")
    session = client.session_id
    chunks: dict[int, str] = {}

    def take(seq: int, chunk: str) -> None:
        assert seq not in chunks, f"number {seq} came twice"
        chunks[seq] = chunk

    def take_notified(client: Client) -> None:
        for message in client.received:
            if message.get("method") == "process/output":
                assert "lostBytes" not in message["params"]
                take(message["params"]["seq"], message["params"]["chunk"])

    for _ in range(CYCLES):
        time.sleep(chance.random() * 0.012)
        client.close()
        take_notified(client)
        client = _resume(service, session)
        page = client.call("process/read", {"processId": "counter", "afterSeq": max(chunks, default=0)})
        assert "lostBytes" not in page
        for chunk in page["chunks"]:
            take(chunk["seq"], chunk["chunk"])
    process = client.process("counter")
    if not page["closed"]:
        process.wait_closed(30)
    take_notified(client)
    output = b"".join(decode(chunks[seq]) for seq in sorted(chunks))
    assert output == b"".join(b"%d\n" % number for number in range(1, COUNT + 1))
    assert process.read(0)["exitCode"] == 7


@pytest.mark.over("unix", "ws")
def test_an_exit_before_the_last_output_is_where_it_was_for_who_resumes(
    transport: str, serve: Serve, fifo: Callable[[], Fifo]
) -> None:
    news, session = fifo(), ResumingClient(serve(transport))
    count, lines = 5, 3000
    # Nobody reads what is sent, so that nothing is taken for a while: what ends now has ended before that.
    session.client.pause()
    flood = session.start_params(["/usr/bin/yes"])
    session.client.request("process/start", flood)
    assert eventually(lambda: _stands_still(session.client), PATIENCE)
    checks = [CounterCheck() for _ in range(count)]
    rows = []
    for check in checks:
        params = session.start_params(
            ["/bin/sh", "-c", f"seq -f %015.0f 0 {lines - 1}; echo $$ >{news.path}; exit 3"]
        )
        rows.append(session.follow(params["processId"], check.take))
        session.client.request("process/start", params)
    pids = [int(news.line()) for _ in range(count)]
    assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), PATIENCE)
    session.reconnect()
    session.call("process/terminate", {"processId": flood["processId"]})

    session.finish(*rows)
    assert [check.position for check in checks] == [lines * LINE_BYTES] * count
    assert [row.exit_code for row in rows] == [3] * count
    pages = [session.call("process/read", {"processId": row.process_id}) for row in rows]
    assert [2] in [[chunk["seq"] for chunk in page["chunks"]] for page in pages], "no exit came first"


def _stands_still(client: Client) -> bool:
    """Whether there is something to read, and no more comes."""
    before = _unread(client)
    time.sleep(0.5)
    return 0 < before == _unread(client)


def _unread(client: Client) -> int:
    assert isinstance(client.transport, SocketTransport)
    return int.from_bytes(fcntl.ioctl(client.transport.socket, termios.FIONREAD, bytes(4)), sys.byteorder)


def _resume(service: Service, session: str) -> Client:
    while True:
        client = service.connect(handshake=False)
        try:
            return client.handshake(session)
        except ReplyError as error:
            client.close()
            if error.code != ATTACHED:
                raise
