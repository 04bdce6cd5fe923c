"""Links between relays: whatever is lost, no peer misses a frame without notice that the other is gone."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from execserver.relay.fleet.links import BEAT_SECONDS, DEAD_SECONDS, HIGH_BYTES, MOST_BYTES, Links, Packet
from execserver.relay.service.bus import BusMessage

MIB = bytes(1 << 20)
PACKET_BYTES = 2 << 20


class Acceptor:
    """An address that answers many callers, as an executor's endpoint does."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.address = f"{node.name}.{name}"
        self.callers: dict[str, list[int]] = {}  # frames received of each open caller, and sent to it
        node.endpoints[self.address] = self

    def receive(self, message: BusMessage) -> None:
        if message.kind == "joined":
            assert message.sender not in self.callers, "joined twice"
            self.callers[message.sender] = [0, 0]
        elif message.kind == "gone":
            self.callers.pop(message.sender, None)
        elif message.kind == "frame" and message.sender in self.callers:
            counts = self.callers[message.sender]
            counts[0] += 1
            assert message.stream_id == str(counts[0]), "a frame was lost, doubled or overtaken"

    def send(self, caller: str) -> None:
        counts = self.callers[caller]
        message = BusMessage("frame", self.address, str(counts[1] + 1))
        if self.node.links.publish(caller, message):
            counts[1] += 1

    def end(self) -> None:
        del self.node.endpoints[self.address]
        for caller in tuple(self.callers):
            self.node.links.publish(caller, BusMessage("gone", self.address))


class Caller:
    """An address that talks to one acceptor until either is gone, as a harness's endpoint does."""

    def __init__(self, node: Node, name: str, acceptor: str) -> None:
        self.node = node
        self.address = f"{node.name}.{name}"
        self.acceptor = acceptor
        self.sent = self.received = 0
        self._is_gone = self._is_full = False
        node.endpoints[self.address] = self
        if not node.links.publish(acceptor, BusMessage("joined", self.address)):
            self.end()

    def is_gone(self) -> bool:
        return self._is_gone

    def is_full(self) -> bool:
        return self._is_full

    def receive(self, message: BusMessage) -> None:
        assert message.sender == self.acceptor
        if message.kind == "gone":
            self.end()
        elif message.kind == "congested":
            self._is_full = True
        elif message.kind == "room":
            self._is_full = False
        elif message.kind == "frame":
            self.received += 1
            assert message.stream_id == str(self.received), "a frame was lost, doubled or overtaken"

    def send(self, frame: bytes = b"") -> None:
        if not self.is_gone():
            message = BusMessage("frame", self.address, str(self.sent + 1), frame=frame)
            if self.node.links.publish(self.acceptor, message):
                self.sent += 1

    def end(self) -> None:
        if not self.is_gone():
            self._is_gone = True
            del self.node.endpoints[self.address]
            self.node.links.publish(self.acceptor, BusMessage("gone", self.address))


class Node:
    """A relay with its endpoints."""

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.endpoints: dict[str, Acceptor | Caller] = {}
        self.links = Links(name, self._deliver, lambda: None, now)
        self.is_stopped = False
        self.acceptor = Acceptor(self, "acceptor")

    def _deliver(self, address: str, message: BusMessage) -> bool:
        endpoint = self.endpoints.get(address)
        if endpoint is not None:
            endpoint.receive(message)
        return endpoint is not None


