"""An executor at one relay and its harnesses at another: as at one relay, and nothing is left at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from execprotocol.relay import frames
from execserver.relay.fleet.bus import NatsBus
from execserver.relay.service.queues import Limits
from tests.support.fleet_bus import buses, until
from tests.support.nats_servers import NatsServer, NatsServers
from tests.support.rendezvous_peers import FakePeer, Relay

GONE = (1013, "executor_gone")
PAYLOAD = bytes(16 << 10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServers(tmp_path, jetstream=False) as servers:
        yield servers[0]


class Fleet:
    """Two relays: the executor's and that of the harnesses."""

    def __init__(self, here: NatsBus, there: NatsBus, limits: Limits) -> None:
        self.here, self.there = here, there
        self.executors = Relay(limits, here)
        self.harnesses = Relay(limits, there)

    def executor(self, name: str = "e1", *, stuck: bool = False) -> FakePeer:
        peer = self.executors.executor("r1", name, stuck=stuck)
        self.harnesses.addresses["r1"] = self.executors.addresses["r1"]  # as the registry tells
        return peer

    def harness(self, name: str, *, stuck: bool = False) -> FakePeer:
        return self.harnesses.harness(name, "r1", stuck=stuck)

    def pairs(self) -> tuple[int, int]:
        return self.here.links.pairs, self.there.links.pairs

    def is_empty(self) -> bool:
        """Whether nothing is left of any peer."""
        counters = (self.executors.counters, self.harnesses.counters)
        sockets = [each.executors + each.harnesses + each.streams + each.full_bytes for each in counters]
        return sockets == [0, 0] and self.pairs() == (0, 0)


@asynccontextmanager
async def fleet(server: NatsServer, limits: Limits | None = None) -> AsyncIterator[Fleet]:
    async with buses(server.url, server.url) as (here, there):
        yield Fleet(here, there, limits or Limits())


def claim(stream_id: str) -> tuple[bytes, bytes]:
    """What a harness begins with."""
    return frames.resume(stream_id), frames.handshake(stream_id, b"message 1 of " + stream_id.encode())


def resets(peer: FakePeer) -> list[tuple[str, str]]:
    decoded = [frames.decode(frame) for frame in peer.sent]
    return [(frame.stream_id, frame.reason) for frame in decoded if frame.kind == "reset"]


async def test_frames_go_both_ways_and_a_harness_that_leaves_resets_its_streams(server: NatsServer) -> None:
    async with fleet(server) as relays:
        executor = relays.executor()
        one, other = relays.harness("h1"), relays.harness("h2")
        relays.harnesses.up(one, *claim("s1"))
        relays.harnesses.up(other, *claim("s2"))
        await until(lambda: len(executor.sent) == 4)
        assert sorted(executor.sent) == sorted(claim("s1") + claim("s2"))
        assert relays.executors.streams_of("r1") == 2

        relays.executors.down(executor, frames.handshake("s1", b"2"), frames.data("s2", 0, b"for h2"))
        await until(lambda: len(one.sent) + len(other.sent) == 2)
        assert one.sent == [frames.handshake("s1", b"2")]
        assert other.sent == [frames.data("s2", 0, b"for h2")]

        relays.harnesses.rendezvous.harness_left(one)
        await until(lambda: resets(executor) == [("s1", "relay_peer_closed")])
        relays.harnesses.up(other, frames.reset("s2", "done"))
        await until(lambda: relays.executors.streams_of("r1") == 0)
        relays.harnesses.rendezvous.harness_left(other)
        relays.executors.rendezvous.executor_left(executor)
        await until(relays.is_empty)


async def test_the_end_of_an_executor_ends_its_harnesses_at_the_other_relay(server: NatsServer) -> None:
    async with fleet(server) as relays:
        executor = relays.executor()
        harness = relays.harness("h1")
        relays.harnesses.up(harness, *claim("s1"))
        await until(lambda: len(executor.sent) == 2)

        relays.executors.rendezvous.executor_left(executor)

        await until(lambda: harness.closed == GONE)
        late = relays.harness("h2")
        await until(lambda: late.closed == GONE)
        await until(relays.is_empty)


