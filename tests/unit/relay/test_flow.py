"""A slow peer costs the others next to nothing, and no queue grows for ever. Time is a number here."""

from __future__ import annotations

import pytest

from execprotocol.relay import frames
from execserver.relay.service.bus import BusMessage, MemoryBus, MessageKind
from execserver.relay.service.queues import Limits
from tests.support.rendezvous_peers import FakePeer, Relay

KIB, MIB = 1 << 10, 1 << 20
LIMITS = Limits()
PAYLOAD = bytes(128 * KIB)


@pytest.fixture
def relay() -> Relay:
    return Relay()


def a_frame(stream_id: str) -> bytes:
    return frames.data(stream_id, 0, PAYLOAD)


def fill(relay: Relay, executor: FakePeer, client: FakePeer, stream_id: str, size: int) -> None:
    """Have the executor send until the client's queue is above a size."""
    while client.queued <= size and client.closed is None:
        relay.down(executor, a_frame(stream_id))


def test_a_harness_that_floods_its_executor_is_paused_and_no_other_peer(relay: Relay) -> None:
    executor = relay.executor(stuck=True)
    flooder, other = relay.harness("h1"), relay.harness("h2")
    relay.up(other, frames.resume("quiet"))

    while not flooder.is_paused():
        relay.up(flooder, a_frame("loud"))
    assert MIB < executor.queued < MIB + 256 * KIB
    assert not other.is_paused()

    executor.take(executor.queued - LIMITS.low)
    assert flooder.is_paused()  # at the mark, not below it
    executor.take(1)
    assert not flooder.is_paused()
    assert relay.counters.full_bytes == 0


def test_a_harness_that_sends_to_a_full_executor_waits_its_turn(relay: Relay) -> None:
    executor = relay.executor(stuck=True)
    flooder, other = relay.harness("h1"), relay.harness("h2")
    while not flooder.is_paused():
        relay.up(flooder, a_frame("loud"))

    relay.up(other, frames.resume("late"))

    assert other.is_paused()
    assert executor.sent[-1] == frames.resume("late")  # not lost
    executor.take()
    assert not other.is_paused()
    assert not flooder.is_paused()


def test_a_paused_harness_that_leaves_is_not_woken(relay: Relay) -> None:
    executor = relay.executor(stuck=True)
    flooder = relay.harness("h1")
    while not flooder.is_paused():
        relay.up(flooder, a_frame("loud"))

    relay.rendezvous.harness_left(flooder)
    executor.take()

    assert flooder.is_paused()
    assert executor.sent[-1] == frames.reset("loud", "relay_peer_closed")


def test_a_full_harness_holds_the_executor_until_it_has_room(relay: Relay) -> None:
    executor = relay.executor()
    client, other = relay.harness("h1", stuck=True), relay.harness("h2")
    relay.up(client, frames.resume("s1"))
    relay.up(other, frames.resume("s2"))

    fill(relay, executor, client, "s1", MIB)
    assert executor.is_paused()
    client.take(client.queued - LIMITS.low)
    assert executor.is_paused()
    client.take(1)

    assert not executor.is_paused()
    assert relay.counters.holds == 1
    assert relay.counters.failed_holds == 0
    assert relay.time.waiting == 0
    assert not other.is_paused()


def test_a_harness_that_gets_rid_of_its_queue_in_time_may_hold_the_executor_again_and_again(
    relay: Relay,
) -> None:
    executor = relay.executor()
    client = relay.harness("h1", stuck=True)
    relay.harness("h2")
    relay.up(client, frames.resume("s1"))

    for _ in range(10):
        fill(relay, executor, client, "s1", MIB)
        assert executor.is_paused()
        relay.time.pass_by(LIMITS.hold_seconds - 0.001)
        client.take()
        assert not executor.is_paused()

    assert relay.counters.holds == 10
    assert relay.counters.failed_holds == 0


@pytest.mark.statement("R27")
def test_a_slow_harness_costs_its_neighbors_20_ms_a_second(relay: Relay) -> None:
    executor = relay.executor()
    slow, other = relay.harness("slow", stuck=True), relay.harness("other")
    relay.up(slow, frames.resume("s1"))
    relay.up(other, frames.resume("s2"))
    fill(relay, executor, slow, "s1", MIB)

    held = 0.0
    for _ in range(3000):  # 3 s in steps of 1 ms
        if executor.is_paused():
            held += 0.001
        else:
            relay.down(executor, frames.data("s1", 0, bytes(100)), frames.data("s2", 0, b"x"))
        relay.time.pass_by(0.001)

    assert held == pytest.approx(3 * 0.020, abs=0.005)
    assert len(other.sent) == pytest.approx(3000 - 60, abs=5)
    assert slow.closed is None


