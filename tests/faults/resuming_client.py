"""A client that goes on after every loss of its connection, and believes nothing it has not checked.

1. Whatever ends a connection, the next one resumes the same session.
2. A number of an event is taken once. Pushed and read events of one connection form one row without a hole;
   a hole is a failure unless the event behind it states the loss.
3. A write without an answer is sent again, with its id.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence

from tests.faults.service import Service
from tests.support.wire import PATIENCE, Client, ConnectionEndedError, Json, ReplyError, decode

ATTACHED = -32010
"""The server may learn of a cut a moment after us."""

RETRY_SECONDS = 0.002
"""Between attempts to resume."""


class EventRow:
    """The events of one process in the order of their numbers, over any number of connections.

    Args:
        process_id: whose.
        take: called with the bytes of each chunk, and with how many bytes are lost in front of it.
    """

    def __init__(self, process_id: str, take: Callable[[bytes, int], None]) -> None:
        self.process_id = process_id
        self.last_seq = 0
        self.lost_bytes = 0
        self.exit_code: int | None = None
        self.exited = False
        self.closed = False
        self._take = take

    def _output(self, event: Json, lost: int) -> None:
        """File one chunk, which states that `lost` bytes are missing in front of it."""
        seq = event["seq"]
        assert seq > self.last_seq, f"{self.process_id}: number {seq} came twice; at {self.last_seq}"
        assert seq == self.last_seq + 1 or lost, f"{self.process_id}: {self.last_seq} is followed by {seq}"
        self.last_seq = seq
        self.lost_bytes += lost
        self._take(decode(event["chunk"]), lost)

    def add_page(self, page: Json, after_seq: int) -> None:
        """File the answer to a `process/read` that asked for what is behind `after_seq`."""
        try:
            self._page(page, after_seq)
        except AssertionError as error:
            error.add_note(f"in {_outline(page)}")
            raise

    def _page(self, page: Json, after_seq: int) -> None:
        lost, first = int(page.get("lostBytes", 0)), page.get("firstSeq")
        # That of an exit is the one number that no page gives: it may lie between two chunks.
        unplaced = bool(page["exited"]) and not self.exited
        for chunk in page["chunks"]:
            seq = chunk["seq"]
            assert seq > after_seq, f"{self.process_id}: number {seq} was not asked for"
            # Pushed before the answer: the server holds events back for a moment only.
            if seq > self.last_seq:
                if unplaced and seq == self.last_seq + 2:
                    self.last_seq, unplaced = seq - 1, False
                self._output(chunk, lost if seq == first else 0)
        following = page["nextSeq"] - 1 - self.last_seq
        ends = unplaced + (bool(page["closed"]) and not self.closed)
        assert lost or following <= 0 or following == ends, f"{self.process_id}: {self.last_seq} is the last"
        if page["exited"]:
            self._exit(page["exitCode"])
        self.closed = self.closed or page["closed"]
        self.last_seq = max(self.last_seq, page["nextSeq"] - 1)

    def add_notification(self, method: str, params: Json) -> None:
        """File one notification."""
        if method == "process/output":
            self._output(params, int(params.get("lostBytes", 0)))
            return
        assert params["seq"] == self.last_seq + 1, f"{self.last_seq} is followed by {method} {params}"
        self.last_seq = params["seq"]
        if method == "process/exited":
            assert not self.exited, params
            self._exit(params["exitCode"])
        elif method == "process/closed":
            assert self.exited, params
            assert not self.closed, params
            self.closed = True

    def _exit(self, code: int) -> None:
        assert self.exit_code in (None, code), f"exit code {self.exit_code}, later {code}"
        self.exited, self.exit_code = True, code


def _outline(page: Json) -> Json:
    """A page with the sizes of its chunks for their bytes."""
    sizes = [(chunk["seq"], len(decode(chunk["chunk"]))) for chunk in page["chunks"]]
    return {**page, "chunks": sizes}


class ResumingClient:
    """One session on however many connections it takes.

    Args:
        service: what to connect to.
        dial: makes a connection on which nothing was said; the service's own way unless given.
    """

    def __init__(self, service: Service, dial: Callable[[], Client] | None = None) -> None:
        self.dial = dial or (lambda: service.connect(handshake=False))
        self.client = self.dial().handshake()
        self.session_id = self.client.session_id
        self.connections = 1
        self._names = itertools.count(1)
        self._rows: dict[str, EventRow] = {}
        self._reads: dict[int, tuple[EventRow, int]] = {}

    # -- the connection

    def cut(self, how: Callable[[Client], None] = Client.close) -> None:
        """End the connection, and file what came of it."""
        how(self.client)
        self.client.close()
        self._file()

    def resume(self, within: float = PATIENCE) -> None:
        """Connect again to the same session, and read every process from where its row ends.

        Raises:
            TimeoutError: the service did not let us in time.
        """
        deadline = time.monotonic() + within
        while True:
            client: Client | None = None
            try:
                client = self.dial()
                client.handshake(self.session_id)
                assert client.session_id == self.session_id
                self.client = client
                self.connections += 1
                break
            except (OSError, ConnectionEndedError, ReplyError) as error:
                if client is not None:
                    client.close()
                if isinstance(error, ReplyError) and error.code != ATTACHED:
                    raise
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not resumed in {within:g} s") from error
                time.sleep(RETRY_SECONDS)
        for row in self._rows.values():
            if not row.closed:
                self._read(row)

    def reconnect(self, within: float = PATIENCE) -> None:
        """`cut`, in case nobody did, and `resume`."""
        self.cut()
        self.resume(within)

    # -- requests

    def call(self, method: str, params: Json = None, timeout: float = PATIENCE) -> Json:
        """A request that may be repeated: on the next connection when this one ends without an answer.

        Raises:
            ReplyError: the server answered with an error.
        """
        while True:
            try:
                return self.client.call(method, params, timeout)
            except (ConnectionEndedError, BrokenPipeError, ConnectionResetError):
                self.reconnect()

    def start_params(self, argv: Sequence[str], **members: Json) -> Json:
        """Parameters of a `process/start`, with an id that is new to the session."""
        return self.client.start_params(argv, processId=f"r{next(self._names)}", **members)

    def start(self, *argv: str, **members: Json) -> str:
        """Start a process; a start whose answer is lost is asked for again. Its id.

        Raises:
            ReplyError: refused for another reason than that it was started before.
        """
        params = self.start_params(argv, **members)
        self.start_with(params)
        return str(params["processId"])

    def start_with(self, params: Json) -> None:
        """`start` with ready parameters."""
        try:
            self.client.call("process/start", params)
            return
        except (ConnectionEndedError, BrokenPipeError, ConnectionResetError):
            self.reconnect()
        try:
            self.call("process/start", params)
        except ReplyError as error:
            if "already exists" not in error.message:
                raise

    # -- events

    def follow(self, process_id: str, take: Callable[[bytes, int], None]) -> EventRow:
        """File the events of a process from its first on, on this connection and all that follow."""
        row = self._rows[process_id] = EventRow(process_id, take)
        return row

    def _read(self, row: EventRow) -> None:
        """Ask for what came meanwhile; the answer is filed in its turn."""
        with contextlib.suppress(OSError, ConnectionEndedError):
            number = self.client.request(
                "process/read", {"processId": row.process_id, "afterSeq": row.last_seq}
            )
            self._reads[number] = row, row.last_seq

    def _file(self) -> None:
        for message in self.client.received:
            method = message.get("method")
            if method is None:
                asked = self._reads.pop(message.get("id"), None)
                if asked is not None:
                    row, after_seq = asked
                    if "error" in message and not after_seq:
                        continue  # its start was lost; who asks for it again hears of every event
                    row.add_page(message["result"], after_seq)
            elif message["params"].get("processId") in self._rows:
                self._rows[message["params"]["processId"]].add_notification(method, message["params"])
        self._reads.clear()
        self.client.received.clear()

    def finish(self, *rows: EventRow, within: float = PATIENCE) -> None:
        """Reconnect, with pauses, until these processes are closed.

        Raises:
            TimeoutError: one is not in time.
        """
        deadline = time.monotonic() + within
        while True:
            self.reconnect()
            with contextlib.suppress(TimeoutError, ConnectionEndedError):
                self.client.wait_until(lambda: self._all_closed(rows), 1.0)
            self.cut()
            if all(row.closed for row in rows):
                self.resume()
                return
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"not closed in time: {[row.process_id for row in rows if not row.closed]}"
                )

    def _all_closed(self, rows: Sequence[EventRow]) -> bool:
        """Whether this connection has told so, by an answer or a notification; not filed yet."""
        told = {row.process_id for row in rows if row.closed}
        for message in self.client.received:
            if message.get("method") == "process/closed":
                told.add(message["params"]["processId"])
            elif (asked := self._reads.get(message.get("id"))) and message.get("result", {}).get("closed"):
                told.add(asked[0].process_id)
        return told >= {row.process_id for row in rows}
