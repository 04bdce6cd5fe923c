"""The bus of a fleet over real NATS servers: what happens to peers if servers, relays or connections fail."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import nats
import pytest

from execserver.relay.fleet.bus import SETTLE_SECONDS, NatsBus
from execserver.relay.fleet.links import BEAT_SECONDS, DEAD_SECONDS, WINDOW_BYTES
from execserver.relay.service.bus import BusMessage
from tests.support.fleet_bus import Peer, buses, new_bus, reaches, resident_bytes, until
from tests.support.nats_servers import NatsServer, NatsServers

FRAME = bytes(16 << 10)

AT_ONCE_SECONDS = 2.5
"""Less than `DEAD_SECONDS`, after which a relay is taken for dead that has said nothing."""

REMOTE_BUS = """
import asyncio, sys
from execserver.relay.service.bus import BusMessage
from tests.support.fleet_bus import new_bus

async def main():
    bus = new_bus(sys.argv[1])
    await bus.start()
    address = bus.address("echo")
    def echo(message):
        if message.kind == "frame":
            bus.publish(message.sender, BusMessage("frame", address, message.stream_id))
    bus.subscribe(address, echo)
    while not bus.ready:
        await asyncio.sleep(0.01)
    print(address, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServers(tmp_path, jetstream=False) as servers:
        yield servers[0]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsServers]:
    with NatsServers(tmp_path, 3, jetstream=False) as servers:
        yield servers


def server_of(bus: NatsBus, servers: NatsServers) -> NatsServer:
    """The server that a bus is connected to."""
    assert bus._connection is not None
    url = bus._connection.client.connected_url
    return next(each for each in servers.servers if url is not None and url.port == each.port)


