"""Two tenants of one relay, and of a fleet of three with NATS between them: nothing of the one ever comes to
the other, also when the other asks for it.

Each tenant has a real daemon and a real client. All four reach the relay through recorders, so that what is
judged is every byte that the relay sent them. In front of a fleet the recorders are load balancers: every
connection goes to the next relay. What passes NATS is recorded as well.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple

import nats
import pytest
from nats.aio.msg import Msg

from execclient import Executor, connect
from execprotocol.relay import contract, frames
from execprotocol.relay.contract import ValidateRequest
from execprotocol.relay.frames import PROTOCOL_ERROR
from execprotocol.relay.keys import KeyPair
from tests.support.nats_servers import NatsServers
from tests.support.relay_proxy import Connection, Proxy
from tests.support.relay_service import RelayService
from tests.support.relay_wire import Wire
from tests.support.wire import Server

NEEDLE_BYTES = 32

OWN = b"what a tenant sends to itself, long enough to be found nowhere by chance"
"""Of a sealed record: enough not to be met by chance."""

MARKER = b"marked by the other tenant"


class Tenant:
    """One tenant: an environment with a daemon, a client, and what both were told."""

    def __init__(self, name: str, environment: str, proxies: Sequence[Proxy], wire: Wire) -> None:
        self.name = name
        self.environment = environment
        self.wire = wire
        """For what this tenant's client does by hand; recorded as well."""
        self.executor: Executor
        self._proxies = proxies

    @property
    def connections(self) -> list[Connection]:
        """All that were ever open."""
        return [each for proxy in self._proxies for each in proxy.connections]

    @property
    def got(self) -> bytes:
        """All that the relay ever sent."""
        return b"\0".join(bytes(each.got) for each in self.connections)

    def frames(self) -> list[frames.Frame]:
        """All frames that the relay ever sent."""
        found = (_messages(bytes(each.got)) for each in self.connections if each.is_socket)
        return [frames.decode(message) for messages in found for message in messages]

    def received(self) -> list[bytes | list[bytes]]:
        """What came on each connection, without the pings of sockets."""
        found = ((each.is_socket, bytes(each.got)) for each in self.connections)
        return [list(_messages(got)) if is_socket else got for is_socket, got in found]

    def stream_ids(self) -> set[str]:
        """Of all streams."""
        return {frame.stream_id for frame in self.frames()}

    def records(self) -> list[bytes]:
        """The beginnings of everything sealed."""
        kinds = ("data", "handshake")
        return [bytes(frame.payload)[:NEEDLE_BYTES] for frame in self.frames() if frame.kind in kinds]

    def answers(self, member: str) -> list[str]:
        """What the registry ever said under a name."""
        return [value.decode() for value in re.findall(rb'"%s": "([^"]*)"' % member.encode(), self.got)]

    def tickets(self) -> list[str]:
        """All tickets that were handed out."""
        return [url.partition("ticket=")[2] for url in self.answers("url")]

    def secrets(self) -> list[bytes]:
        """Everything that is this tenant's alone."""
        texts = {
            self.environment,
            *self.stream_ids(),
            *self.tickets(),
            *self.answers("executor_registration_id"),
            *self.answers("harness_key_authorization"),
            *self.answers("x25519_public_key"),
        }
        return [text.encode() for text in texts] + self.records()


def _messages(got: bytes) -> Iterator[bytes]:
    """The binary messages that a relay sent on a socket; its frames are not masked and in one piece."""
    place = got.index(b"\r\n\r\n") + 4
    while place < len(got):
        opcode, size = got[place] & 0xF, got[place + 1]
        place += 2
        if size >= 126:
            width = 2 if size == 126 else 8
            size = int.from_bytes(got[place : place + width])
            place += width
        if opcode == 2:
            yield got[place : place + size]
        place += size


class Landlord(NamedTuple):
    """What the tenants share."""

    relays: list[RelayService]
    crossed: list[bytes]
    """Everything that passed NATS: subjects, headers and contents."""
    stored: Path
    """What the NATS server keeps in files."""


@asynccontextmanager
async def nats_recorded(url: str) -> AsyncIterator[list[bytes]]:
    """A subscriber of every subject."""
    crossed: list[bytes] = []

    async def note(message: Msg) -> None:
        crossed.append(repr((message.subject, message.reply, message.headers)).encode())
        crossed.append(message.data)

    client = await nats.connect(url)
    try:
        await client.subscribe(">", cb=note)
        await client.flush()
        yield crossed
    finally:
        await client.close()


