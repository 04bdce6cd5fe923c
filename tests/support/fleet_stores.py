"""Stores of relays on real NATS servers, for tests in one process.

async with open_store(nats.url, "prefix") as store:
    await store.save(record("box"), 0)
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable

from execprotocol.relay.keys import KeyPair
from execserver.relay.fleet.connection import NatsConnection
from execserver.relay.fleet.store import NatsStore
from execserver.relay.service.settings import NatsSettings
from execserver.relay.service.store import EnvironmentRecord, ExecutorSocket, Grant, Registration
from tests.support.wire import PATIENCE

KEYS = KeyPair.generate().public


@contextlib.asynccontextmanager
async def open_store(url: str, prefix: str, replicas: int | None = None) -> AsyncIterator[NatsStore]:
    """The store of one relay, with a connection of its own."""
    settings = NatsSettings.parse(url, prefix=prefix, replicas=replicas)
    connection = NatsConnection(settings, "test")
    await connection.open(PATIENCE)
    store = NatsStore(connection, settings, secrets.token_hex(4))
    try:
        await store.start("http://127.0.0.1")
        yield store
    finally:
        await store.close()
        await connection.close()


def record(environment_id: str, registration_id: str = "r", node: str = "") -> EnvironmentRecord:
    """The record of an environment with one registration, which has a socket at `node` if that is given."""
    socket = ExecutorSocket(node, f"{node}.p") if node else None
    registration = Registration(
        environment_id, registration_id, KEYS, "token", 1.5, bytes(range(32)), socket, changed=2.5
    )
    return EnvironmentRecord(environment_id, registration)


def grant(environment_id: str, expires: float = 1e12) -> Grant:
    """The grant of a harness."""
    return Grant(environment_id, "r", "token", KEYS.fingerprint, expires)


async def until(condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)
