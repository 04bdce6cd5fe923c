"""One encrypted stream between a client and an executor, without I/O.

    messages ─▶ RecordQueue ─▶ seal ─▶ data frame         frame ─▶ order ─▶ open ─▶ MessageAssembler

The owner of a stream brings frames to it and sends the frames that it makes. Both ends use `SealedStream`;
the client's end, which begins the handshake, is an `InitiatorStream`.

1. A record is sealed when its frame is made, which is when there is room for it: its number is its place on
   the wire. A message that is dropped before was never sealed.
2. Any fault in a received frame is a `StreamBroken`, and nothing can be read after it: a record that is lost
   or changed cannot be replaced.
3. Frames of other streams and undecodable frames are ignored.

`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

from collections.abc import Callable

from execprotocol.relay import frames
from execprotocol.relay.noise import REJECTION, Initiator, NoiseError, NoiseTransport
from execprotocol.relay.records import RecordError, RecordQueue, Reorder


class StreamBroken(Exception):
    """The stream cannot go on. The text is for people, and may be sent to either end."""


class StreamRejected(Exception):
    """The executor refused the client's key or authorization."""


class StreamReset(Exception):
    """The other end, or the relay, ended the stream.

    Attributes:
        reason: as received: any text, or an empty one.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SealedStream:
    """One end of a stream.

    Args:
        stream_id: its name in frames.
        received: takes the bytes of each record, in order; usually `MessageAssembler.feed`.
        transport: the keys of the stream; None until the handshake is done.

    Attributes:
        outgoing: the messages that are to be sent.
        sent_bytes: bytes of messages in the frames made so far.
    """

    def __init__(
        self, stream_id: str, received: Callable[[bytes], None], transport: NoiseTransport | None = None
    ) -> None:
        self.id = stream_id
        self.outgoing = RecordQueue()
        self.sent_bytes = 0
        self._transport = transport
        self._sequence = 0
        self._order = Reorder()
        self._received: Callable[[bytes], None] | None = received

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done."""
        return self._transport is not None

    def next_frame(self) -> bytes | None:
        """The next frame to send; None if nothing is queued, or the stream is not open.

        Raises:
            StreamBroken: the keys are used up.
        """
        transport = self._transport
        if transport is None or (record := self.outgoing.take()) is None:
            return None
        try:
            sealed = transport.seal(record)
        except NoiseError as error:
            raise StreamBroken(str(error)) from None
        sequence = self._sequence
        self._sequence = sequence + 1
        self.sent_bytes += len(record)
        return frames.data(self.id, sequence, sealed)

    def data_received(self, seq: int, sealed: memoryview | bytes) -> None:
        """Open a record, and those that waited for it, and hand them to `received`.

        Args:
            seq: of the data frame.
            sealed: its payload. A view is copied if it has to wait for an earlier record.

        Raises:
            StreamBroken: the record does not open, is too far ahead, or `received` raised `RecordError`.
        """
        transport, order = self._transport, self._order
        if transport is None:
            raise StreamBroken("the executor sent data before its answer to the handshake")
        try:
            if seq == order.expected and not order.early:  # nearly every record
                order.expected = seq + 1
                if self._received is not None:
                    self._received(transport.open(sealed))
                return
            for record in order.accept(seq, sealed):
                if self._received is None:
                    return
                self._received(transport.open(record))
        except (NoiseError, RecordError) as error:
            raise StreamBroken(str(error)) from None

    def stop_receiving(self) -> None:
        """Ignore further data, and release the receiver, which may hold half of a message of 64 MiB."""
        self._received = None


class InitiatorStream(SealedStream):
    """The client's end of a stream, from its first frame.

    Args:
        stream_id: a new UUID.
        received: as for `SealedStream`.
        initiator: bound to that stream.
    """

    def __init__(self, stream_id: str, received: Callable[[bytes], None], initiator: Initiator) -> None:
        super().__init__(stream_id, received)
        self._initiator = initiator

    def opening_frames(self, authorization: str) -> tuple[bytes, bytes]:
        """The two frames to send first: they claim the stream and begin the handshake.

        Args:
            authorization: from the registry, for the executor.

        Raises:
            NoiseError: the executor's public keys are invalid, or the authorization is too long.
        """
        first = self._initiator.write_first(authorization.encode())
        return frames.resume(self.id), frames.handshake(self.id, first)

    def frame_received(self, message: bytes) -> bool:
        """Process a frame.

        Returns:
            Whether this frame opened the stream.

        Raises:
            StreamRejected: the executor's answer to the handshake is a rejection.
            StreamReset: the stream was reset.
            StreamBroken: anything else that ends the stream.
        """
        try:
            frame = frames.decode(message)
        except frames.FrameError:
            return False
        if frame.stream_id != self.id:
            return False
        if frame.kind == "data":
            self.data_received(frame.seq, frame.payload)
        elif frame.kind == "handshake":
            self._answer_received(frame.payload)
            return True
        elif frame.kind == "reset":
            raise StreamReset(frame.reason)
        return False

    def _answer_received(self, message: memoryview | bytes) -> None:
        if self._transport is not None:
            raise StreamBroken("the executor answered the handshake twice")
        try:
            payload, transport = self._initiator.read_second(message)
        except NoiseError as error:
            raise StreamBroken(f"the handshake failed: {error}") from None
        if payload == REJECTION:
            raise StreamRejected
        if payload:
            raise StreamBroken("the executor answered the handshake with something unknown")
        self._transport = transport
