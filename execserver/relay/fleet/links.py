"""Links between the relays of a fleet: in order, at most once, and ended by the first loss. No I/O, no clock.

NATS delivers at most once: packets are lost while a server fails or a relay reconnects. A relay's `Links`
has, for each other relay, one `Link` with two directions:

- The packets of a direction are numbered within an *epoch*. A relay's epochs only grow.
- The receiver drops an epoch at the first gap, and reports it, again at each mark that still shows the
  dropped epoch. Then the sender begins a new one.
- A queue that is too long loses the messages of the addresses that take most of it, and their pairs end. The
  others stay: many sockets of one tenant can fill a queue, and must not end those of another tenant.
- NATS disconnects a relay that reads too slowly, and does not slow down the sender. So the receiver reports
  how many packets it has delivered, and a sender has at most a *window* of bytes on their way.
- A *mark* is a packet without messages: it shows how many packets were sent. Each relay sends one to each
  other relay with every beat. So the loss of the last packets is found, too.
- A *pair* is two addresses, one at either relay, that exchanged messages, until one sends "gone" to the
  other. If messages were lost, all pairs of the link end: both addresses get "gone", once more if need be.
  The endpoints end their sockets, and the peers reconnect.
- A relay that is not heard from for some seconds is dead, and its pairs end.

A message is lost only together with its pair. While a direction to this relay is dropped, nothing can be
published to the other relay, so no pair begins whose answers are dropped.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

import msgspec

from execserver.relay.service.bus import BusMessage, MessageKind

BEAT_SECONDS = 0.5
"""Interval of beats."""

DEAD_SECONDS = 3.0
"""A relay that was not heard from for so long is dead."""

HIGH_BYTES, LOW_BYTES = 1 << 20, 256 << 10
"""The way to another relay is congested from a queue above the first, to one below the second."""

MOST_BYTES, CUT_BYTES = 64 << 20, 48 << 20
"""Limit of the queue to another relay. Above it, pairs end until the queue is not above the second. Each
socket may add one frame after it was paused, so 256 sockets are enough."""

WINDOW_BYTES = 4 << 20
"""A relay sends no more to another one while so many bytes are on their way. A server of NATS disconnects a
client for which it holds 64 MB, so 15 relays may send to one. 40 ms of a way with 100 MB/s."""

REPORT_BYTES = WINDOW_BYTES // 4
"""A relay reports at least after so many bytes what it has delivered."""

ENVELOPE_BYTES = 64
"""Upper limit of what a message takes besides its texts and its frame."""

PACKET_BYTES = 128
"""Upper limit of what a packet takes besides its messages."""


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """A message to a peer of another relay. Addresses are without their nodes, which the packet names."""

    receiver: str
    sender: str
    kind: MessageKind
    stream_id: str = ""
    frame_kind: str = ""
    frame: bytes = b""

    @property
    def size(self) -> int:
        """Upper limit of the encoded size, in bytes."""
        texts = len(self.receiver) + len(self.sender) + len(self.stream_id) * 4 + len(self.frame_kind)
        return ENVELOPE_BYTES + texts + len(self.frame)


class Packet(msgspec.Struct, array_like=True, frozen=True):
    """What one relay sends to another one."""

    node: str
    """The sender."""
    epoch: int
    sent: int
    """How many packets with messages the sender has sent in its epoch, with this one."""
    seen_epoch: int
    """The newest epoch of the receiver that the sender has seen, or 0."""
    seen: int
    """How many of its packets with messages were delivered."""
    is_lost: bool = False
    """Whether packets of that epoch were lost. It is dropped."""
    leaving: bool = False
    """Whether this is the sender's last packet."""
    messages: tuple[Envelope, ...] = ()