class Fleet:
    """Relays, and a network that keeps the order of one relay's packets to another."""

    def __init__(self, size: int) -> None:
        self.now = 100.0
        self.made = 0
        self.nodes: dict[str, Node] = {}
        self.ways: dict[tuple[str, str], deque[Packet | str]] = {}  # a text is the beat of a relay
        for _ in range(size):
            self.add_node()

    def add_node(self) -> Node:
        self.made += 1
        node = Node(f"n{self.made}", self.now)
        self.nodes[node.name] = node
        return node

    def way(self, sender: str, receiver: str) -> deque[Packet | str]:
        return self.ways.setdefault((sender, receiver), deque())

    def send(self, node: Node) -> None:
        """The node sends all its packets."""
        while (due := node.links.next_packet(PACKET_BYTES)) is not None:
            self.way(node.name, due[0]).append(due[1])

    def receive(self, way: tuple[str, str]) -> None:
        """The first packet on a way arrives."""
        packets, receiver = self.ways[way], self.nodes.get(way[1])
        if receiver is None:
            packets.clear()
        elif packets and not receiver.is_stopped:
            packet = packets.popleft()
            if isinstance(packet, str):
                receiver.links.heard_from(packet, self.now)
            else:
                receiver.links.packet_received(packet, self.now)

    def settle(self) -> None:
        """Send and receive until nothing is left."""
        while True:
            for node in tuple(self.nodes.values()):
                if not node.is_stopped:
                    self.send(node)
            waiting = [
                each for each, packets in self.ways.items() if packets and not self._is_stopped(each[1])
            ]
            if not waiting:
                return
            for way in waiting:
                self.receive(way)

    def _is_stopped(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.is_stopped

    def beat(self) -> None:
        """The next beat of every node that is not stopped."""
        self.now += BEAT_SECONDS
        for node in tuple(self.nodes.values()):
            if not node.is_stopped:
                node.links.tick(self.now)
                for other in self.nodes:
                    self.way(node.name, other).append(node.name)

    def beats(self, count: int) -> None:
        for _ in range(count):
            self.beat()
            self.settle()


def fleet(size: int = 2) -> tuple[Fleet, list[Node]]:
    """Relays that know each other."""
    made = Fleet(size)
    made.beats(2)
    return made, list(made.nodes.values())


# -- single cases


def test_two_relays_reach_each_other_after_the_first_beat_that_arrives() -> None:
    made = Fleet(2)
    first, second = made.nodes.values()
    assert not first.links.publish(second.acceptor.address, BusMessage("joined", f"{first.name}.x"))

    made.beats(1)

    caller = Caller(first, "x", second.acceptor.address)
    caller.send()
    made.settle()
    second.acceptor.send(caller.address)
    made.settle()
    assert second.acceptor.callers == {caller.address: [1, 1]}
    assert caller.received == 1


def test_the_loss_of_a_last_frame_ends_both_sides_with_the_next_beat() -> None:
    made, (first, second) = fleet()
    caller = Caller(first, "x", second.acceptor.address)
    made.settle()
    caller.send()
    made.send(first)
    made.ways[first.name, second.name].clear()

    made.beats(1)

    assert caller.is_gone()
    assert second.acceptor.callers == {}
    again = Caller(first, "y", second.acceptor.address)
    again.send()
    made.settle()
    assert second.acceptor.callers == {again.address: [1, 0]}


def test_a_loss_that_is_not_reported_is_reported_again() -> None:
    made, (first, second) = fleet()
    caller = Caller(first, "x", second.acceptor.address)
    made.settle()
    caller.send()
    made.send(first)
    made.ways[first.name, second.name].clear()
    made.beat()
    made.send(first)
    while made.ways[first.name, second.name]:
        made.receive((first.name, second.name))
    assert second.acceptor.callers == {}
    made.send(second)
    made.ways[second.name, first.name].clear()  # the report, and the "gone" for the caller
    assert not caller.is_gone()

    made.beats(1)

    assert caller.is_gone()


def test_a_relay_that_is_not_heard_from_is_dead_and_its_peers_are_gone() -> None:
    made, (first, second) = fleet()
    caller = Caller(first, "x", second.acceptor.address)
    made.settle()
    del made.nodes[second.name]

    made.beats(int(DEAD_SECONDS / BEAT_SECONDS))
    assert first.links.is_alive(second.name)
    assert not caller.is_gone()
    made.beats(1)

    assert not first.links.is_alive(second.name)
    assert caller.is_gone()
    assert first.links.ended["dead"] == 1


def test_a_relay_that_did_not_run_for_a_while_does_not_take_the_others_for_dead() -> None:
    made, (first, second) = fleet()
    caller = Caller(first, "x", second.acceptor.address)
    made.settle()

    made.now += 60
    made.beats(2)

    assert not caller.is_gone()
    assert first.links.ended["dead"] == 0


def test_a_relay_that_leaves_is_forgotten_at_once() -> None:
    made, (first, second) = fleet()
    caller = Caller(first, "x", second.acceptor.address)
    made.settle()

    for receiver, packet in second.links.leave():
        made.way(second.name, receiver).append(packet)
    made.settle()

    assert caller.is_gone()
    assert first.links.nodes == frozenset()
    assert first.links.pairs == 0


def test_a_message_to_an_address_that_has_ended_is_answered_with_gone() -> None:
    made, (first, second) = fleet()

    caller = Caller(first, "x", f"{second.name}.unknown")
    made.settle()

    assert caller.is_gone()
    assert first.links.pairs == second.links.pairs == 0


def test_a_sender_is_told_when_the_queue_is_long_and_when_it_is_short_again() -> None:
    made, (first, second) = fleet()
    caller = Caller(first, "x", second.acceptor.address)
    while first.links.queued <= HIGH_BYTES:
        assert not caller.is_full()
        caller.send(MIB[: 256 << 10])
    assert caller.is_full()

    made.settle()

    assert not caller.is_full()
    assert second.acceptor.callers[caller.address][0] == caller.sent


def test_a_queue_that_grows_further_ends_the_pair_that_fills_it_and_is_discarded() -> None:
    made, (first, second) = fleet()
    caller = Caller(first, "x", second.acceptor.address)
    made.settle()

    while not caller.is_gone():
        caller.send(MIB)
        assert first.links.queued < MOST_BYTES + 2 * len(MIB)

    assert first.links.queued < len(MIB)
    made.settle()
    assert second.acceptor.callers == {}
    assert first.links.ended["overflow"] == 1


def test_a_queue_that_grows_further_ends_no_pair_of_other_executors() -> None:
    made, (first, second) = fleet()
    flooded = [Acceptor(second, f"flooded{number}") for number in range(2)]
    crowd = [Caller(first, f"c{number}", flooded[number % 2].address) for number in range(300)]
    callers = [Caller(first, f"x{number}", second.acceptor.address) for number in range(3)]
    made.settle()

    for caller in callers:
        caller.send()
    for each in crowd:  # each sends one frame, as a socket that was paused may
        each.send(MIB[: 256 << 10])
    for caller in callers:
        caller.send()
    assert first.links.queued < MOST_BYTES
    made.settle()

    assert any(each.is_gone() for each in crowd)
    assert [second.acceptor.callers[caller.address][0] for caller in callers] == [2, 2, 2]
    ended = {each.address for each in crowd if each.is_gone()}
    assert not ended & (flooded[0].callers.keys() | flooded[1].callers.keys())
    for each in crowd:
        if not each.is_gone():
            assert flooded[int(each.acceptor[-1])].callers[each.address][0] == each.sent


def test_a_frame_that_is_too_long_for_a_packet_ends_the_pairs_of_the_link() -> None:
    made, (first, second) = fleet()
    caller = Caller(first, "x", second.acceptor.address)

    caller.send(MIB * 2)
    made.settle()

    assert caller.is_gone()
    assert first.links.ended["oversized"] == 1
    again = Caller(first, "y", second.acceptor.address)
    made.settle()
    assert list(second.acceptor.callers) == [again.address]


def test_relays_take_turns() -> None:
    _, (first, second, third) = fleet(3)
    for other in (second, third):
        caller = Caller(first, other.name, other.acceptor.address)
        for _ in range(5):
            caller.send(MIB)

    receivers = []
    while (due := first.links.next_packet(PACKET_BYTES)) is not None:
        receivers.append(due[0])

    assert receivers[:4] == [second.name, third.name] * 2


# -- all cases


class LossyFleet(RuleBasedStateMachine):
    """Anything is lost, any relay stops, ends or starts, and then the network works again."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(3)
        self.fleet.beats(2)
        self.callers: list[Caller] = []
        self.took_long = False  # a relay ended or stopped

    def _node(self, index: int) -> Node:
        nodes = list(self.fleet.nodes.values())
        return nodes[index % len(nodes)]

    def _open(self) -> list[Caller]:
        return [each for each in self.callers if not each.is_gone() and each.node is self._living(each)]

    def _living(self, caller: Caller) -> Node | None:
        return self.fleet.nodes.get(caller.node.name)

    @rule(here=st.integers(0, 2), there=st.integers(0, 2), frames=st.integers(0, 3))
    def call(self, here: int, there: int, frames: int) -> None:
        first, second = self._node(here), self._node(there)
        if first is not second:
            caller = Caller(first, f"c{len(self.callers)}", second.acceptor.address)
            self.callers.append(caller)
            for _ in range(frames):
                caller.send()

    @precondition(lambda self: self._open())
    @rule(data=st.data(), big=st.sampled_from((0, 0, 0, 0, 70)))
    def caller_sends(self, data: st.DataObject, big: int) -> None:
        caller = data.draw(st.sampled_from(self._open()))
        caller.send()
        for _ in range(big):
            caller.send(MIB)

    @rule(index=st.integers(0, 2), count=st.integers(1, 3))
    def acceptor_sends(self, index: int, count: int) -> None:
        acceptor = self._node(index).acceptor
        for caller in tuple(acceptor.callers):
            for _ in range(count):
                if caller in acceptor.callers:
                    acceptor.send(caller)

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def caller_ends(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self._open())).end()

    @rule(index=st.integers(0, 2))
    def send(self, index: int) -> None:
        node = self._node(index)
        if not node.is_stopped:
            self.fleet.send(node)

    @precondition(lambda self: any(self.fleet.ways.values()))
    @rule(data=st.data(), count=st.integers(1, 4))
    def receive(self, data: st.DataObject, count: int) -> None:
        way = data.draw(st.sampled_from([each for each, packets in self.fleet.ways.items() if packets]))
        for _ in range(count):
            self.fleet.receive(way)

    @precondition(lambda self: any(self.fleet.ways.values()))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        way = data.draw(st.sampled_from([each for each, packets in self.fleet.ways.items() if packets]))
        packets = self.fleet.ways[way]
        kept = data.draw(st.lists(st.booleans(), min_size=len(packets), max_size=len(packets)))
        self.fleet.ways[way] = deque(packet for packet, keep in zip(packets, kept, strict=True) if keep)

    @rule()
    def lose_all(self) -> None:
        for packets in self.fleet.ways.values():
            packets.clear()

    @rule()
    def settle(self) -> None:
        self.fleet.settle()

    @rule(count=st.sampled_from((1, 1, 2, 8)))
    def beat(self, count: int) -> None:
        """Beats that no relay receives for now."""
        self.took_long |= count > 1
        for _ in range(count):
            self.fleet.beat()

    @rule(index=st.integers(0, 2))
    def stop_or_continue(self, index: int) -> None:
        node = self._node(index)
        node.is_stopped = not node.is_stopped
        self.took_long = True

    @rule(index=st.integers(0, 2))
    def restart(self, index: int) -> None:
        del self.fleet.nodes[self._node(index).name]
        self.fleet.add_node()
        self.took_long = True

    @rule()
    def network_works_again(self) -> None:
        self._settle()
        self._check()

    def teardown(self) -> None:
        self._settle()
        self._check()
        for node in self.fleet.nodes.values():
            node.acceptor.end()
        self.fleet.settle()
        for caller in self.callers:
            assert caller.is_gone() or self._living(caller) is not caller.node
        for node in self.fleet.nodes.values():
            assert node.links.pairs == 0
            assert node.links.queued == 0

    def _settle(self) -> None:
        for node in self.fleet.nodes.values():
            node.is_stopped = False
        self.fleet.settle()
        self.fleet.beats(2 if not self.took_long else int(DEAD_SECONDS / BEAT_SECONDS) + 3)
        self.took_long = False

    def _check(self) -> None:
        """Each caller is open at both sides, and nothing is missing, or at neither."""
        acceptors = {node.acceptor.address: node.acceptor for node in self.fleet.nodes.values()}
        open_callers = {each.address: each for each in self._open()}
        for caller in open_callers.values():
            counts = acceptors[caller.acceptor].callers[caller.address]
            assert counts == [caller.sent, caller.received]
        for acceptor in acceptors.values():
            assert set(acceptor.callers) <= set(open_callers)
        for node in self.fleet.nodes.values():
            assert node.links.nodes == frozenset(self.fleet.nodes) - {node.name}
            pairs = sum(node in (each.node, acceptors[each.acceptor].node) for each in open_callers.values())
            assert node.links.pairs == pairs


TestLossyFleet = LossyFleet.TestCase
TestLossyFleet.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