async def test_a_harness_for_a_relay_that_is_gone_is_closed_at_once(server: NatsServer) -> None:
    async with fleet(server) as relays:
        relays.harnesses.addresses["r1"] = "unknown.e1"
        assert relays.harness("h1").closed == GONE
        assert relays.is_empty()


async def test_limits_of_an_executor_hold_for_harnesses_at_the_other_relay(server: NatsServer) -> None:
    async with fleet(server, Limits(streams=1, harnesses=2)) as relays:
        executor = relays.executor()
        one, other = relays.harness("h1"), relays.harness("h2")
        relays.harnesses.up(one, *claim("s1"))
        await until(lambda: len(executor.sent) == 2)

        crowd = relays.harness("h3")
        relays.harnesses.up(other, *claim("s1"), *claim("s2"))

        await until(lambda: crowd.closed == (1013, "too_many_harnesses"))
        await until(lambda: len(resets(other)) == 3)
        assert resets(other) == [("s1", "relay_stream_id_in_use")] * 2 + [("s2", "relay_too_many_streams")]
        assert len(executor.sent) == 2
        relays.executors.rendezvous.executor_left(executor)
        await until(relays.is_empty)


async def test_a_harness_is_paused_while_the_executor_s_queue_is_full(server: NatsServer) -> None:
    async with fleet(server) as relays:
        executor = relays.executor(stuck=True)
        harness = relays.harness("h1")
        relays.harnesses.up(harness, *claim("s1"))
        number = 0
        while not harness.is_paused():
            relays.harnesses.up(harness, frames.data("s1", number, PAYLOAD))
            number += 1
            await asyncio.sleep(0)
        await until(lambda: len(executor.sent) == 2 + number)

        executor.take()

        await until(lambda: not harness.is_paused())
        assert executor.sent[2:] == [frames.data("s1", each, PAYLOAD) for each in range(number)]


async def test_the_executor_is_paused_while_the_queue_of_a_harness_is_full(server: NatsServer) -> None:
    async with fleet(server) as relays:
        executor = relays.executor()
        harness = relays.harness("h1", stuck=True)
        relays.harnesses.up(harness, *claim("s1"))
        await until(lambda: len(executor.sent) == 2)
        number = 0
        while not executor.is_paused():
            relays.executors.down(executor, frames.data("s1", number, PAYLOAD))
            number += 1
            await asyncio.sleep(0)
        await until(lambda: len(harness.sent) == number)

        harness.take()

        await until(lambda: not executor.is_paused())
        assert harness.sent == [frames.data("s1", each, PAYLOAD) for each in range(number)]
        assert relays.executors.time.waiting == 0


async def test_a_way_that_is_congested_pauses_the_sender_and_loses_nothing(server: NatsServer) -> None:
    async with fleet(server) as relays:
        executor = relays.executor()
        harness = relays.harness("h1")
        relays.harnesses.up(harness, *claim("s1"))
        await until(lambda: len(executor.sent) == 2)
        number = pauses = 0
        while number < 2000:
            while not executor.is_paused() and number < 2000:
                relays.executors.down(executor, frames.data("s1", number, PAYLOAD))
                number += 1
            pauses += executor.is_paused()
            await until(lambda: not executor.is_paused())
            assert relays.here.links.queued < 2 << 20

        await until(lambda: len(harness.sent) == number)
        assert pauses > 1
        assert relays.executors.counters.holds == 0  # which are for slow harnesses, and end too early
        assert harness.sent == [frames.data("s1", each, PAYLOAD) for each in range(number)]