@asynccontextmanager
async def house(folder: Path, count: int) -> AsyncIterator[Landlord]:
    """One relay without NATS, or several with it."""
    stored = folder / "nats"
    async with AsyncExitStack() as stack:
        flags: tuple[str, ...] = ()
        crossed: list[bytes] = []
        if count > 1:
            servers = stack.enter_context(await asyncio.to_thread(NatsServers, stored))
            crossed = await stack.enter_async_context(nats_recorded(servers.url))
            flags = ("--nats", servers.url)
        states = [folder / f"state{number}" for number in range(count)]
        relays = [stack.enter_context(RelayService(state, nats=flags, start=False)) for state in states]
        await asyncio.gather(*(asyncio.to_thread(relay.start) for relay in relays))
        yield Landlord(relays, crossed, stored)


@asynccontextmanager
async def tenancy(
    relays: Sequence[RelayService], name: str, environment: dict[str, str], folder: Path
) -> AsyncIterator[Tenant]:
    """A tenant whose daemon is online and whose client is connected; `NAME-raw` has no executor."""
    places = (f"{name}-lab", f"{name}-raw")
    make = [asyncio.to_thread(relays[0].token, role, *places) for role in ("executor", "client")]
    executor_token, client_token = await asyncio.gather(*make)
    folder.mkdir()
    async with AsyncExitStack() as stack:
        urls = [relay.url for relay in relays]
        proxies = [await stack.enter_async_context(Proxy(*urls, record=True)) for _ in range(2)]
        executor_url, client_url = (proxy.url for proxy in proxies)
        wire = await stack.enter_async_context(Wire(client_url, executor_token, client_token))
        tenant = Tenant(name, places[0], proxies, wire)
        server = await asyncio.to_thread(
            Server,
            None,
            *("--remote", executor_url, "--environment-id", places[0]),
            env={
                **environment,
                "EXECSERVER_REMOTE_TOKEN": executor_token,
                "XDG_STATE_HOME": str(folder),
            },
            cwd=folder,
        )
        stack.push_async_callback(asyncio.to_thread, server.stop)
        await asyncio.to_thread(relays[0].wait_online, places[0])
        tenant.executor = await stack.enter_async_context(
            connect(f"relay+{client_url}?environment={places[0]}", token=client_token)
        )
        yield tenant


@pytest.fixture(params=[1, 3], ids=["one relay", "a fleet"])
async def landlord(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Landlord]:
    async with house(tmp_path, request.param) as landlord:
        yield landlord


@pytest.fixture
async def tenants(
    landlord: Landlord, environment: dict[str, str], tmp_path: Path
) -> AsyncIterator[tuple[Tenant, Tenant]]:
    async with AsyncExitStack() as stack:
        enter = [
            stack.enter_async_context(tenancy(landlord.relays, name, environment, tmp_path / name))
            for name in ("alpha", "beta")
        ]
        alpha, beta = await asyncio.gather(*enter)
        yield alpha, beta


async def work(tenant: Tenant, folder: Path) -> None:
    """Something in both directions."""
    text = f"{tenant.name} " * 50_000
    path = folder / f"{tenant.name}.txt"
    assert (await tenant.executor.run(["cat"], input=text)).text == text
    await tenant.executor.fs.write_bytes(path, os.urandom(300_000))
    assert await tenant.executor.fs.read_bytes(path) == path.read_bytes()


async def test_nothing_of_one_tenant_is_ever_sent_to_another(
    tenants: tuple[Tenant, Tenant], tmp_path: Path
) -> None:
    await asyncio.gather(*(work(tenant, tmp_path) for tenant in tenants))
    for tenant in tenants:  # and the same on new sockets
        tenant.executor.drop_connection()
    await asyncio.gather(*(work(tenant, tmp_path) for tenant in tenants))

    for tenant, other in (tenants, tenants[::-1]):
        secrets = tenant.secrets()
        assert len(tenant.stream_ids()) == 2
        assert len(tenant.tickets()) >= 3
        assert len(tenant.records()) > 50
        own, others = tenant.got, other.got
        assert [each for each in secrets if each not in own and each != tenant.environment.encode()] == []
        assert [each for each in secrets if each in others] == []


@pytest.mark.parametrize("landlord", [3], ids=["a fleet"], indirect=True)
async def test_no_secret_of_a_tenant_passes_nats_or_is_kept_there_in_the_clear(
    landlord: Landlord, tenants: tuple[Tenant, Tenant], tmp_path: Path
) -> None:
    await asyncio.gather(*(work(tenant, tmp_path) for tenant in tenants))
    for tenant in tenants:
        tenant.executor.drop_connection()
    await asyncio.gather(*(work(tenant, tmp_path) for tenant in tenants))

    crossed = b"\0".join(landlord.crossed)
    stored = b"\0".join(path.read_bytes() for path in landlord.stored.rglob("*") if path.is_file())
    for tenant in tenants:
        secrets = [tenant.wire.executor_token, tenant.wire.client_token]
        secrets += tenant.tickets() + tenant.answers("harness_key_authorization")
        assert len(secrets) >= 7
        assert [each for each in secrets if each.encode() in crossed or each.encode() in stored] == []
        # The recorder has seen this tenant: its frames, as they were sealed, and its registration.
        assert [each for each in tenant.records() if each in crossed]
        assert tenant.environment.encode() in crossed
        assert tenant.environment.encode() in stored


async def test_a_tenant_that_uses_what_is_anothers_gets_nothing_and_does_nothing(
    landlord: Landlord, tenants: tuple[Tenant, Tenant], tmp_path: Path
) -> None:
    alpha, beta = tenants
    everywhere = range(len(landlord.relays))  # one attempt after the other goes to the next relay
    await work(alpha, tmp_path)
    key = KeyPair.generate()
    unused = await alpha.wire.connect(alpha.environment, key)
    [executor_ticket] = [url for url in alpha.answers("url") if "/executor?" in url]

    # Names: there is no telling a place that exists from one that does not.
    bodies: dict[str, dict[str, object]] = {
        "register": contract.RegisterRequest(key.public).to_json(),
        "connect": contract.ConnectRequest(key.public).to_json(),
        "validate": ValidateRequest(unused.registration_id, key.public, unused.authorization).to_json(),
    }
    for action, body in bodies.items():
        for token, _ in product((beta.wire.executor_token, beta.wire.client_token), everywhere):
            there = await beta.wire.post(alpha.environment, action, token, body)
            nowhere = await beta.wire.post("nobodys-lab", action, token, body)
            assert there[0] == nowhere[0] == 403
            assert there[1].replace(alpha.environment.encode(), b"nobodys-lab") == nowhere[1]

    # Tickets: alpha's open nothing in beta's place, beta's nothing in alpha's.
    for stolen in (unused.url, executor_ticket):
        for role, _ in product(("executor", "harness"), everywhere):
            ticket = stolen.partition("?")[2]
            status, _ = await beta.wire.refusal(_socket_url(beta, beta.environment, role, ticket))
            assert status in (401, 410)
    own = (await beta.wire.connect(beta.environment, key)).url.partition("?")[2]
    for role, _ in product(("executor", "harness"), everywhere):
        status, _ = await beta.wire.refusal(_socket_url(beta, alpha.environment, role, own))
        assert status in (401, 410)

    # An authorization that was seen somewhere: worth nothing in beta's place, and not used up by that.
    beta_registration = beta.answers("executor_registration_id")[0]
    for registration, _ in product((unused.registration_id, beta_registration), everywhere):
        asked = ValidateRequest(registration, key.public, unused.authorization)
        assert not await beta.wire.is_valid(beta.environment, asked)

    # Stream ids, while alpha uses them: as a client, and as an executor.
    raw_executor = await beta.wire.executor("beta-raw")
    raw_harness = await beta.wire.harness("beta-raw")
    before = alpha.received()
    for stream_id in alpha.stream_ids():
        await raw_executor.send(
            frames.data(stream_id, 0, MARKER),
            frames.handshake(stream_id, MARKER),
            frames.reset(stream_id, MARKER.decode()),
        )
        harness = await beta.wire.harness(beta.environment)
        await harness.send(frames.resume(stream_id), frames.handshake(stream_id, MARKER))
        assert await harness.message() == frames.reset(stream_id, PROTOCOL_ERROR)
        await harness.send(frames.data(stream_id, 0, MARKER), frames.reset(stream_id, MARKER.decode()))
        # Each sees nothing but its own: this comes first at both ends.
        await raw_harness.send(frames.resume(stream_id))
        assert await raw_executor.message() == frames.resume(stream_id)
        await raw_executor.send(frames.data(stream_id, 0, OWN))
        assert await raw_harness.message() == frames.data(stream_id, 0, OWN)

    assert alpha.received() == before
    await work(alpha, tmp_path)
    assert alpha.executor.recoveries == 0
    assert MARKER not in alpha.got
    assert not [each for each in alpha.records() if each in beta.got]
    assert not [each for each in beta.records() if each in alpha.got and each != MARKER[:NEEDLE_BYTES]]
    asked = ValidateRequest(unused.registration_id, key.public, unused.authorization)
    assert await alpha.wire.is_valid(alpha.environment, asked)
    await alpha.wire.dial(unused.url)  # its ticket has not been used up, either


def _socket_url(tenant: Tenant, environment: str, role: str, query: str) -> str:
    base = tenant.wire.url.replace("http", "ws", 1)
    return f"{base}/cloud/environment/{environment}/{role}?{query}"
