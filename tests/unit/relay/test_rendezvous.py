"""The duties of a rendezvous, one after the other, and what peers may not do to each other."""

from __future__ import annotations

import pytest

from execprotocol.relay import frames
from execserver.relay.service.bus import MemoryBus
from execserver.relay.service.endpoints import ENDED_STREAMS
from execserver.relay.service.queues import Limits
from tests.support.rendezvous_peers import FakePeer, Relay

GONE = (1013, "executor_gone")


@pytest.fixture
def relay() -> Relay:
    return Relay()


def claim(stream_id: str) -> tuple[bytes, bytes]:
    """What a harness begins with."""
    return frames.resume(stream_id), frames.handshake(stream_id, b"message 1 of " + stream_id.encode())


def resets(peer: FakePeer) -> list[tuple[str, str]]:
    decoded = [frames.decode(frame) for frame in peer.sent]
    return [(frame.stream_id, frame.reason) for frame in decoded if frame.kind == "reset"]


# -- the duties


def test_duty_1_a_second_socket_of_a_registration_replaces_the_first(relay: Relay) -> None:
    first = relay.executor(name="e1")
    client = relay.harness("h1")
    relay.up(client, *claim("s1"))

    second = relay.executor(name="e2")
    relay.rendezvous.replace(first)
    relay.rendezvous.replace(first)

    assert first.closed == (1001, "replaced")
    assert second.closed is None
    assert client.closed == GONE  # its channel was with the socket that is gone
    relay.rendezvous.executor_left(first)  # its task ends later
    again = relay.harness("h2")
    relay.up(again, *claim("s2"))
    assert second.sent == list(claim("s2"))
    assert relay.counters.executors == 1
    assert relay.counters.closed["replaced"] == 1


def test_duty_1_what_a_replaced_executor_still_sends_goes_nowhere(relay: Relay) -> None:
    first = relay.executor(name="e1")
    relay.executor(name="e2")
    relay.rendezvous.replace(first)
    client = relay.harness("h1")
    relay.up(client, *claim("s1"))

    relay.down(first, frames.handshake("s1", b"forged"))

    assert client.sent == []


def test_duty_2_a_stream_id_is_bound_to_the_first_harness_that_used_it(relay: Relay) -> None:
    executor = relay.executor()
    owner, thief = relay.harness("owner"), relay.harness("thief")
    relay.up(owner, *claim("s1"))

    relay.up(thief, *claim("s1"), frames.data("s1", 0, b"poison"))

    assert executor.sent == list(claim("s1"))
    assert resets(thief) == [("s1", "relay_stream_id_in_use")] * 3
    assert owner.sent == []
    relay.down(executor, frames.handshake("s1", b"message 2"))
    assert owner.sent == [frames.handshake("s1", b"message 2")]
    assert relay.counters.resets["relay_stream_id_in_use"] == 3


def test_duty_2_a_thief_cannot_reset_a_stream_nor_end_it_by_leaving(relay: Relay) -> None:
    executor = relay.executor()
    owner, thief = relay.harness("owner"), relay.harness("thief")
    relay.up(owner, *claim("s1"))

    relay.up(thief, frames.reset("s1", "mine"))
    relay.rendezvous.harness_left(thief)

    assert thief.sent == []
    assert resets(executor) == []
    relay.up(owner, frames.data("s1", 0, b"on"))
    assert executor.sent[-1] == frames.data("s1", 0, b"on")


def test_duty_3_frames_are_copied_byte_for_byte_both_ways(relay: Relay) -> None:
    executor = relay.executor()
    client = relay.harness("h1")
    # Unknown members, acks that are not 0: what a later version might send.
    unknown = b"\xa2\x06\x05trace"
    acks = b"\x18\x07\x20\x03"
    up = [
        *(frame + unknown for frame in claim("s1")),
        acks + frames.data("s1", 0, b"x" * 61_456),
        frames.data("s1", 5, b"out of order is not our business"),
        b"\x08\x01\x12\x02s1\x4a\x00",  # heartbeat
        b"\x08\x01\x12\x02s1\x32\x00",  # ack
    ]
    down = [frames.handshake("s1", b"message 2") + unknown, acks + frames.data("s1", 0, b"y")]

    relay.up(client, *up)
    relay.down(executor, *down)

    assert executor.sent == up
    assert client.sent == down
    assert (relay.counters.frames_up, relay.counters.frames_down) == (6, 2)
    assert relay.counters.bytes_up == sum(map(len, up))
    assert relay.counters.bytes_down == sum(map(len, down))