@pytest.mark.statement("R27")
def test_many_slow_harnesses_cost_their_neighbors_a_fifth_of_the_time(relay: Relay) -> None:
    executor, other = relay.executor(), relay.harness("other")
    relay.up(other, frames.resume("honest"))
    slow = [relay.harness(f"slow{number}", stuck=True) for number in range(60)]
    for number, harness in enumerate(slow):
        relay.up(harness, frames.resume(f"s{number}"))
        while harness.queued <= MIB:
            relay.down(executor, a_frame(f"s{number}"))

    held = sent = 0
    for moment in range(10_000):  # 10 s in steps of 1 ms
        if executor.is_paused():
            held += 1
        else:
            sent += 1
            relay.down(executor, frames.data(f"s{moment % 60}", 0, b"x"), frames.data("honest", 0, b"x"))
        relay.time.pass_by(0.001)

    assert held <= 2_100
    assert len(other.sent) == sent


@pytest.mark.statement("R27")
def test_a_slow_harness_gets_the_largest_message_and_is_cut_beyond_it(relay: Relay) -> None:
    executor = relay.executor()
    slow, other = relay.harness("slow", stuck=True), relay.harness("other")
    relay.up(slow, frames.resume("s1"))
    relay.up(other, frames.resume("s2"))

    fill(relay, executor, slow, "s1", 64 * MIB)
    assert relay.counters.closed["slow_consumer"] == 0
    fill(relay, executor, slow, "s1", LIMITS.most)

    assert slow.closed == (1008, "slow_consumer")
    assert executor.sent[-1] == frames.reset("s1", "relay_peer_closed")
    assert executor.closed is other.closed is None
    assert not executor.is_paused()
    assert relay.counters.full_bytes == 0
    assert relay.counters.closed["slow_consumer"] == 1
    relay.time.pass_by(2)
    assert not executor.is_paused()


@pytest.mark.statement("R27")
def test_a_harness_alone_with_its_executor_is_waited_for_longer(relay: Relay) -> None:
    executor = relay.executor()
    client = relay.harness("h1", stuck=True)
    relay.up(client, frames.resume("s1"))

    fill(relay, executor, client, "s1", MIB)
    relay.time.pass_by(LIMITS.alone_seconds - 0.1)
    assert executor.is_paused()
    relay.time.pass_by(0.2)
    assert not executor.is_paused()
    assert relay.counters.failed_holds == 1


def test_a_harness_that_comes_ends_the_long_wait_for_another(relay: Relay) -> None:
    executor = relay.executor()
    client = relay.harness("h1", stuck=True)
    relay.up(client, frames.resume("s1"))
    fill(relay, executor, client, "s1", MIB)
    relay.time.pass_by(1)

    relay.harness("h2")
    relay.time.pass_by(LIMITS.hold_seconds + 0.001)

    assert not executor.is_paused()


def test_harnesses_that_come_all_the_time_do_not_prolong_a_wait(relay: Relay) -> None:
    executor = relay.executor()
    client = relay.harness("h1", stuck=True)
    relay.up(client, frames.resume("s1"))
    fill(relay, executor, client, "s1", MIB)

    for number in range(3):
        relay.harness(f"new{number}")
        relay.time.pass_by(LIMITS.hold_seconds / 2)

    assert not executor.is_paused()


def test_an_executor_is_read_again_only_after_the_last_hold(relay: Relay) -> None:
    executor = relay.executor()
    clients = [relay.harness(f"h{number}", stuck=True) for number in range(2)]
    for number, client in enumerate(clients):
        relay.up(client, frames.resume(f"s{number}"))
        while client.queued <= MIB:  # what was on its way arrives though the first one holds it
            relay.down(executor, a_frame(f"s{number}"))

    clients[0].take()
    assert executor.is_paused()
    relay.rendezvous.harness_left(clients[1])
    assert not executor.is_paused()


def test_the_end_of_an_executor_ends_its_holds(relay: Relay) -> None:
    executor = relay.executor()
    client = relay.harness("h1", stuck=True)
    relay.up(client, frames.resume("s1"))
    fill(relay, executor, client, "s1", MIB)

    relay.rendezvous.executor_left(executor)

    assert relay.time.waiting == 0
    assert relay.counters.full_bytes == 0


