"""What a relay owes its peers: whom it lets in, which bytes it hands on, and who suffers from whom.

A real relay, and peers that send and get single frames. Of those that need an executor's own judgment, our
real one. `docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
from aiohttp import web

from execclient import connect
from execprotocol.relay import contract, frames
from execprotocol.relay.contract import ConnectAnswer, ValidateRequest
from execprotocol.relay.frames import MAX_FRAME_BYTES, PROTOCOL_ERROR
from execprotocol.relay.keys import KeyPair
from execprotocol.relay.noise import Binding, Initiator, NoiseTransport
from execserver.relay.service.bus import MemoryBus
from execserver.relay.service.errors import Guard
from execserver.relay.service.memory_store import MemoryStore
from execserver.relay.service.queues import PEER_CLOSED, SLOW_CONSUMER, STREAM_ID_IN_USE, TOO_MANY_STREAMS
from execserver.relay.service.registry import RelayRegistry
from execserver.relay.service.rendezvous import Rendezvous
from execserver.relay.service.rendezvous_http import RendezvousHttp
from tests.support.noise import noise_watched
from tests.support.relay_service import RelayService
from tests.support.relay_wire import RawPeer, SocketEnded, Wire
from tests.support.wire import Server

MAX_STREAMS = 128
PAUSE_FAILURES = 8
"""Refused handshakes after which an executor looks at none for a while."""

FULL_QUEUE_BYTES = 80 << 20
"""What a peer may leave with the relay."""

PLACES = [f"place-{number}" for number in range(40)]
_unused = itertools.count()


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayService]:
    with RelayService(tmp_path_factory.mktemp("relay") / "state") as relay:
        yield relay


@pytest.fixture(scope="module")
def tokens(relay: RelayService) -> tuple[str, str]:
    """Of executors and of clients, for all places."""
    return relay.token("executor", *PLACES), relay.token("client", *PLACES)


@pytest.fixture
async def wire(relay: RelayService, tokens: tuple[str, str]) -> AsyncIterator[Wire]:
    async with Wire(relay.url, *tokens) as wire:
        yield wire


@pytest.fixture
def place() -> str:
    """An environment of the test's own."""
    return PLACES[next(_unused)]


async def met(executor: RawPeer, harness: RawPeer, stream_id: str) -> None:
    """Have a harness open a stream, and the executor see it."""
    await harness.send(frames.resume(stream_id))
    assert await executor.message() == frames.resume(stream_id)


# -- sockets of executors


@pytest.mark.statement("R21")
async def test_a_second_socket_of_a_registration_replaces_the_first(wire: Wire, place: str) -> None:
    url = (await wire.register(place, KeyPair.generate())).url
    first = await wire.dial(url)
    old_harness = await wire.harness(place)
    await met(first, old_harness, "old")

    second = await wire.dial(url)

    assert await first.closed() == (1001, "replaced")
    assert await old_harness.closed() == (1013, "executor_gone")
    await met(second, await wire.harness(place), "new")


@pytest.mark.statement("R4")
async def test_the_same_key_registers_anew_and_keeps_its_old_socket_until_it_dials(
    wire: Wire, place: str
) -> None:
    key = KeyPair.generate()
    before = await wire.register(place, key)
    first = await wire.dial(before.url)

    after = await wire.register(place, key)

    assert after.registration_id != before.registration_id
    await met(first, await wire.harness(place), "still there")
    assert await wire.refusal(before.url) == (410, "unknown_route")
    second = await wire.dial(after.url)
    assert (await first.closed())[0] == 1008
    await met(second, await wire.harness(place), "here now")


@pytest.mark.statement("R4")
async def test_another_key_is_told_of_the_conflict_and_does_not_disturb_the_incumbent(
    wire: Wire, place: str
) -> None:
    incumbent = await wire.executor(place)
    harness = await wire.harness(place)
    await met(incumbent, harness, "a")

    asked = contract.RegisterRequest(KeyPair.generate().public).to_json()
    status, body = await wire.post(place, "register", wire.executor_token, asked)

    assert (status, contract.error_of(body)[0]) == (503, contract.REGISTRATION_CONFLICT)
    await harness.send(frames.data("a", 0, b"on"))
    assert await incumbent.message() == frames.data("a", 0, b"on")


@pytest.mark.statement("R24")
@pytest.mark.parametrize("how", ["closes", "breaks"])
async def test_the_harnesses_of_an_executor_that_is_gone_are_closed_with_1013(
    wire: Wire, place: str, how: str
) -> None:
    executor = await wire.executor(place)
    harnesses = [await wire.harness(place) for _ in range(3)]
    for number, harness in enumerate(harnesses[:2]):  # the third has not used its socket yet
        await met(executor, harness, f"stream {number}")

    if how == "closes":
        await executor.close()
    else:
        executor.abort()

    assert {await harness.closed() for harness in harnesses} == {(1013, "executor_gone")}
    asked = contract.ConnectRequest(KeyPair.generate().public).to_json()
    status, body = await wire.post(place, "connect", wire.client_token, asked)
    assert (status, contract.error_of(body)[0]) == (409, contract.ENVIRONMENT_OFFLINE)


# -- streams


@pytest.mark.statement("R22")
async def test_a_stream_belongs_to_the_first_harness_that_used_it(wire: Wire, place: str) -> None:
    executor = await wire.executor(place)
    owner, thief = await wire.harness(place), await wire.harness(place)
    await met(executor, owner, "mine")

    await thief.send(
        frames.resume("mine"),
        frames.handshake("mine", b"hello"),
        frames.data("mine", 0, b"x"),
        frames.reset("mine", "it is mine now"),
        frames.data("mine", 1, b"x"),
    )

    # A reset is not answered, or two of them would answer each other for ever.
    for _ in range(4):
        assert await thief.message() == frames.reset("mine", STREAM_ID_IN_USE)
    await met(executor, thief, "the thief's own")  # and nothing of "mine" came before it
    await executor.send(frames.data("mine", 0, b"to the owner"))
    assert await owner.message() == frames.data("mine", 0, b"to the owner")
    await owner.send(frames.data("mine", 0, b"back"))
    assert await executor.message() == frames.data("mine", 0, b"back")


@pytest.mark.statement("R25")
@pytest.mark.parametrize("how", ["closes", "breaks"])
async def test_an_executor_gets_a_reset_for_each_stream_of_a_harness_that_is_gone(
    wire: Wire, place: str, how: str
) -> None:
    executor = await wire.executor(place)
    gone, other = await wire.harness(place), await wire.harness(place)
    for stream_id in ("a", "b", "c"):
        await met(executor, gone, stream_id)
    await met(executor, other, "d")
    await gone.send(frames.reset("b", "done"))
    assert await executor.message() == frames.reset("b", "done")

    if how == "closes":
        await gone.close()
    else:
        gone.abort()

    resets = [await executor.message() for _ in range(2)]
    assert sorted(resets) == [frames.reset("a", PEER_CLOSED), frames.reset("c", PEER_CLOSED)]
    await other.send(frames.data("d", 0, b"on"))
    assert await executor.message() == frames.data("d", 0, b"on")


async def test_an_id_is_free_again_after_a_reset_by_either_side(wire: Wire, place: str) -> None:
    executor = await wire.executor(place)
    first, second = await wire.harness(place), await wire.harness(place)
    await met(executor, first, "a")
    await executor.send(frames.reset("a", "enough"))
    assert await first.message() == frames.reset("a", "enough")
    await met(executor, second, "a")
    await second.send(frames.reset("a", "enough"))
    assert await executor.message() == frames.reset("a", "enough")
    await met(executor, first, "a")