async def test_sockets_that_fill_the_way_between_two_relays_end_none_of_another_executor(
    server: NatsServer,
) -> None:
    async with fleet(server) as relays:
        executor = relays.executor()
        harness = relays.harness("h1")
        relays.harnesses.up(harness, *claim("s1"))
        crowd = []
        for number in range(2):
            relays.executors.executor(f"flooded{number}", f"f{number}")
            relays.harnesses.addresses[f"flooded{number}"] = relays.executors.addresses[f"flooded{number}"]
            crowd += [
                relays.harnesses.harness(f"c{number}-{each}", f"flooded{number}") for each in range(150)
            ]
        await until(lambda: len(executor.sent) == 2 and relays.pairs() == (301, 301))

        for number, each in enumerate(crowd):  # one frame each: all but its last byte was sent before
            relays.harnesses.up(each, frames.data(f"c{number}", 0, bytes(255 << 10)))
        relays.harnesses.up(harness, frames.data("s1", 0, PAYLOAD))

        await until(lambda: len(executor.sent) == 3)
        assert relays.there.links.ended["overflow"] == 1
        assert any(each.closed == GONE for each in crowd)
        assert harness.closed is None


async def test_many_streams_at_once_are_neither_mixed_nor_cut(server: NatsServer) -> None:
    random = Random(27)
    async with fleet(server) as relays:
        executor = relays.executor()
        harnesses = {f"s{number}": relays.harness(f"h{number}") for number in range(40)}
        sent: dict[str, list[bytes]] = {stream_id: list(claim(stream_id)) for stream_id in harnesses}
        answered: dict[str, list[bytes]] = {stream_id: [] for stream_id in harnesses}
        for stream_id, harness in harnesses.items():
            relays.harnesses.up(harness, *sent[stream_id])
        await until(lambda: len(executor.sent) == 80)
        for number in range(4000):
            stream_id = random.choice(list(harnesses))
            frame = frames.data(stream_id, number, random.randbytes(random.randrange(1, 2000)))
            if random.random() < 0.5:
                sent[stream_id].append(frame)
                relays.harnesses.up(harnesses[stream_id], frame)
            else:
                answered[stream_id].append(frame)
                relays.executors.down(executor, frame)
            if number % 50 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(executor.sent) == sum(map(len, sent.values())))
        await until(
            lambda: sum(len(each.sent) for each in harnesses.values()) == sum(map(len, answered.values()))
        )

        arrived: dict[str, list[bytes]] = {stream_id: [] for stream_id in harnesses}
        for frame in executor.sent:
            arrived[frames.decode(frame).stream_id].append(frame)
        assert arrived == sent
        assert {stream_id: harness.sent for stream_id, harness in harnesses.items()} == answered
        assert relays.pairs() == (40, 40)
        for harness in harnesses.values():
            relays.harnesses.rendezvous.harness_left(harness)
        relays.executors.rendezvous.executor_left(executor)
        await until(relays.is_empty)


async def test_the_end_of_the_relay_of_the_harnesses_ends_their_streams(server: NatsServer) -> None:
    async with fleet(server) as relays:
        executor = relays.executor()
        harness = relays.harness("h1")
        relays.harnesses.up(harness, *claim("s1"))
        await until(lambda: len(executor.sent) == 2)

        await relays.there.close()

        await until(lambda: resets(executor) == [("s1", "relay_peer_closed")])
        assert harness.closed == GONE
        assert relays.executors.streams_of("r1") == 0
        assert relays.executors.rendezvous.harnesses_of(relays.executors.addresses["r1"]) == 0


async def test_a_failure_of_nats_ends_both_sides_and_new_ones_begin(server: NatsServer) -> None:
    async with fleet(server) as relays:
        executor = relays.executor()
        harness = relays.harness("h1")
        relays.harnesses.up(harness, *claim("s1"))
        await until(lambda: len(executor.sent) == 2)

        server.kill()
        await until(lambda: harness.closed == GONE)
        await until(lambda: relays.executors.streams_of("r1") == 0)
        assert executor.closed is None
        assert resets(executor) == [("s1", "relay_peer_closed")]
        assert relays.pairs() == (0, 0)
        server.start()

        await until(lambda: relays.here.ready and relays.there.ready)
        again = relays.harness("h2")
        relays.harnesses.up(again, *claim("s2"))
        await until(lambda: executor.sent[3:] == list(claim("s2")))
        relays.executors.rendezvous.drain()
        await until(lambda: again.closed == GONE)
        await until(relays.is_empty)