def test_duty_3_a_harness_gets_the_frames_of_its_own_streams_only(relay: Relay) -> None:
    executor = relay.executor()
    clients = {name: relay.harness(name) for name in ("h1", "h2", "h3")}
    for name, client in clients.items():
        relay.up(client, *claim(f"{name}-a"), *claim(f"{name}-b"))

    answers = {
        name: [frames.data(f"{name}-{each}", 0, b"for " + name.encode()) for each in "ab"] for name in clients
    }
    for pair in zip(*answers.values(), strict=True):
        relay.down(executor, *pair)

    assert {name: client.sent for name, client in clients.items()} == answers
    assert relay.streams_of("r1") == 6


@pytest.mark.statement("R23")
def test_duty_3_nothing_waits_for_who_is_absent(relay: Relay) -> None:
    executor = relay.executor()
    relay.down(executor, frames.data("s1", 0, b"for nobody"))
    client = relay.harness("h1")
    relay.up(client, *claim("s1"))

    assert client.sent == []
    assert relay.counters.dropped["unknown_stream"] == 1


def test_duty_4_the_end_of_an_executor_ends_its_harnesses(relay: Relay) -> None:
    executor = relay.executor()
    clients = [relay.harness(f"h{number}") for number in range(3)]
    relay.up(clients[0], *claim("s1"))

    relay.rendezvous.executor_left(executor)
    relay.rendezvous.executor_left(executor)

    assert [client.closed for client in clients] == [GONE] * 3
    for client in clients:
        relay.rendezvous.harness_left(client)
    counters = relay.counters
    assert (counters.executors, counters.harnesses, counters.streams) == (0, 0, 0)
    assert counters.closed["executor_gone"] == 3


def test_duty_4_a_harness_without_an_executor_is_told_to_try_again(relay: Relay) -> None:
    client = relay.harness("h1")

    assert client.closed == GONE
    relay.up(client, *claim("s1"))
    assert relay.counters.dropped["no_peer"] == 2
    assert relay.counters.harnesses == 0


def test_duty_5_the_end_of_a_harness_resets_its_streams_at_the_executor(relay: Relay) -> None:
    executor = relay.executor()
    leaving, staying = relay.harness("h1"), relay.harness("h2")
    relay.up(leaving, *claim("a"), *claim("b"))
    relay.up(staying, *claim("c"))

    relay.rendezvous.harness_left(leaving)
    relay.rendezvous.harness_left(leaving)

    assert sorted(resets(executor)) == [("a", "relay_peer_closed"), ("b", "relay_peer_closed")]
    assert relay.streams_of("r1") == 1
    relay.down(executor, frames.data("a", 0, b"late"))
    assert leaving.sent == []


def test_duty_5_the_129th_stream_is_reset_without_troubling_the_executor(relay: Relay) -> None:
    executor = relay.executor()
    client, late = relay.harness("h1"), relay.harness("h2")
    for number in range(128):
        relay.up(client, *claim(f"s{number}"))
    before = len(executor.sent)

    relay.up(late, *claim("one-more"), frames.data("one-more", 0, b"x"))

    assert len(executor.sent) == before == 256
    assert resets(late) == [("one-more", "relay_too_many_streams")]  # once, not for each frame on its way
    assert late.closed is None
    relay.down(executor, frames.reset("s7", "over"))
    relay.up(late, *claim("now"))
    assert executor.sent[-2:] == list(claim("now"))
    assert relay.counters.streams == 128


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xff\xff\xff",
        b"hello",
        frames.data("s1", 0, b"x")[:-1],
        frames.data("s1", 0, b"x").replace(b"\x08\x01", b"\x08\x02", 1),  # version 2
        b"\x08\x01\x52\x03\x0a\x01x",  # a handshake of no stream
    ],
)
def test_an_undecodable_frame_is_dropped_and_its_socket_stays(relay: Relay, bad: bytes) -> None:
    executor = relay.executor()
    client = relay.harness("h1")
    relay.up(client, *claim("s1"))

    relay.up(client, bad)
    relay.down(executor, bad)

    assert executor.sent == list(claim("s1"))
    assert client.sent == []
    assert executor.closed is client.closed is None
    assert relay.counters.dropped["undecodable"] == 2