class Link:
    """The state of the link to another relay.

    Args:
        node: of the other relay.
        epoch: of the packets to it.
        now: the time.
    """

    def __init__(self, node: str, epoch: int, now: float) -> None:
        self.node = node
        self.heard = now
        self.pairs: set[tuple[str, str]] = set()
        """The addresses here and there that exchanged messages."""
        self.epoch = epoch
        self.sent = 0
        self.queue: deque[Envelope] = deque()
        self.queued = 0
        """Bytes in the queue, about."""
        self.held: set[tuple[str, str]] = set()
        """The pairs whose address here got "congested"."""
        self.on_way: deque[tuple[int, int]] = deque()
        """The number and the bytes of each packet that the other relay has not reported."""
        self.on_way_bytes = 0
        self.mark_due = True
        self.loss_due = False
        """Whether a loss is to be reported."""
        self.peer_epoch = 0
        """The newest epoch of the other relay; 0: none was seen."""
        self.received = 0
        """Packets with messages that were delivered of it."""
        self.unreported = 0
        """Bytes of them since the last report."""
        self.is_dropped = True
        """Whether nothing is delivered of it."""

    def begin_epoch(self, epoch: int) -> None:
        """Discard what was not sent. Further packets have the new epoch, and the first follows at once."""
        self.queue.clear()
        self.on_way.clear()
        self.queued = self.on_way_bytes = self.sent = 0
        self.epoch = epoch
        self.mark_due = True

    def enqueue(self, envelope: Envelope) -> None:
        """Add a message to the queue."""
        self.queue.append(envelope)
        self.queued += envelope.size

    def cut(self) -> set[tuple[str, str]]:
        """Discard the messages of the addresses with most bytes in the queue, until it is not above
        `CUT_BYTES`. An executor's address is in all its pairs, so that its sockets count together.

        Returns:
            The senders and receivers of what was discarded, without their nodes.
        """
        pairs: set[tuple[str, str]] = set()
        while self.queued > CUT_BYTES:
            sizes: Counter[str] = Counter()
            for each in self.queue:
                sizes[each.sender] += each.size
                sizes[each.receiver] += each.size
            heaviest = max(sizes, key=lambda address: sizes[address])
            found = {(each.sender, each.receiver) for each in self.queue}
            pairs |= {pair for pair in found if heaviest in pair}
            self.queue = deque(each for each in self.queue if (each.sender, each.receiver) not in pairs)
            self.queued = sum(each.size for each in self.queue)
        return pairs

    def has_packet(self) -> bool:
        """Whether there is anything to send now."""
        return self.mark_due or self.loss_due or (bool(self.queue) and self.on_way_bytes < WINDOW_BYTES)

    def take_messages(self, most_bytes: int) -> tuple[Envelope, ...]:
        """Take messages off the queue for one packet: none if the first is too long or the window is full."""
        taken: list[Envelope] = []
        size = 0
        if self.on_way_bytes < WINDOW_BYTES:
            most_bytes -= PACKET_BYTES
            while self.queue and (more := size + self.queue[0].size) <= most_bytes:
                taken.append(self.queue.popleft())
                size = more
        if taken:
            self.queued -= size
            self.sent += 1
            self.on_way.append((self.sent, size))
            self.on_way_bytes += size
        return tuple(taken)

    def reported(self, seen: int) -> None:
        """The other relay has delivered so many packets of the epoch."""
        while self.on_way and self.on_way[0][0] <= seen:
            self.on_way_bytes -= self.on_way.popleft()[1]


