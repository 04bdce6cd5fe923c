"""The bus of a fleet: connects the endpoints of several relays by NATS.

- Each relay subscribes to one subject, `PREFIX.relay.NODE`, and gets the packets of all other relays there.
  So the packets of one relay to another stay in order, and no peer needs a subscription.
- All relays publish beats to `PREFIX.relay.beat`, and so find each other. A relay also gets its own beats:
  if they stay away, NATS does not deliver, and the bus makes a new connection.
- What was lost is found by `links.py`, whatever the cause. So this module resends nothing.

The bus has a connection of its own: frames do not delay the requests of the store, and the client cannot
close a connection with unsent data to a server that hangs, so that it would never reconnect.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError, MaxPayloadError, OutboundBufferLimitError
from nats.errors import Error as NatsError

from execserver.relay.fleet.connection import NatsConnection
from execserver.relay.fleet.links import BEAT_SECONDS, MOST_BYTES, Links, Packet
from execserver.relay.service.bus import BusMessage, Receive
from execserver.telemetry.logs import Logger

MAX_PACKET_BYTES = 512 << 10
"""Limit of a packet. Larger ones are not faster, and delay small ones."""

STUCK_SECONDS = 2.0
"""NATS does not deliver if a relay has not received its own beats for so long."""

SETTLE_SECONDS = 1.2
"""How long a relay that just connected waits for the beats of the others: more than two beats."""

CONNECT_SECONDS = 5.0
"""Limit of one attempt to connect, all servers together."""

RETRY_SECONDS = 0.5
"""Interval of attempts to connect."""

CLOSE_SECONDS = 2.0
"""Limit for what is still to be sent when the bus closes, and for the end of a connection."""

SETTLING = "this relay has just connected to NATS, and waits for the beats of the other relays"
"""The fault of a bus in its first moments."""

log = Logger()


class _Beat(msgspec.Struct, array_like=True, frozen=True):
    node: str


class NatsBus:
    """Addresses at this relay and at the others of the fleet. An implementation of `Bus`.

    Args:
        connect: makes a connection for the bus alone, not opened yet. Called again when the connection was
            closed or NATS hangs.
        prefix: of all subjects. Fleets that share a NATS cluster have different ones.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        connect: Callable[[], NatsConnection],
        prefix: str = "execserver",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node = secrets.token_hex(4)
        self.messages = {"in": 0, "out": 0}
        """Messages from and to other relays."""
        self.bytes = {"in": 0, "out": 0}
        """The same in bytes of their packets."""
        self.undecodable = 0
        """Packets and beats that no relay sent, or one with another format."""
        self._connect = connect
        self._connection: NatsConnection | None = None
        self._clock = clock
        self._subject = f"{prefix}.relay."
        self._receivers: dict[str, Receive] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self.links = Links(self.node, self._deliver, self._wake.set, clock())
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Packet).decode
        self._decode_beat = msgspec.msgpack.Decoder(_Beat).decode
        self._beat_due = False
        self._error = self._logged = "the bus has not been started"  # why there is no connection
        self._echoed = 0.0  # when the newest own beat came back
        self._settled = 0.0  # when the beats of all others must have come
        self._runner: asyncio.Task[None] | None = None
        self._beats: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()  # connections that are not used any more

    @property
    def fault(self) -> str:
        """Why the bus cannot be used now; empty if it can."""
        now = self._clock()
        if self._connection is None:
            return self._error
        if now - self._echoed > STUCK_SECONDS:
            return self._connection.fault or "NATS does not deliver what this relay publishes"
        return SETTLING if now < self._settled else ""

    @property
    def ready(self) -> bool:
        """Whether messages reach other relays, and all of them are known."""
        return not self.fault

    def address(self, peer_id: str) -> str:
        """The address of a peer of this relay."""
        return f"{self.node}.{peer_id}"

    def is_alive(self, node: str) -> bool:
        """Whether a relay shares the bus now. While the bus has a fault this is unknown, and true: executors
        of other relays must not be replaced because this relay gets no beats of those.
        """
        return node == self.node or self.links.is_alive(node) or not self.ready

    def subscribe(self, address: str, receive: Receive) -> None:
        """Call `receive` with each message to an address of this relay."""
        self._receivers[address] = receive

    def unsubscribe(self, address: str) -> None:
        """Deliver no more messages (idempotent)."""
        self._receivers.pop(address, None)

    def publish(self, address: str, message: BusMessage) -> bool:
        """Deliver one message to this relay now, or queue it for another one. As `Bus.publish`."""
        if address.startswith(f"{self.node}."):
            return self._deliver(address, message)
        return self.links.publish(address, message)

    async def start(self) -> None:
        """Connect, and stay connected until `close`. The bus is ready some time later.

        Raises:
            FleetError: NATS cannot be used, or not now. Later faults are in `fault`.
        """
        connection = await self._open()
        self._beats = asyncio.create_task(self._beat())
        self._runner = asyncio.create_task(self._run(connection))

    async def close(self) -> None:
        """Send what is queued and the last packets to the other relays, within some seconds (idempotent)."""
        runner, self._runner = self._runner, None
        if runner is None or self._beats is None:
            return
        self._beats.cancel()
        self._idle.clear()
        self._wake.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), CLOSE_SECONDS)
        runner.cancel()  # it sends the last packets
        await asyncio.wait((runner,))
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_SECONDS)
        for closing in self._closing:
            closing.cancel()
        self._error = "the bus was closed"

    # -- the connection

    async def _open(self) -> NatsConnection:
        connection = self._connect()
        await connection.open(CONNECT_SECONDS)
        try:
            client = connection.client
            await client.subscribe(
                self._subject + self.node, cb=self._received, pending_bytes_limit=MOST_BYTES
            )
            await client.subscribe(self._subject + "beat", cb=self._beat_received)
            await client.flush()
        except BaseException:
            self._close_later(connection)
            raise
        self._connection = connection
        self._echoed = self._clock()
        self._settled = self._echoed + SETTLE_SECONDS
        return connection

    async def _run(self, connection: NatsConnection | None) -> None:
        while True:
            if connection is None:
                try:
                    connection = await self._open()
                except Exception as error:  # whatever it is, only a later attempt can help
                    self._error = str(error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
            writer = asyncio.create_task(self._write(connection))
            try:
                await self._until_stuck(connection)
                self._error = self.fault
            except asyncio.CancelledError:
                await self._send_last_packets(connection)
                raise
            finally:
                self._connection = None
                writer.cancel()
                self._close_later(connection)
            connection = None

    async def _until_stuck(self, connection: NatsConnection) -> None:
        while not connection.closed.is_set():
            begun = self._clock()
            with suppress(TimeoutError):
                await asyncio.wait_for(connection.closed.wait(), BEAT_SECONDS / 2)
            now = self._clock()
            # If this process did not run, beats wait to be read.
            if now - self._echoed > STUCK_SECONDS and now - begun < BEAT_SECONDS:
                return

    async def _send_last_packets(self, connection: NatsConnection) -> None:
        with suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                for node, packet in self.links.leave():
                    await connection.client.publish(self._subject + node, self._encode(packet))
                await connection.client.flush()

    def _close_later(self, connection: NatsConnection) -> None:
        async def close() -> None:
            with suppress(NatsError, OSError):
                await connection.close()  # returns when a server that hangs goes on, or its host is lost

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # -- sending

    async def _beat(self) -> None:
        due = self._clock()
        while True:
            due += BEAT_SECONDS
            await asyncio.sleep(due - self._clock())
            now = self._clock()
            if now - due > BEAT_SECONDS:  # this process did not run, and beats wait to be read
                self._echoed = min(now, self._echoed + now - due)
                due = now
            self._beat_due = True
            self.links.tick(now)
            self._log_fault()

    async def _write(self, connection: NatsConnection) -> None:
        # `publish` may swallow a cancellation, so the writer checks whether its connection is still in use.
        while self._connection is connection:
            self._wake.clear()
            while (due := self._next(connection)) is not None:
                await self._send(connection, *due)
            self._idle.set()
            await self._wake.wait()

    def _next(self, connection: NatsConnection) -> tuple[str, bytes] | None:
        """The subject and the payload of what is to be sent next."""
        if self._beat_due:
            self._beat_due = False
            return self._subject + "beat", self._encode(_Beat(self.node))
        due = self.links.next_packet(min(connection.client.max_payload, MAX_PACKET_BYTES))
        if due is None:
            return None
        node, packet = due
        payload = self._encode(packet)
        if packet.messages:
            self.messages["out"] += len(packet.messages)
            self.bytes["out"] += len(payload)
        return self._subject + node, payload

    async def _send(self, connection: NatsConnection, subject: str, payload: bytes) -> None:
        while self._connection is connection:
            if connection.is_connected:  # otherwise the client would keep it, beyond the limits of links
                with suppress(OutboundBufferLimitError, ConnectionClosedError):  # lost just now
                    with suppress(MaxPayloadError):  # of another server; the receiver finds the gap
                        await connection.client.publish(subject, payload)
                    return
            await asyncio.sleep(BEAT_SECONDS / 10)

    # -- receiving

    def _deliver(self, address: str, message: BusMessage) -> bool:
        receive = self._receivers.get(address)
        if receive is None:
            return False
        receive(message)
        return True

    async def _received(self, message: Msg) -> None:
        try:
            packet = self._decode(message.data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.undecodable += 1
            return
        if packet.messages:
            self.messages["in"] += len(packet.messages)
            self.bytes["in"] += len(message.data)
        self.links.packet_received(packet, self._clock())

    async def _beat_received(self, message: Msg) -> None:
        try:
            node = self._decode_beat(message.data).node
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.undecodable += 1
            return
        now = self._clock()
        if node == self.node:
            if now - self._echoed > STUCK_SECONDS:
                self._settled = now + SETTLE_SECONDS
            self._echoed = now
        self.links.heard_from(node, now)

    def _log_fault(self) -> None:
        fault = self.fault
        if fault in (self._logged, SETTLING):
            return
        self._logged = fault
        if fault:
            log.warning("the bus is unavailable", reason=fault)
        else:
            log.info("the bus is available", node=self.node, relays=len(self.links.nodes) + 1)