@contextmanager
def remote_bus(server: NatsServer) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process with a bus, and the address of its peer that answers frames."""
    command = [sys.executable, "-c", REMOTE_BUS, server.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def counts_up(texts: list[str]) -> bool:
    """Whether frames arrived from the first on, in order, without a gap and once."""
    return texts == [str(number) for number in range(len(texts))]


async def test_frames_go_both_ways_in_order_and_gone_is_the_last(server: NatsServer) -> None:
    async with buses(server.url, server.url) as (first, second):
        one, other = Peer(first, "one"), Peer(second, "other")
        assert one.send(other, "joined")
        for number in range(2000):
            one.send(other, text=str(number), frame=b"%d" % number)
        one.send(other, "gone")
        await until(lambda: "gone" in other.kinds())

        assert other.kinds() == ["joined", *["frame"] * 2000, "gone"]
        assert counts_up(other.texts())
        assert [message.frame for message in other.received[1:-1]] == [b"%d" % each for each in range(2000)]
        assert {message.sender for message in other.received} == {one.address}
        assert first.links.pairs == second.links.pairs == 0


async def test_addresses_of_one_relay_need_no_nats(server: NatsServer) -> None:
    async with buses(server.url) as (bus,):
        one, other = Peer(bus, "one"), Peer(bus, "other")
        assert one.send(other, text="at once")
        assert other.texts() == ["at once"]
        bus.unsubscribe(other.address)
        assert not one.send(other)


async def test_fleets_with_different_prefixes_do_not_meet(server: NatsServer) -> None:
    ours, theirs = new_bus(server.url, "ours"), new_bus(server.url, "theirs")
    await ours.start()
    await theirs.start()
    await until(lambda: ours.ready and theirs.ready)

    assert not ours.is_alive(theirs.node)
    assert not ours.publish(theirs.address("x"), BusMessage("joined", ours.address("y")))
    await ours.close()
    await theirs.close()


async def test_a_relay_that_closes_is_known_to_be_gone_at_once(server: NatsServer) -> None:
    async with buses(server.url, server.url) as (first, second):
        one, other = Peer(first, "one"), Peer(second, "other")
        one.send(other, "joined")
        await until(lambda: other.kinds() == ["joined"])
        other.send(one, text="last words")

        await second.close()

        await until(lambda: "gone" in one.kinds(), AT_ONCE_SECONDS)
        assert one.kinds() == ["frame", "gone"]
        await until(lambda: not first.is_alive(second.node), AT_ONCE_SECONDS)
        assert second.fault == "the bus was closed"


async def test_the_peers_of_a_relay_that_is_killed_are_gone_in_seconds(server: NatsServer) -> None:
    with remote_bus(server) as (process, address):
        async with buses(server.url) as (bus,):
            await until(lambda: reaches(bus, address.partition(".")[0]))
            one = Peer(bus, "one")
            bus.publish(address, BusMessage("joined", one.address))
            bus.publish(address, BusMessage("frame", one.address, "hello"))
            await until(lambda: one.texts() == ["hello"])

            process.kill()
            begun = time.monotonic()

            await until(lambda: "gone" in one.kinds())
            # A beat of ours that comes late, because this process did not run, allows the other as much more.
            assert time.monotonic() - begun < 2 * DEAD_SECONDS
            assert not bus.is_alive(address.partition(".")[0])
            assert bus.links.pairs == 0


async def check_standstill(server: NatsServer, flood: int = 0) -> None:
    """A relay is stopped while another one sends to it, and so many MiB come of others. It goes on later."""
    with remote_bus(server) as (process, address):
        async with buses(server.url) as (bus,):
            await until(lambda: reaches(bus, address.partition(".")[0]))
            one = Peer(bus, "one")
            bus.publish(address, BusMessage("joined", one.address))
            process.send_signal(signal.SIGSTOP)
            before = resident_bytes()

            while "gone" not in one.kinds():
                for _ in range(256):  # distinct bytes, or they would share their memory
                    if not bus.publish(address, BusMessage("frame", one.address, frame=bytes(256 << 10))):
                        break
                await asyncio.sleep(0.01)

            stranger = await nats.connect(server.url)
            for _ in range(flood):
                await stranger.publish(f"execserver.relay.{address.partition('.')[0]}", bytes(1 << 20))
            await stranger.close()
            assert "congested" in one.kinds()
            assert bus.links.queued < 1 << 20
            assert resident_bytes() - before < 200 << 20
            await asyncio.sleep(DEAD_SECONDS)
            process.send_signal(signal.SIGCONT)
            await until_answered(bus, address)


async def test_a_relay_that_stands_still_costs_its_senders_a_bounded_memory(server: NatsServer) -> None:
    await check_standstill(server)


async def test_a_relay_that_nats_disconnects_as_a_slow_consumer_comes_back(tmp_path: Path) -> None:
    with NatsServers(tmp_path, jetstream=False, settings="max_pending: 1MB") as servers:
        await check_standstill(servers[0], 40)

        assert "Slow Consumer" in servers[0].log


async def test_a_sender_waits_while_the_window_is_full_and_loses_nothing(server: NatsServer) -> None:
    async with buses(server.url, server.url) as (first, second):
        one, other = Peer(first, "one"), Peer(second, "other")
        one.send(other, "joined")
        number = 0
        while number * len(FRAME) < WINDOW_BYTES * 20:
            one.send(other, text=str(number), frame=FRAME)
            number += 1
            if "congested" in one.kinds():
                await until(lambda: "room" in one.kinds())
            one.received.clear()
        await until(lambda: len(other.texts()) == number)

        assert counts_up(other.texts())
        assert sum(first.links.ended.values()) == sum(second.links.ended.values()) == 0


async def stream(one: Peer, other: Peer, stop: asyncio.Event) -> int:
    """Send numbered frames until told to stop, or the other is gone. Returns their number."""
    number = 0
    while not stop.is_set() and "gone" not in one.kinds():
        one.send(other, text=str(number), frame=FRAME)
        number += 1
        await asyncio.sleep(0.002)
    return number


async def check_streams(made: list[NatsBus], fail: Callable[[], None]) -> int:
    """Peers at all relays stream to each other while something fails: at the end each has all, or both sides
    are gone. Returns how many are gone.
    """
    relays = [(first, second) for first in made for second in made if first is not second]
    pairs = [
        (Peer(first, f"from{number}"), Peer(second, f"to{number}"))
        for number, (first, second) in enumerate(relays)
    ]
    for one, other in pairs:
        assert one.send(other, "joined")
    stop = asyncio.Event()
    streams = [
        (sender, receiver, asyncio.create_task(stream(sender, receiver, stop)))
        for one, other in pairs
        for sender, receiver in ((one, other), (other, one))
    ]
    await asyncio.sleep(0.5)
    fail()
    await asyncio.sleep(3)
    await until(lambda: all(bus.ready for bus in made))
    stop.set()
    await asyncio.wait([task for _, _, task in streams])
    await asyncio.sleep(DEAD_SECONDS + 2 * BEAT_SECONDS)  # relays may find each other dead only now
    await until(lambda: all(("gone" in r.kinds()) == ("gone" in s.kinds()) for s, r, _ in streams))
    for sender, receiver, task in streams:
        assert counts_up(receiver.texts())
        assert ("gone" in receiver.kinds()) == ("gone" in sender.kinds())
        if "gone" not in receiver.kinds():
            assert len(receiver.texts()) == task.result()
    return sum("gone" in one.kinds() for one, _ in pairs)


async def until_answered(bus: NatsBus, address: str) -> None:
    """A new peer is answered by another relay's peer. Until that relay has read what is old, it may be told
    "gone", as a client is that reconnects.
    """
    for attempt in range(20):
        peer = Peer(bus, f"again{attempt}")
        bus.publish(address, BusMessage("joined", peer.address))
        bus.publish(address, BusMessage("frame", peer.address, "hello"))
        with suppress(AssertionError):
            await until(lambda peer=peer: bool(peer.kinds()), 1)  # type: ignore[misc]
        if peer.kinds() == ["frame"]:
            return
    raise AssertionError("no peer is answered")


async def check_new_streams(made: list[NatsBus]) -> None:
    """Peers that join now reach each other."""
    await until(lambda: all(bus.ready for bus in made))
    for first, second in pairwise([*made, made[0]]):
        echo = Peer(second, "echo")

        def answer(message: BusMessage, bus: NatsBus = second, own: str = echo.address) -> None:
            if message.kind == "frame":
                bus.publish(message.sender, BusMessage("frame", own, message.stream_id))

        second.subscribe(echo.address, answer)
        await until_answered(first, echo.address)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_server_that_fails_costs_no_frame_unnoticed(cluster: NatsServers, number: int) -> None:
    async with buses(*[cluster.url] * 3) as made:
        failing = server_of(made[0], cluster)

        await check_streams(made, lambda: os.kill(failing.pid, number))

        assert server_of(made[0], cluster) is not failing
        await check_new_streams(made)
        if number == signal.SIGSTOP:
            failing.resume()


async def test_a_hanging_server_is_left_although_data_for_it_is_on_its_way(cluster: NatsServers) -> None:
    async with buses(*[cluster.url] * 2) as made:
        one, other = Peer(made[0], "one"), Peer(made[1], "other")
        one.send(other, "joined")
        await until(lambda: other.kinds() == ["joined"])
        hanging = server_of(made[0], cluster)
        hanging.pause()
        for _ in range(200):
            one.send(other, frame=bytes(256 << 10))
            await asyncio.sleep(0)

        await until(lambda: made[0].fault == "NATS does not deliver what this relay publishes")
        assert made[0].is_alive(made[1].node)
        await until(lambda: all(bus.ready for bus in made))
        await until(lambda: one.kinds()[-1:] == other.kinds()[-1:] == ["gone"])
        assert server_of(made[0], cluster) is not hanging
        await check_new_streams(made)
        hanging.resume()
        await until(lambda: not any(bus._closing for bus in made))


async def test_a_bus_without_servers_says_so_and_recovers_without_a_restart(server: NatsServer) -> None:
    async with buses(server.url, server.url) as made:
        one, other = Peer(made[0], "one"), Peer(made[1], "other")
        one.send(other, "joined")
        await until(lambda: other.kinds() == ["joined"])

        server.kill()

        await until(lambda: not any(bus.ready for bus in made))
        assert made[0].fault.startswith(f"no connection to NATS at {server.url}")
        assert made[0].is_alive(made[1].node)  # unknown, and so not taken for dead
        await until(lambda: one.kinds() == other.kinds()[1:] == ["gone"])
        server.start()
        await check_new_streams(made)
        assert all(len(bus.links.nodes) == 1 for bus in made)
        assert server.read("/connz")["num_connections"] == 2, "connections of before do not come back"


async def test_a_bus_closes_while_there_is_no_server(server: NatsServer) -> None:
    async with buses(server.url) as (bus,):
        server.kill()
        await until(lambda: bus._connection is None)
        await until(lambda: not bus._closing)


async def test_a_bus_is_ready_only_when_it_knows_the_others(server: NatsServer) -> None:
    async with buses(server.url) as (old,):
        new = new_bus(server.url)
        assert new.fault == "the bus has not been started"
        begun = time.monotonic()
        await new.start()
        await until(lambda: new.ready)

        assert time.monotonic() - begun >= SETTLE_SECONDS
        assert new.is_alive(old.node)
        assert not new.is_alive("unknown")
        await new.close()


async def test_messages_of_others_are_counted_and_change_nothing(server: NatsServer) -> None:
    async with buses(server.url) as (bus,):
        stranger = await nats.connect(server.url)
        await stranger.publish(f"execserver.relay.{bus.node}", b"\xc1 no packet")
        await stranger.publish("execserver.relay.beat", b"[]")
        await stranger.publish("execserver.relay.beat", b"\x91\xa1\xff")  # a text that is no UTF-8
        await stranger.flush()
        await until(lambda: bus.undecodable == 3)
        await stranger.close()
        assert bus.ready
        assert bus.links.nodes == frozenset()