class Links:
    """All links of a relay.

    Args:
        node: the name of this relay.
        deliver: gets each message to an address of this relay. False: there is no subscriber.
        wake: called when there is something to send.
        now: the time in seconds, monotonic.
    """

    def __init__(
        self,
        node: str,
        deliver: Callable[[str, BusMessage], bool],
        wake: Callable[[], None],
        now: float,
    ) -> None:
        self.node = node
        self.ended: Counter[str] = Counter(gap=0, reset=0, overflow=0, oversized=0, dead=0)
        """How often the pairs of a link ended, by cause: a gap here, one at the other relay, a queue that was
        too long, a frame that was too long, and a relay that was not heard from."""
        self._deliver = deliver
        self._wake = wake
        self._links: dict[str, Link] = {}  # in the order of their turns to send
        self._epoch = 0
        self._ticked = now

    @property
    def nodes(self) -> frozenset[str]:
        """The other relays that are alive."""
        return frozenset(self._links)

    @property
    def pairs(self) -> int:
        """The number of pairs."""
        return sum(len(link.pairs) for link in self._links.values())

    @property
    def queued(self) -> int:
        """Bytes in all queues, about."""
        return sum(link.queued for link in self._links.values())

    def is_alive(self, node: str) -> bool:
        """Whether another relay was heard from in the last seconds."""
        return node in self._links

    def publish(self, address: str, message: BusMessage) -> bool:
        """Queue a message to an address of another relay. False: that relay cannot be reached now."""
        node, _, peer = address.partition(".")
        link = self._links.get(node)
        if link is None or link.is_dropped:
            return False
        pair = (message.sender, address)
        if message.kind == "gone":
            link.pairs.discard(pair)
        else:
            link.pairs.add(pair)
        sender = message.sender.partition(".")[2]
        link.enqueue(
            Envelope(peer, sender, message.kind, message.stream_id, message.frame_kind, message.frame)
        )
        self._wake()
        if link.queued > MOST_BYTES:
            self.ended["overflow"] += 1
            self._end_pairs(link, {(f"{self.node}.{here}", f"{node}.{there}") for here, there in link.cut()})
        elif link.queued > HIGH_BYTES and message.kind == "frame":
            link.held.add(pair)
            self._deliver(message.sender, BusMessage("congested", address))
        return True

    def heard_from(self, node: str, now: float) -> None:
        """A beat of any relay, this one included, was received."""
        if node == self.node:
            return
        link = self._link(node, now)
        if link.is_dropped:  # otherwise its marks count: they show that it hears from this relay
            link.heard = now

    def packet_received(self, packet: Packet, now: float) -> None:
        """A packet of another relay was received: deliver its messages, or find a loss."""
        link = self._link(packet.node, now)
        link.heard = now
        if packet.seen_epoch == link.epoch:
            if packet.is_lost:
                self._end_epoch(link, "reset")
            elif link.on_way:
                link.reported(packet.seen)
                self._wake()
        if packet.epoch < link.peer_epoch:
            return
        if packet.epoch > link.peer_epoch:
            # Of the epoch before, messages may have been lost that nothing else shows.
            self._end_pairs(link)
            link.peer_epoch, link.received = packet.epoch, 0
            link.is_dropped = link.loss_due = False
        self._accept(link, packet)
        if packet.leaving:
            self._forget(link)

    def tick(self, now: float) -> None:
        """The time of a beat: find dead relays, and send a mark to each other one."""
        late = now - self._ticked - BEAT_SECONDS
        self._ticked = now
        for link in tuple(self._links.values()):
            if late > BEAT_SECONDS:
                link.heard = min(
                    now, link.heard + late
                )  # this process did not run, and packets wait to be read
            if now - link.heard > DEAD_SECONDS:
                self.ended["dead"] += 1
                self._forget(link)
            else:
                link.mark_due = True
        self._wake()

    def next_packet(self, most_bytes: int) -> tuple[str, Packet] | None:
        """The next packet to send, with its receiver; None if there is none. Relays take turns.

        Args:
            most_bytes: limit of an encoded packet.
        """
        link = next((each for each in self._links.values() if each.has_packet()), None)
        if link is None:
            return None
        self._links[link.node] = self._links.pop(link.node)
        if link.queue and link.queue[0].size > most_bytes - PACKET_BYTES:
            self._end_epoch(link, "oversized")
        messages = link.take_messages(most_bytes)
        packet = Packet(
            self.node,
            link.epoch,
            link.sent,
            link.peer_epoch,
            link.received,
            is_lost=link.loss_due,
            messages=messages,
        )
        link.loss_due = link.mark_due = False
        link.unreported = 0
        if link.held and link.queued < LOW_BYTES:
            held, link.held = link.held, set()
            for local, remote in held:
                self._deliver(local, BusMessage("room", remote))
        return link.node, packet

    def leave(self) -> list[tuple[str, Packet]]:
        """Forget all relays. Returns the last packets, with their receivers."""
        links = tuple(self._links.values())
        for link in links:
            self._forget(link)
        return [(each.node, Packet(self.node, each.epoch, each.sent, 0, 0, leaving=True)) for each in links]

    def _link(self, node: str, now: float) -> Link:
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = Link(node, self._next_epoch(), now)
            self._wake()  # for its first mark
        return link

    def _accept(self, link: Link, packet: Packet) -> None:
        if link.is_dropped:
            if not packet.messages:
                link.loss_due = True  # the last report was lost, or is on its way
                self._wake()
            return
        if packet.sent - bool(packet.messages) > link.received:
            self.ended["gap"] += 1
            link.is_dropped = link.loss_due = True
            self._end_pairs(link)
            self._wake()
        elif packet.sent > link.received:
            for envelope in packet.messages:
                link.unreported += envelope.size
                self._deliver_from(link, envelope)
            link.received = packet.sent  # not if a receiver failed: the rest of the packet is lost
            if link.unreported > REPORT_BYTES:
                link.mark_due = True
                self._wake()

    def _deliver_from(self, link: Link, envelope: Envelope) -> None:
        address, sender = f"{self.node}.{envelope.receiver}", f"{link.node}.{envelope.sender}"
        kind = envelope.kind
        if kind == "gone":
            link.pairs.discard((address, sender))
        else:
            link.pairs.add((address, sender))
        message = BusMessage(kind, sender, envelope.stream_id, envelope.frame_kind, envelope.frame)
        if not self._deliver(address, message) and kind != "gone":
            link.pairs.discard((address, sender))
            link.enqueue(Envelope(envelope.sender, envelope.receiver, "gone"))
            self._wake()

    def _end_epoch(self, link: Link, cause: str) -> None:
        self.ended[cause] += 1
        link.begin_epoch(self._next_epoch())
        self._end_pairs(link)
        self._wake()

    def _end_pairs(self, link: Link, some: set[tuple[str, str]] | None = None) -> None:
        """Send "gone" to both addresses of some pairs, or of all."""
        pairs = link.pairs.copy() if some is None else some
        link.pairs -= pairs
        link.held -= pairs
        for local, remote in pairs:
            link.enqueue(Envelope(remote.partition(".")[2], local.partition(".")[2], "gone"))
        for local, remote in pairs:
            self._deliver(local, BusMessage("gone", remote))

    def _forget(self, link: Link) -> None:
        self._links.pop(link.node, None)
        self._end_pairs(link)

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch
