"""Two relays that share a store and a bus, with real sockets: their peers meet wherever they dialed.

The relays are two listeners of this process with parts of their own. The store answers a turn of the loop
later, and may be out of reach.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from execprotocol.relay import contract, frames
from execprotocol.relay.contract import ValidateRequest
from execprotocol.relay.keys import KeyPair
from execserver.relay.service.errors import Guard
from execserver.relay.service.registry_http import PublicUrls, RegistryHttp
from execserver.relay.service.rendezvous import Rendezvous
from execserver.relay.service.rendezvous_http import RendezvousHttp
from execserver.relay.service.token_file import TokenStore
from tests.support.registry_nodes import DistantStore, Fleet, Node
from tests.support.relay_wire import RawPeer, Wire
from tests.support.wire import PATIENCE

BOX = "box"


class Site:
    """One relay on a port."""

    def __init__(self, node: Node, tokens: TokenStore) -> None:
        loop = asyncio.get_running_loop()
        self.node = node
        self.tokens = tokens
        self.rendezvous = Rendezvous(node.bus, time.monotonic, loop.call_later)
        self.sockets = RendezvousHttp(node.registry, self.rendezvous, lambda: False)
        self.http = RegistryHttp(node.registry, tokens, PublicUrls("", "http", ""), lambda: False)
        self.url = ""

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        app = web.Application(middlewares=[Guard().middleware()])
        app.add_routes([*self.http.routes(""), *self.sockets.routes("")])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()

    async def check_tokens(self) -> None:
        """What the relay's process does every half second."""
        self.sockets.end(self.node.registry.revoked(self.tokens.ended(self.node.registry.token_ids())))
        await self.node.registry.settle()


class Pair:
    """Two relays, and a tenant's view of each: `one` and `two`."""

    def __init__(self, store: DistantStore, sites: tuple[Site, Site], wires: tuple[Wire, Wire]) -> None:
        self.store = store
        self.sites = sites
        self.one, self.two = wires


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    store = DistantStore()
    tokens = TokenStore(tmp_path / "state", create=True)
    fleet = Fleet(time.time, store, tokens.is_valid)
    sites = Site(fleet.node(), tokens), Site(fleet.node(), tokens)
    secrets = tokens.create("executor", [BOX])[1], tokens.create("client", [BOX])[1]
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        for site in sites:
            await stack.enter_async_context(site.served())
        one, two = [await stack.enter_async_context(Wire(site.url, *secrets)) for site in sites]
        yield Pair(store, sites, (one, two))


async def met(executor: RawPeer, harness: RawPeer, stream_id: str) -> None:
    """Send a frame each way."""
    await harness.send(frames.resume(stream_id))
    assert await executor.message() == frames.resume(stream_id)
    await executor.send(frames.data(stream_id, 0, b"hello"))
    assert await harness.message() == frames.data(stream_id, 0, b"hello")


async def answered(wire: Wire, action: str, token: str, body: dict[str, object]) -> tuple[int, str, str]:
    """Status, code and message of a refused request."""
    status, content = await wire.post(BOX, action, token, body)
    return status, contract.error_of(content)[0], json.loads(content)["error"]["message"]


async def test_an_executor_at_one_relay_and_harnesses_at_both_meet(pair: Pair) -> None:
    executor = await pair.one.executor(BOX)

    for number, wire in enumerate((pair.one, pair.two)):
        await met(executor, await wire.harness(BOX), f"stream {number}")


@pytest.mark.statement("R6", "R7")
async def test_urls_of_one_relay_are_dialed_at_the_other_once(pair: Pair) -> None:
    registered = await pair.one.register(BOX, KeyPair.generate())
    key = KeyPair.generate()
    executor = await pair.two.dial(registered.url.replace(pair.one.url[7:], pair.two.url[7:]))
    granted = await pair.one.connect(BOX, key)

    harness = await pair.two.dial(granted.url.replace(pair.one.url[7:], pair.two.url[7:]))

    await met(executor, harness, "a")
    assert await pair.one.refusal(granted.url) == (401, "unknown_route")
    asked = ValidateRequest(registered.registration_id, key.public, granted.authorization)
    assert await pair.two.is_valid(BOX, asked)
    assert not await pair.one.is_valid(BOX, asked)


@pytest.mark.statement("R21", "R24")
async def test_a_second_socket_of_a_registration_at_the_other_relay_replaces_the_first(pair: Pair) -> None:
    registered = await pair.one.register(BOX, KeyPair.generate())
    first = await pair.one.dial(registered.url)
    harness = await pair.two.harness(BOX)
    await met(first, harness, "old")

    second = await pair.two.dial(registered.url.replace(pair.one.url[7:], pair.two.url[7:]))

    assert await first.closed() == (1001, "replaced")
    assert await harness.closed() == (1013, "executor_gone")
    await met(second, await pair.one.harness(BOX), "new")