@pytest.mark.statement("R28")
async def test_the_129th_stream_is_reset_without_troubling_the_executor(wire: Wire, place: str) -> None:
    executor = await wire.executor(place)
    one, two = await wire.harness(place), await wire.harness(place)
    for number in range(MAX_STREAMS):
        await met(executor, (one, two)[number % 2], f"{number}")

    await two.send(frames.resume("128"), frames.handshake("128", b"hello"))

    assert await two.message() == frames.reset("128", TOO_MANY_STREAMS)
    await one.send(frames.reset("0", "done"))
    assert await executor.message() == frames.reset("0", "done")  # and nothing of the 129th
    await met(executor, two, "129")


# -- bytes

ODD_FRAMES = [
    # What a later version adds: texts, numbers, fixed sizes, groups of members with high numbers.
    frames.data("s", 0, b"payload") + b"\x5a\x05trace" + b"\xa0\x06\x01" + b"\xfa\xff\xff\xff\x0f\x02hi",
    frames.data("s", 1, b"payload") + b"\x5d\x01\x02\x03\x04" + b"\x61\x01\x02\x03\x04\x05\x06\x07\x08",
    # Acknowledgements are not used yet.
    b"\x08\x01\x12\x01s\x18\x07\x20\xff\xff\xff\xff\x0f" + frames.data("s", 2, b"payload")[5:],
    b"\x08\x01\x12\x01s\x18\x09\x32\x00",
    b"\x08\x01\x12\x01s\x4a\x00",
    # The same said in another way: members backwards, numbers in more bytes than they need, one said twice.
    frames.data("s", 3, b"payload")[5:] + b"\x12\x01s" + b"\x08\x81\x80\x00",
    b"\x08\x01\x12\x82\x00no\x12\x01s" + frames.data("s", 4, b"payload")[5:],
    # Positions, and unknown members within known ones.
    frames.resume("s", 70_000),
    b"\x08\x01\x12\x01s\x3a\x06\x08\x05\x5a\x02no",
    frames.handshake("s", b"hello"),
    frames.data("s", 2**32 - 1, bytes(range(256)) * 200),
]


@pytest.mark.statement("R20")
async def test_frames_are_handed_on_as_the_very_bytes_that_came(wire: Wire, place: str) -> None:
    executor = await wire.executor(place)
    harness = await wire.harness(place)
    await met(executor, harness, "s")

    await harness.send(*ODD_FRAMES)
    assert [await executor.message() for _ in ODD_FRAMES] == ODD_FRAMES

    await executor.send(*ODD_FRAMES)
    assert [await harness.message() for _ in ODD_FRAMES] == ODD_FRAMES


async def test_frames_are_not_reordered(wire: Wire, place: str) -> None:
    chance = random.Random(43)
    executor = await wire.executor(place)
    harnesses = {name: await wire.harness(place) for name in "ab"}
    for name, harness in harnesses.items():
        for number in range(3):
            await met(executor, harness, f"{name}{number}")
    sizes = (1, 100, 5_000, 61_456)
    rows = {
        name: [
            frames.data(f"{name}{chance.randrange(3)}", seq, bytes(chance.choice(sizes)))
            for seq in range(400)
        ]
        for name in harnesses
    }
    mixed = [frame for pair in zip(*rows.values(), strict=True) for frame in pair]

    async def came(peer: RawPeer, count: int) -> list[bytes]:
        return [await peer.message() for _ in range(count)]

    sendings = [asyncio.create_task(harnesses[name].send(*row)) for name, row in rows.items()]
    up = await came(executor, len(mixed))
    await asyncio.gather(*sendings)
    sending = asyncio.create_task(executor.send(*mixed))
    down = await asyncio.gather(*(came(harnesses[name], len(row)) for name, row in rows.items()))
    await sending

    for name, row in rows.items():  # between two sockets there is no order
        assert [frame for frame in up if frames.decode(frame).stream_id[0] == name] == row
    assert down == list(rows.values())


@pytest.mark.statement("R23")
async def test_nothing_is_kept_for_a_harness_that_is_not_there_yet(wire: Wire, place: str) -> None:
    executor = await wire.executor(place)
    harness = await wire.harness(place)
    await met(executor, harness, "other")

    await executor.send(frames.data("later", 0, b"too early"), frames.data("other", 0, b"in time"))
    assert await harness.message() == frames.data("other", 0, b"in time")
    await met(executor, harness, "later")
    await executor.send(frames.data("later", 1, b"in time"))

    assert await harness.message() == frames.data("later", 1, b"in time")


@pytest.mark.statement("R23")
async def test_nothing_is_kept_for_an_executor_that_is_away(wire: Wire, place: str) -> None:
    url = (await wire.register(place, KeyPair.generate())).url
    executor = await wire.dial(url)
    harness = await wire.harness(place)
    await met(executor, harness, "a")

    executor.abort()
    with contextlib.suppress(ConnectionError):  # it may hear of it meanwhile
        for seq in range(100):
            await harness.send(frames.data("a", seq, b"to nobody"))
    assert await harness.closed() == (1013, "executor_gone")

    executor = await wire.dial(url)
    await met(executor, await wire.harness(place), "b")  # its first frame


# -- what is no frame


@pytest.mark.statement("R26")
async def test_text_and_undecodable_messages_are_dropped_and_end_no_socket(
    relay: RelayService, wire: Wire, place: str
) -> None:
    executor = await wire.executor(place)
    harness = await wire.harness(place)
    await met(executor, harness, "a")
    before = relay.metrics()
    junk = [
        b"",
        b"\xff" * 40,
        b"\x08\x02" + frames.data("a", 0, b"x")[2:],  # another version
        b"\x08\x01\x12\x01a",  # nothing in it
        frames.data("", 0, b"x"),
        frames.data("a" * 129, 0, b"x"),
        frames.data(" a", 0, b"x"),
        frames.data("a", 0, b""),
        b"\x08\x01\x12\x01a\x2a\x07\x10\x01\x18\x02\x22\x01x",  # the second of two segments
        frames.data("a", 0, b"x" * 100)[:-1],
        random.Random(44).randbytes(1000),
    ]

    for peer, other in ((harness, executor), (executor, harness)):
        await peer.send_text('{"id": 1}')
        await peer.send(*junk)
        await peer.send_text("again")
        await peer.send(frames.data("a", 7, b"a frame"))
        assert await other.message() == frames.data("a", 7, b"a frame")

    after = relay.metrics()
    dropped = 'execserver_relay_dropped_frames_total{reason="%s"}'
    assert after[dropped % "text"] - before[dropped % "text"] == 4
    assert after[dropped % "undecodable"] - before[dropped % "undecodable"] == 2 * len(junk)


@pytest.mark.statement("R26")
@pytest.mark.parametrize("role", ["executor", "harness"])
async def test_a_message_one_byte_too_long_ends_its_own_socket_only(
    wire: Wire, place: str, role: str
) -> None:
    executor = await wire.executor(place)
    harness, other = await wire.harness(place), await wire.harness(place)
    await met(executor, harness, "a")
    await met(executor, other, "b")
    head = len(frames.data("a", 0, b"x" * MAX_FRAME_BYTES)) - MAX_FRAME_BYTES
    longest = frames.data("a", 0, b"x" * (MAX_FRAME_BYTES - head))
    assert len(longest) == MAX_FRAME_BYTES
    bad, good = (executor, harness) if role == "executor" else (harness, executor)

    await bad.send(longest)
    assert await good.message() == longest
    await bad.send(frames.data("a", 0, b"x" * (MAX_FRAME_BYTES - head + 1)))

    assert (await bad.closed())[0] == 1009
    if role == "executor":
        assert {await harness.closed(), await other.closed()} == {(1013, "executor_gone")}
    else:
        assert await executor.message() == frames.reset("a", PEER_CLOSED)
        await other.send(frames.data("b", 0, b"on"))
        assert await executor.message() == frames.data("b", 0, b"on")