# -- resets


def test_a_reset_by_the_executor_is_forwarded_and_ends_the_stream(relay: Relay) -> None:
    executor = relay.executor()
    client = relay.harness("h1")
    relay.up(client, *claim("s1"))

    relay.down(executor, frames.reset("s1", "over"))
    relay.up(client, frames.data("s1", 0, b"was on its way"), frames.reset("s1", "me too"))
    relay.down(executor, frames.data("s1", 0, b"late"))
    relay.rendezvous.harness_left(client)

    assert client.sent == [frames.reset("s1", "over")]
    assert executor.sent == list(claim("s1"))
    assert relay.counters.resets["executor"] == 1
    assert relay.counters.dropped["unknown_stream"] == 3


def test_a_reset_by_the_harness_is_forwarded_and_ends_the_stream(relay: Relay) -> None:
    executor = relay.executor()
    client = relay.harness("h1")
    relay.up(client, *claim("s1"))

    relay.up(client, frames.reset("s1", "enough"))
    relay.down(executor, frames.data("s1", 0, b"was on its way"))

    assert executor.sent == [*claim("s1"), frames.reset("s1", "enough")]
    assert client.sent == []
    assert relay.streams_of("r1") == 0


def test_an_id_is_free_again_after_its_stream_ended(relay: Relay) -> None:
    executor = relay.executor()
    first, second = relay.harness("h1"), relay.harness("h2")
    relay.up(first, *claim("s1"), frames.reset("s1", "done"))

    relay.up(second, *claim("s1"))
    relay.down(executor, frames.handshake("s1", b"message 2"))

    assert second.sent == [frames.handshake("s1", b"message 2")]
    assert first.sent == []


def test_a_stream_may_begin_without_a_resume(relay: Relay) -> None:
    executor = relay.executor()
    client = relay.harness("h1")

    relay.up(client, frames.handshake("s1", b"message 1"))
    relay.down(executor, frames.handshake("s1", b"message 2"))

    assert len(executor.sent) == len(client.sent) == 1


def test_what_cannot_begin_a_stream_begins_none(relay: Relay) -> None:
    executor = relay.executor()
    client = relay.harness("h1")

    relay.up(client, frames.reset("s1", "x"), b"\x08\x01\x12\x02s1\x4a\x00", b"\x08\x01\x12\x02s1\x32\x00")

    assert executor.sent == client.sent == []
    assert relay.streams_of("r1") == 0


def test_the_memory_of_ended_streams_is_bounded(relay: Relay) -> None:
    relay.executor()
    client = relay.harness("h1")
    for number in range(2 * ENDED_STREAMS):
        relay.up(client, *claim(f"s{number}"), frames.reset(f"s{number}", "done"))

    relay.up(client, frames.data(f"s{ENDED_STREAMS}", 0, b"remembered"))
    assert relay.streams_of("r1") == 0
    relay.up(client, frames.data("s0", 0, b"forgotten"))
    assert relay.streams_of("r1") == 1


# -- tenants


