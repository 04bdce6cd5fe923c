"""A client that loses its connection again and again."""

from __future__ import annotations

import random
import time

import pytest

from tests.faults.service import Serve, Service
from tests.support.wire import Client, ReplyError, decode

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


def _resume(service: Service, session: str) -> Client:
    while True:
        client = service.connect(handshake=False)
        try:
            return client.handshake(session)
        except ReplyError as error:
            client.close()
            if error.code != ATTACHED:
                raise