# -- tickets and authorizations


@pytest.mark.statement("R6")
async def test_a_ticket_of_a_harness_opens_one_socket(wire: Wire, place: str) -> None:
    executor = await wire.executor(place)
    url = (await wire.connect(place, KeyPair.generate())).url
    harness = await wire.dial(url)

    assert await wire.refusal(url) == (401, "unknown_route")

    await met(executor, harness, "a")


async def test_tickets_open_nothing_else_than_what_they_are_for(wire: Wire, place: str) -> None:
    other_place = PLACES[next(_unused)]
    executor_url = (await wire.register(place, KeyPair.generate())).url
    executor = await wire.dial(executor_url)
    harness_url = (await wire.connect(place, KeyPair.generate())).url
    await wire.executor(other_place)

    assert await wire.refusal(executor_url.replace("/executor?", "/harness?")) == (401, "unknown_route")
    assert await wire.refusal(harness_url.replace("/harness?", "/executor?")) == (410, "unknown_route")
    for url in (executor_url, harness_url):
        status, _ = await wire.refusal(url.replace(place, other_place))
        assert status in (401, 410)
    for query in ("", "?ticket=", "?ticket=x", "?ticket=x&ticket=y"):
        status, _ = await wire.refusal(executor_url.partition("?")[0] + query)
        assert status in (400, 410)

    await met(executor, await wire.dial(harness_url), "a")  # it is not used up


@pytest.mark.statement("R29")
async def test_a_ticket_leads_nowhere_once_its_executor_is_gone(wire: Wire, place: str) -> None:
    executor = await wire.executor(place)
    harness = await wire.harness(place)
    url = (await wire.connect(place, KeyPair.generate())).url
    executor.abort()
    await harness.closed()

    assert await wire.refusal(url) == (410, "route_unavailable")


@pytest.mark.statement("R6", "R29")
async def test_what_was_not_used_in_time_is_refused_as_expired(place: str) -> None:
    # The relay's parts with a clock of the test's own, on a port.
    now = time.monotonic()
    bus, loop = MemoryBus(), asyncio.get_running_loop()
    registry = RelayRegistry(MemoryStore(), bus, lambda: now, lambda _token: True)
    http = RendezvousHttp(registry, Rendezvous(bus, time.monotonic, loop.call_later), lambda: False)
    app = web.Application(middlewares=[Guard().middleware()])
    app.add_routes(http.routes(""))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"ws://127.0.0.1:{runner.addresses[0][1]}/cloud/environment/{place}"
    try:
        async with Wire("", "", "") as wire:
            registered = await registry.register(place, KeyPair.generate().public, "token")
            executor_url = f"{base}/executor?ticket={registered.ticket}"
            executor = await wire.dial(executor_url)
            introductions = [
                await registry.connect(place, KeyPair.generate().public, "token") for _ in range(2)
            ]
            in_time, late = [f"{base}/harness?ticket={each.ticket}" for each in introductions]

            now += 59
            await (await wire.dial(in_time)).close()
            now += 2
            assert await wire.refusal(late) == (410, "expired")
            assert await wire.refusal(late) == (401, "unknown_route")
            now += 3600
            assert await wire.refusal(executor_url) == (410, "expired")
            await executor.close()
    finally:
        await runner.cleanup()


@pytest.mark.statement("R7")
async def test_an_authorization_holds_once_and_for_its_key_and_registration(wire: Wire, place: str) -> None:
    key = KeyPair.generate()
    registration = await wire.register(place, key)
    await wire.dial(registration.url)
    harness = KeyPair.generate()
    answer = await wire.connect(place, harness)
    good = ValidateRequest(registration.registration_id, harness.public, answer.authorization)
    other = KeyPair.generate().public

    assert not await wire.is_valid(place, ValidateRequest(good.registration_id, other, good.authorization))
    assert not await wire.is_valid(place, ValidateRequest("another", good.harness_key, good.authorization))
    assert not await wire.is_valid(place, ValidateRequest(good.registration_id, good.harness_key, "another"))
    assert await wire.is_valid(place, good)
    assert not await wire.is_valid(place, good)