def test_two_tenants_never_see_each_others_frames(relay: Relay) -> None:
    executors = {name: relay.executor(name, f"e-{name}") for name in ("red", "blue")}
    clients = {name: relay.harness(f"h-{name}", name) for name in executors}
    same_id = "11111111-1111-4111-8111-111111111111"

    for name, client in clients.items():
        relay.up(client, frames.resume(same_id), frames.handshake(same_id, name.encode()))
    for name, executor in executors.items():
        relay.down(executor, frames.handshake(same_id, b"to " + name.encode()))

    for name in executors:
        other = b"blue" if name == "red" else b"red"
        seen = b"".join(executors[name].sent + clients[name].sent)
        assert name.encode() in seen
        assert other not in seen
    relay.rendezvous.executor_left(executors["red"])
    assert clients["red"].closed == GONE
    assert clients["blue"].closed is None
    assert executors["blue"].closed is None


def test_a_harness_that_sends_as_an_executor_moves_nothing_of_others(relay: Relay) -> None:
    executor = relay.executor()
    owner, liar = relay.harness("h1"), relay.harness("h2")
    relay.up(owner, *claim("s1"))

    relay.rendezvous.executor_left(liar)

    assert executor.closed is owner.closed is None


def test_an_executor_has_room_for_so_many_harness_sockets(relay: Relay) -> None:
    relay = Relay(Limits(harnesses=3))
    executor = relay.executor()
    clients = [relay.harness(f"h{number}") for number in range(4)]

    assert [client.closed for client in clients] == [None, None, None, (1013, "too_many_harnesses")]
    assert executor.closed is None
    relay.rendezvous.harness_left(clients[3])
    relay.rendezvous.harness_left(clients[0])
    assert relay.harness("h4").closed is None
    assert relay.rendezvous.harnesses_of("e1") == 3


# -- ends that the relay decides on


def test_a_retired_executor_hears_why_and_its_harnesses_try_again(relay: Relay) -> None:
    executor, other = relay.executor("r1", "e1"), relay.executor("r2", "e2")
    client = relay.harness("h1", "r1")

    relay.rendezvous.retire(executor, 1008, "token_revoked")
    relay.rendezvous.retire(executor, 1008, "token_revoked")

    assert executor.closed == (1008, "token_revoked")
    assert client.closed == GONE
    assert other.closed is None
    assert relay.counters.closed["retired"] == 1


def test_a_dismissed_harness_is_reset_at_the_executor(relay: Relay) -> None:
    executor = relay.executor()
    client = relay.harness("h1")
    relay.up(client, *claim("s1"))

    relay.rendezvous.retire(client, 1008, "token_revoked")
    relay.rendezvous.retire(client, 1008, "token_revoked")

    assert client.closed == (1008, "token_revoked")
    assert resets(executor) == [("s1", "relay_peer_closed")]


def test_draining_ends_all_peers_with_the_same_code_and_admits_none(relay: Relay) -> None:
    executor = relay.executor(stuck=True)
    clients = [relay.harness(f"h{number}", stuck=True) for number in range(2)]
    relay.up(clients[0], *claim("s1"))
    sent = len(executor.sent)

    relay.rendezvous.drain()

    late = [relay.executor("r9", "e9"), relay.harness("h9", "r9")]
    assert {peer.closed for peer in (executor, *clients, *late)} == {(1012, "draining")}
    assert len(executor.sent) == sent  # no resets: there is no peer any more
    counters = relay.counters
    assert (counters.executors, counters.harnesses, counters.streams, counters.full_bytes) == (0, 0, 0, 0)
    for peer in (executor, *clients, *late):
        relay.rendezvous.executor_left(peer)
        relay.rendezvous.harness_left(peer)
    assert relay.time.waiting == 0


# -- two relays


def test_an_executor_and_a_harness_meet_over_a_bus_that_two_relays_share() -> None:
    bus = MemoryBus()
    one, two = Relay(bus=bus), Relay(bus=bus)
    executor = one.executor(stuck=True)
    two.addresses = one.addresses
    client = two.harness("h1", stuck=True)

    two.up(client, *claim("s1"))
    one.down(executor, frames.handshake("s1", b"message 2"))
    assert executor.sent == list(claim("s1"))
    assert client.sent == [frames.handshake("s1", b"message 2")]

    one.rendezvous.executor_left(executor)
    assert client.closed == GONE