@pytest.mark.statement("R27")
def test_an_executor_that_takes_nothing_is_cut_and_its_harnesses_try_again() -> None:
    relay = Relay(Limits(high=KIB, low=KIB // 4, most=MIB))
    executor = relay.executor(stuck=True)
    client = relay.harness("h1")

    for _ in range(9):  # a harness that cannot be paused in time
        relay.up(client, a_frame("s1"))

    assert executor.closed == (1008, "slow_consumer")
    assert client.closed == (1013, "executor_gone")
    assert relay.counters.streams == 0


def test_of_all_queues_together_the_largest_goes() -> None:
    relay = Relay(Limits(total=7 * MIB + 512 * KIB))
    sizes = {"h1": 2, "h2": 3, "h3": 2}
    executors, clients = {}, {}
    for number, (name, size) in enumerate(sizes.items()):
        executors[name] = relay.executor(f"r{number}", f"e{number}")
        clients[name] = relay.harness(name, f"r{number}", stuck=True)
        relay.up(clients[name], frames.resume(name))
        fill(relay, executors[name], clients[name], name, size * MIB)
    assert {client.closed for client in clients.values()} == {None}

    fill(relay, executors["h1"], clients["h1"], "h1", 2 * MIB + 768 * KIB)

    assert clients["h2"].closed == (1008, "slow_consumer")
    assert clients["h1"].closed is clients["h3"].closed is None
    assert relay.counters.full_bytes == clients["h1"].queued + clients["h3"].queued


def test_many_queues_of_one_tenant_cost_no_other_one_its_socket() -> None:
    relay = Relay(Limits(total=8 * MIB))
    executors = [relay.executor(f"r{number}", f"e{number}") for number in range(2)]
    hostile = [relay.harness(f"hostile{number}", "r0", stuck=True) for number in range(6)]
    for number, harness in enumerate(hostile):
        relay.up(harness, frames.resume(f"s{number}"))
        fill(relay, executors[0], harness, f"s{number}", MIB + 128 * KIB)
    honest = relay.harness("honest", "r1", stuck=True)
    relay.up(honest, frames.resume("honest"))

    fill(relay, executors[1], honest, "honest", 3 * MIB)  # larger than each of theirs

    assert honest.closed is None
    assert [harness.closed for harness in hostile].count((1008, "slow_consumer")) >= 1


def test_bytes_that_left_in_the_meantime_are_not_counted() -> None:
    relay = Relay(Limits(total=4 * MIB))
    executor = relay.executor()
    clients = [relay.harness(f"h{number}", stuck=True) for number in range(2)]
    for number, client in enumerate(clients):
        relay.up(client, frames.resume(f"s{number}"))
    fill(relay, executor, clients[0], "s0", 3 * MIB)
    clients[0].queued = MIB  # a transport tells only when it is below the low mark

    fill(relay, executor, clients[1], "s1", 2 * MIB)

    assert clients[0].closed is clients[1].closed is None


class Answering(FakePeer):
    """A peer in this process: it sends from within `send` and `resume`, as the plain door does."""

    relay: Relay

    def send(self, frame: bytes) -> None:
        """Answer data with a reset."""
        super().send(frame)
        if frames.decode(frame).kind == "data":
            self.relay.up(self, frames.reset(frames.decode(frame).stream_id, "bad record"))

    def resume(self) -> None:
        """Go on sending."""
        super().resume()
        self.relay.up(self, a_frame("s1"))


def answering(relay: Relay) -> Answering:
    peer = Answering("door", relay.rendezvous)
    peer.relay = relay
    relay.rendezvous.harness_joined("r1", "e1", peer)
    return peer


def test_a_peer_may_reset_its_stream_while_it_is_sent_to(relay: Relay) -> None:
    executor = relay.executor()
    door = answering(relay)
    relay.up(door, frames.resume("s1"))

    relay.down(executor, frames.data("s1", 0, b"x"), frames.data("s1", 1, b"y"))

    assert executor.sent == [frames.resume("s1"), frames.reset("s1", "bad record")]
    assert len(door.sent) == 1
    assert relay.counters.streams == 0


def test_a_peer_may_send_while_it_is_resumed(relay: Relay) -> None:
    executor = relay.executor(stuck=True)
    door, other = answering(relay), relay.harness("h1")
    while not (door.is_paused() and other.is_paused()):
        relay.up(door, a_frame("s1"))
        relay.up(other, a_frame("s2"))

    executor.take()

    assert executor.queued == len(a_frame("s1"))
    assert not door.is_paused()
    assert not other.is_paused()


def test_a_reset_too_many_for_a_full_executor_ends_it_once() -> None:
    relay = Relay(Limits(high=100, low=50, most=2 * 128 * KIB + 200))
    executor = relay.executor(stuck=True)
    client = relay.harness("h1")
    for number in range(8):
        relay.up(client, frames.resume(f"s{number}"))
    relay.up(client, a_frame("s0"), a_frame("s1"))
    assert relay.counters.closed["slow_consumer"] != 1

    relay.rendezvous.harness_left(client)

    assert executor.closed == (1008, "slow_consumer")
    assert relay.counters.closed["slow_consumer"] == 1
    assert relay.counters.resets["relay_peer_closed"] < 8  # the others had no receiver
    assert (relay.counters.streams, relay.counters.harnesses, relay.counters.executors) == (0, 0, 0)


@pytest.mark.parametrize("end", ["room", "gone"])
def test_an_executor_waits_for_a_congested_way_as_long_as_it_takes(end: MessageKind) -> None:
    bus = MemoryBus()
    relay = Relay(bus=bus)
    executor, client = relay.executor(), relay.harness("h1")
    relay.harness("h2")
    way = BusMessage("congested", relay.rendezvous.address(client))

    bus.publish(relay.rendezvous.address(executor), way)
    relay.time.pass_by(60)
    assert executor.is_paused()

    bus.publish(relay.rendezvous.address(executor), way._replace(kind=end))
    assert not executor.is_paused()
    assert relay.counters.holds == 0