# -- who suffers from whom


@pytest.mark.statement("R27")
async def test_a_harness_that_never_reads_is_cut_and_its_neighbor_keeps_its_latency(
    relay: RelayService, wire: Wire, place: str
) -> None:
    executor = await wire.executor(place)
    slow, quick = await wire.harness(place), await wire.harness(place)
    await met(executor, slow, "slow")
    await met(executor, quick, "quick")
    flood = frames.data("slow", 0, bytes(200 << 10))
    sent = 0
    told: asyncio.Event = asyncio.Event()

    async def serve() -> None:
        """Answer the quick one."""
        while True:
            message = await executor.message()
            if message == frames.reset("slow", PEER_CLOSED):
                told.set()
            else:
                await executor.send(message)

    async def push() -> None:
        nonlocal sent
        while not told.is_set():
            await executor.send(flood)
            sent += len(flood)
            await asyncio.sleep(0.0015)  # its own socket's queue is not what is measured

    taken = []
    with noise_watched() as noise:
        serving_it, pushing = asyncio.create_task(serve()), asyncio.create_task(push())
        while not told.is_set():
            began = time.perf_counter()
            await quick.send(frames.data("quick", 0, b"are you there?"))
            await quick.message()
            taken.append(time.perf_counter() - began)
            await asyncio.sleep(0.002)
        await pushing
        serving_it.cancel()
        await asyncio.gather(serving_it, return_exceptions=True)

    code, _ = await slow.closed()
    assert code in (1006, 1008)  # behind so much it need not see a close frame
    assert FULL_QUEUE_BYTES < sent < FULL_QUEUE_BYTES + (40 << 20)  # and what the kernel took
    assert relay.metrics()[f'execserver_relay_closed_sockets_total{{reason="{SLOW_CONSUMER}"}}'] == 1
    taken.sort()
    assert taken[len(taken) // 2] < 0.010 + noise.allowance
    assert taken[-1] < 0.150 + noise.allowance, taken[-5:]


@pytest.mark.statement("R27")
async def test_an_executor_that_never_reads_stops_its_own_harness_and_no_other_peer(
    relay: RelayService, wire: Wire, place: str
) -> None:
    other_place = PLACES[next(_unused)]
    slow, quick = await wire.executor(place), await wire.executor(other_place)
    flooding, asking = await wire.harness(place), await wire.harness(other_place)
    await met(slow, flooding, "flood")
    await met(quick, asking, "ask")
    row = [frames.data("flood", seq, bytes(200 << 10)) for seq in range(200)]
    flood = asyncio.create_task(flooding.send(*row))
    taken = []
    with noise_watched() as noise:
        for seq in range(300):
            began = time.perf_counter()
            await asking.send(frames.data("ask", seq, b"are you there?"))
            await quick.send(await quick.message())
            await asking.message()
            taken.append(time.perf_counter() - began)
            await asyncio.sleep(0.001)

    assert not flood.done()
    assert relay.metrics()['execserver_relay_largest_queue_bytes{to="executor"}'] < 3 << 20
    assert max(taken) < 0.150 + noise.allowance
    assert [await slow.message() for _ in row] == row  # it was held back, and nothing is lost
    await flood


# -- our executor behind it


class Opened:
    """A harness with a stream at our executor."""

    def __init__(self, peer: RawPeer, answer: ConnectAnswer, key: KeyPair, stream_id: str) -> None:
        self.peer = peer
        self.stream_id = stream_id
        self._initiator = Initiator(
            key, answer.executor_key, Binding(answer.environment_id, answer.registration_id, stream_id)
        )
        self.first = self._initiator.write_first(answer.authorization.encode())

    async def knock(self) -> frames.Frame:
        """Send the handshake; what the executor says."""
        await self.peer.send(frames.resume(self.stream_id), frames.handshake(self.stream_id, self.first))
        return await self.peer.frame()

    async def open(self) -> NoiseTransport:
        """A handshake that succeeds."""
        frame = await self.knock()
        assert frame.kind == "handshake", frame
        payload, transport = self._initiator.read_second(bytes(frame.payload))
        assert payload == b""
        return transport


async def opened(wire: Wire, place: str, stream_id: str, key: KeyPair | None = None) -> Opened:
    key = key or KeyPair.generate()
    answer = await wire.connect(place, key)
    return Opened(await wire.dial(answer.url), answer, key, stream_id)


@contextmanager
def serving(relay: RelayService, token: str, environment: dict[str, str], folder: Path) -> Iterator[str]:
    """A place that a real daemon serves."""
    place = PLACES[next(_unused)]
    variables = {"EXECSERVER_REMOTE_TOKEN": token, "XDG_STATE_HOME": str(folder)}
    server = Server(
        None, "--remote", relay.url, "--environment-id", place, env={**environment, **variables}, cwd=folder
    )
    try:
        relay.wait_online(place)
        yield place
    finally:
        assert server.stop() == 0


@pytest.fixture(scope="module")
def ours(
    relay: RelayService,
    tokens: tuple[str, str],
    environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A place with a real daemon, for tests that leave it as it was."""
    with serving(relay, tokens[0], environment, tmp_path_factory.mktemp("executor")) as place:
        yield place


@pytest.mark.statement("R44")
async def test_our_executor_looks_at_no_handshake_for_a_while_after_eight_bad_ones(
    relay: RelayService, wire: Wire, environment: dict[str, str], tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        own = stack.enter_context(serving(relay, wire.executor_token, environment, tmp_path))
        executor = await stack.enter_async_context(connect(relay.client_url(own), token=wire.client_token))
        stranger = await wire.harness(own)
        for number in range(PAUSE_FAILURES):
            await stranger.send(
                frames.resume(f"bad {number}"), frames.handshake(f"bad {number}", bytes(4000))
            )
            assert await stranger.message() == frames.reset(f"bad {number}", PROTOCOL_ERROR)
        asked = relay.metrics()

        good = await opened(wire, own, "good")
        assert (await good.knock()) == frames.decode(frames.reset("good", PROTOCOL_ERROR))

        validations = "execserver_relay_validations_total"
        assert {name: value for name, value in relay.metrics().items() if name.startswith(validations)} == {
            name: value for name, value in asked.items() if name.startswith(validations)
        }
        assert (await executor.run(["echo", "still", "here"])).text == "still here\n"


async def test_our_executor_refuses_replayed_and_foreign_handshakes(wire: Wire, ours: str) -> None:
    first = await opened(wire, ours, "first")
    await first.open()
    reset = frames.decode(frames.reset("again", PROTOCOL_ERROR))

    # The very bytes again, under another name.
    spy = await wire.harness(ours)
    await spy.send(frames.resume("again"), frames.handshake("again", first.first))
    assert await spy.frame() == reset

    # An authorization again, in a handshake that holds.
    key = KeyPair.generate()
    answer = await wire.connect(ours, key)
    once = Opened(await wire.dial(answer.url), answer, key, "once")
    await once.open()
    assert await Opened(spy, answer, key, "again").knock() == reset

    # Another client's authorization, in a valid handshake.
    fresh = await wire.connect(ours, KeyPair.generate())
    assert await Opened(spy, fresh, KeyPair.generate(), "again").knock() == reset

    # A handshake for another executor.
    answer = await wire.connect(ours, key)
    elsewhere = ConnectAnswer(
        ours, answer.url, answer.registration_id, KeyPair.generate().public, answer.authorization
    )
    assert await Opened(spy, elsewhere, key, "again").knock() == reset

    # A handshake for another registration.
    elsewhere = ConnectAnswer(ours, answer.url, "another", answer.executor_key, answer.authorization)
    assert await Opened(spy, elsewhere, key, "again").knock() == reset

    # And the one that is right.
    await Opened(spy, answer, key, "again").open()


@pytest.mark.statement("R40")
async def test_a_stream_that_breaks_at_our_executor_ends_alone(wire: Wire, ours: str) -> None:
    peers = [await opened(wire, ours, name) for name in ("good", "changed", "greeted again")]
    good, changed, again = peers
    transport, *_ = [await peer.open() for peer in peers]

    await changed.peer.send(frames.data("changed", 0, bytes(100)))
    assert await changed.peer.frame() == frames.decode(frames.reset("changed", PROTOCOL_ERROR))
    # Another handshake ends a stream even if it would open one.
    key = KeyPair.generate()
    right = Opened(again.peer, await wire.connect(ours, key), key, "greeted again")
    assert await right.knock() == frames.decode(frames.reset("greeted again", PROTOCOL_ERROR))
    await changed.peer.send(frames.data("never opened", 0, bytes(100)))
    assert await changed.peer.frame() == frames.decode(frames.reset("never opened", PROTOCOL_ERROR))

    asked = json.dumps({"id": 1, "method": "initialize", "params": {"clientName": "test"}}).encode()
    record = transport.seal(len(asked).to_bytes(4) + asked)
    await good.peer.send(frames.data("good", 0, record))
    answer = transport.open(bytes((await good.peer.frame()).payload))
    assert json.loads(answer[4:])["id"] == 1


# -- a relay that is started anew


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
async def test_a_relay_that_is_started_anew_under_load_knows_nothing_and_serves_on(
    tmp_path: Path, how: str
) -> None:
    with await asyncio.to_thread(RelayService, tmp_path / "state") as relay:
        make = [asyncio.to_thread(relay.token, role, "box") for role in ("executor", "client")]
        async with Wire(relay.url, *[await each for each in make]) as wire:
            key = KeyPair.generate()
            url = (await wire.register("box", key)).url
            executor, harness = await wire.dial(url), await wire.harness("box")
            unused = (await wire.connect("box", key)).url
            await met(executor, harness, "a")

            moved = asyncio.Event()

            async def load(peer: RawPeer) -> tuple[int, str]:
                """Keep as much on the way as leaves its queue with the relay below what is full."""
                frame = frames.data("a", 0, bytes(50_000))
                try:
                    await peer.send(*[frame] * 10)
                    for number in itertools.count():
                        await peer.message()
                        await peer.send(frame)
                        if number == 50:
                            moved.set()
                except SocketEnded as ended:
                    return ended.code, ended.reason
                except ConnectionError:  # it ended while this one sent
                    return await peer.closed()
                raise AssertionError("it never ends")

            loads = [asyncio.create_task(load(peer)) for peer in (executor, harness)]
            await moved.wait()
            began = time.monotonic()
            if how == "SIGTERM":
                assert await asyncio.to_thread(relay.stop) == 0
                assert time.monotonic() - began < 6.0
            else:
                await asyncio.to_thread(relay.kill)
            ends = await asyncio.gather(*loads)
            assert ends == [(1012, "draining") if how == "SIGTERM" else (1006, "")] * 2

            await asyncio.to_thread(relay.start)
            assert relay.url == wire.url
            assert await wire.refusal(unused) == (401, "unknown_route")
            assert await wire.refusal(url) == (410, "unknown_route")
            executor, harness = await wire.executor("box", key), await wire.harness("box")
            await met(executor, harness, "a")
            status, *ends = await asyncio.gather(
                asyncio.to_thread(relay.stop), executor.closed(), harness.closed()
            )
            assert (status, ends) == (0, [(1012, "draining")] * 2)
