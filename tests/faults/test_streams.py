"""Streams of numbered lines in both directions, under cuts and kills at random moments.

`make faults` runs the long forms: 1,000 cuts and 100 kills of the server in 128 MiB each way. They print
what they did; `docs/explanation/reliability.md` quotes it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import deque
from pathlib import Path

import pytest

from tests.faults import counters
from tests.faults.resuming_client import ResumingClient
from tests.faults.service import Serve
from tests.faults.sizes import LONG, Report
from tests.support.wire import Client, ConnectionEndedError, SocketTransport, encode

CUTS, KILLS = (1000, 100) if LONG else (60, 6)
BLOCKS = 2048 if LONG else 128
"""Of 64 KiB, in each direction."""
FAULTS_A_MOMENT = 0.012
"""Seconds within which a fault follows the traffic that it is to hit."""


class InputStream:
    """Writes numbered lines to a process; what has no answer yet is sent again after each loss."""

    def __init__(self, session: ResumingClient, process_id: str, blocks: int) -> None:
        self._session = session
        self._process_id = process_id
        self._unsent = deque(range(blocks))
        self._sent: dict[int, int] = {}
        self.sent_again = 0

    @property
    def over(self) -> bool:
        """Whether every block was accepted."""
        return not self._unsent and not self._sent

    def send(self, blocks: int) -> None:
        """Send the next blocks, and wait for nothing."""
        for _ in range(min(blocks, len(self._unsent))):
            self._request(self._unsent.popleft())

    def _request(self, block: int) -> None:
        size = counters.BLOCK_BYTES
        chunk = encode(counters.stretch(block * size, size))
        params = {"processId": self._process_id, "chunk": chunk, "writeId": f"block {block}"}
        self._sent[block] = -1
        with contextlib.suppress(OSError):
            self._sent[block] = self._session.client.request("process/write", params)

    def settle(self) -> None:
        """After a cut: take the answers that came."""
        for block, number in list(self._sent.items()):
            if number >= 0 and self._session.client.answered(number):
                assert self._session.client.result(number) == {"status": "accepted"}
                del self._sent[block]

    def resend(self) -> None:
        """On a new connection: send what was not answered, in its order."""
        for block in sorted(self._sent):
            self.sent_again += 1
            self._request(block)

    def wait(self) -> None:
        """Wait until all that was sent is answered."""
        with contextlib.suppress(ConnectionEndedError):
            client = self._session.client
            client.wait_until(lambda: all(map(client.answered, self._sent.values())), 30)


@pytest.mark.timeout(1800 if LONG else 120)
def test_a_stream_each_way_survives_cuts_and_kills_without_losing_or_doubling_a_byte(
    serve: Serve, folder: Path, report: Report
) -> None:
    chance = random.Random(21)
    service = serve("unix", may_fail=True)
    session = ResumingClient(service)
    credit_path = folder / "credit"
    os.mkfifo(credit_path)
    credit = os.open(credit_path, os.O_RDWR)
    check, answer = counters.CounterCheck(), bytearray()
    size = BLOCKS * counters.BLOCK_BYTES
    rows = [
        session.follow(session.start(*counters.writer(credit_path, BLOCKS)), check.take),
        session.follow(
            session.start(*counters.reader(size), pipeStdin=True), lambda data, lost: answer.extend(data)
        ),
    ]
    stdin = InputStream(session, rows[1].process_id, BLOCKS)
    faults = ["cut"] * CUTS + ["kill"] * KILLS
    chance.shuffle(faults)
    given = 0
    begin = time.monotonic()
    for number, fault in enumerate(faults, 1):
        due = BLOCKS * number // len(faults)
        os.write(credit, bytes(due - given))
        stdin.send(due - given)
        given = due
        time.sleep(chance.random() * FAULTS_A_MOMENT)
        if fault == "kill":
            service.signal_server(signal.SIGKILL)
            service.wait_for_new_server()
        session.cut(chance.choice([Client.close, _half_close]))
        stdin.settle()
        session.resume()
        stdin.resend()
    while not stdin.over:
        stdin.wait()
        stdin.settle()
    session.finish(*rows, within=60)
    os.close(credit)
    assert (check.position, rows[0].lost_bytes) == (size, 0)
    expected = counters.digest_of(size)
    assert check.digest.hexdigest() == expected
    assert bytes(answer) == expected.encode() + b"\n"
    assert [row.exit_code for row in rows] == [7, 9]
    report(
        f"{CUTS} cuts and {KILLS} kills of the server in {time.monotonic() - begin:.0f} s: "
        f"{size / 1e6:.0f} MB out, {size / 1e6:.0f} MB in, sha256 {expected[:16]} both, "
        f"none lost, none doubled; {session.connections} connections, {stdin.sent_again} writes sent again"
    )


def _half_close(client: Client) -> None:
    """As a client that ends its sending first."""
    assert isinstance(client.transport, SocketTransport)
    with contextlib.suppress(OSError):
        client.transport.finish_sending()