@pytest.mark.statement("R4")
async def test_a_new_registration_at_the_other_relay_replaces_the_older_socket(pair: Pair) -> None:
    key = KeyPair.generate()
    first = await pair.one.executor(BOX, key)

    second = await pair.two.executor(BOX, key)

    assert await first.closed() == (1008, "replaced")
    await met(second, await pair.one.harness(BOX), "a")


async def test_the_end_of_an_executor_at_one_relay_is_known_at_the_other(pair: Pair) -> None:
    executor = await pair.one.executor(BOX)
    harness = await pair.two.harness(BOX)

    executor.abort()

    assert await harness.closed() == (1013, "executor_gone")
    asked = contract.ConnectRequest(KeyPair.generate().public).to_json()
    while (await pair.two.post(BOX, "connect", pair.two.client_token, asked))[0] != 409:
        await asyncio.sleep(0.01)


async def test_a_revoked_token_ends_its_sockets_at_both_relays(pair: Pair) -> None:
    executor = await pair.one.executor(BOX)
    harness = await pair.two.harness(BOX)
    ticket = (await pair.two.connect(BOX, KeyPair.generate())).url
    tokens = pair.sites[0].tokens

    for token in tokens.tokens:
        tokens.revoke(token.id)
    await asyncio.gather(*(site.check_tokens() for site in pair.sites))

    assert await executor.closed() == (1008, "token_revoked")
    assert (await harness.closed())[0] in (1008, 1013)  # its own end, or that of its executor
    assert (await pair.two.refusal(ticket))[0] == 401
    assert [site.node.registry.environments() for site in pair.sites] == [[], []]


@pytest.mark.statement("R17")
async def test_a_store_out_of_reach_is_named_by_answers_after_which_peers_try_again(pair: Pair) -> None:
    registered = await pair.one.register(BOX, KeyPair.generate())
    executor = await pair.one.dial(registered.url)
    harness = await pair.one.harness(BOX)
    granted = await pair.one.connect(BOX, KeyPair.generate())
    pair.store.fault = "the cluster has no quorum"
    key = KeyPair.generate().public
    asked = ValidateRequest(registered.registration_id, key, granted.authorization)
    one, fault = pair.one, pair.store.fault

    requests = [
        ("register", one.executor_token, contract.RegisterRequest(key).to_json()),
        ("connect", one.client_token, contract.ConnectRequest(key).to_json()),
        ("validate", one.executor_token, asked.to_json()),
    ]
    refusals = [await answered(one, *request) for request in requests]

    assert refusals == [
        (502, contract.AUTHENTICATION_UNAVAILABLE, fault),
        (409, contract.ENVIRONMENT_OFFLINE, fault),
        (503, "unavailable", fault),
    ]
    for url in (registered.url, granted.url):
        assert await one.refusal(url) == (503, "registry_unavailable")
    await met(executor, harness, "a")  # what is connected stays
    pair.store.fault = ""
    await met(executor, await one.dial(granted.url), "b")


@pytest.mark.statement("R17")
async def test_an_executor_whose_upgrade_is_answered_is_known_to_every_relay(pair: Pair) -> None:
    registered = await pair.one.register(BOX, KeyPair.generate())
    pair.store.answer = asyncio.Event()
    dialling = asyncio.ensure_future(pair.one.dial(registered.url))
    async with asyncio.timeout(10):
        while not pair.sites[1].node.registry.online:
            await asyncio.sleep(0.01)

    harness = await pair.two.harness(BOX)  # before the upgrade is answered
    await harness.send(frames.resume("early"))
    await asyncio.sleep(0.05)
    assert not dialling.done()
    pair.store.answer.set()

    executor = await dialling
    assert await executor.message() == frames.resume("early")
    await met(executor, await pair.one.harness(BOX), "a")


@pytest.mark.statement("R17")
async def test_an_executor_whose_socket_cannot_be_recorded_is_told_to_try_again(pair: Pair) -> None:
    registered = await pair.one.register(BOX, KeyPair.generate())
    pair.store.loses_answers = True

    assert await pair.one.refusal(registered.url) == (503, "registry_unavailable")

    pair.store.loses_answers = False
    while pair.sites[1].node.registry.online:
        await asyncio.sleep(0.01)
    await met(await pair.one.dial(registered.url), await pair.two.harness(BOX), "a")
