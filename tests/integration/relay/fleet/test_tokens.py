"""The tokens of a fleet, in a bucket of a real NATS server."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from execserver.relay.fleet import tokens as fleet_tokens
from execserver.relay.fleet.connection import NatsConnection
from execserver.relay.fleet.fleet import open_tokens
from execserver.relay.fleet.tokens import NEWS_SECONDS, FleetTokens
from execserver.relay.service.settings import NatsSettings
from execserver.relay.service.store import StoreUnavailable
from execserver.relay.service.tokens import TokenError, TokenRefused
from tests.support.fleet_stores import until
from tests.support.nats_servers import NatsServers

ENVIRONMENT = "box"


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with NatsServers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


@pytest.fixture
def settings(servers: NatsServers) -> NatsSettings:
    return NatsSettings.parse(servers.url, prefix=secrets.token_hex(4))


@contextlib.asynccontextmanager
async def following(settings: NatsSettings, clock: Clock) -> AsyncIterator[FleetTokens]:
    """The tokens as a relay has them."""
    connection = NatsConnection(settings, "test")
    await connection.open(5)
    tokens = FleetTokens(connection, settings, clock)
    await tokens.bucket.ensure()
    tokens.mirror.start()
    await tokens.mirror.complete.wait()
    yield tokens
    await tokens.mirror.close()
    await connection.close()


async def test_a_token_works_at_each_relay_until_it_is_revoked(settings: NatsSettings) -> None:
    async with following(settings, Clock()) as relay, open_tokens(settings) as command:
        record, secret = await command.create("client", [ENVIRONMENT], pools=["gpu"], note="n")
        await until(lambda: record.id in relay.mirror.records)
        assert relay.check(secret, "client", ENVIRONMENT) == record
        assert relay.check_pool(secret, "gpu") == record
        with pytest.raises(TokenRefused, match="role"):
            relay.check(secret, "executor", ENVIRONMENT)
        with pytest.raises(TokenRefused, match="environment"):
            relay.check(secret, "client", "other")
        assert relay.is_valid(record.id)
        await command.revoke(record.id)
        await until(lambda: record.id not in relay.mirror.records)
        assert relay.ended([record.id]) == {record.id}
        with pytest.raises(TokenRefused, match="revoked"):
            relay.check(secret, "client", ENVIRONMENT)
        with pytest.raises(TokenError, match="no token"):
            await command.revoke(record.id)


async def test_the_secret_is_not_in_the_bucket(settings: NatsSettings) -> None:
    async with open_tokens(settings) as tokens:
        record, secret = await tokens.create("executor", [ENVIRONMENT])
        found = await tokens.bucket.get(record.id)
        assert found is not None
        assert secret.encode() not in found.data
        assert record.sha256.encode() in found.data


async def test_an_expired_token_has_ended(settings: NatsSettings) -> None:
    clock = Clock()
    async with following(settings, clock) as tokens:
        record, secret = await tokens.create("client", [ENVIRONMENT], expires_in=60)
        await until(lambda: record.id in tokens.mirror.records)
        clock.now += 59
        assert tokens.check(secret, "client", ENVIRONMENT) == record
        clock.now += 2
        with pytest.raises(TokenRefused, match="expired"):
            tokens.check(secret, "client", ENVIRONMENT)
        assert not tokens.is_valid(record.id)


async def test_a_token_that_is_not_known_yet_has_not_ended_until_it_should_be(settings: NatsSettings) -> None:
    clock = Clock()
    async with following(settings, clock) as tokens:
        assert tokens.ended(["00000001"]) == set()
        clock.now += NEWS_SECONDS - 1
        assert tokens.is_valid("00000001")
        clock.now += 1
        assert tokens.ended(["00000001"]) == {"00000001"}
        clock.now += fleet_tokens.KEPT_SECONDS
        assert tokens.is_valid("00000001"), "what was asked for long ago is forgotten"


async def test_before_the_tokens_were_read_requests_are_not_refused_for_good(settings: NatsSettings) -> None:
    connection = NatsConnection(settings, "test")
    tokens = FleetTokens(connection, settings)
    with pytest.raises(StoreUnavailable, match="not read yet"):
        tokens.check("xrt_x", "client", ENVIRONMENT)
    with pytest.raises(StoreUnavailable, match="not read yet"):
        tokens.check_pool("xrt_x", "gpu")


@pytest.mark.parametrize(
    "change",
    [('"client"', '"admin"'), ('"note"', '"limit": 5, "note"'), ("}", "")],
    ids=["role", "member", "json"],
)
async def test_a_record_that_is_not_understood_allows_nothing(
    settings: NatsSettings, change: tuple[str, str]
) -> None:
    async with following(settings, Clock()) as tokens:
        record, secret = await tokens.create("client", [ENVIRONMENT])
        await until(lambda: record.id in tokens.mirror.records)
        found = await tokens.bucket.get(record.id)
        assert found is not None
        await tokens.bucket.put(record.id, found.data.decode().replace(*change).encode(), found.revision)
        await until(lambda: record.id not in tokens.mirror.records)
        with pytest.raises(TokenRefused):
            tokens.check(secret, "client", ENVIRONMENT)


async def test_tokens_are_listed_in_the_order_of_creation(settings: NatsSettings) -> None:
    clock, ids = Clock(), []
    async with following(settings, clock) as tokens:
        for _ in range(5):
            ids.append((await tokens.create("client", [ENVIRONMENT]))[0].id)
    async with open_tokens(settings) as command:
        assert [each.id for each in command.tokens] == ids


async def test_an_invalid_value_is_refused_and_nothing_is_kept(settings: NatsSettings) -> None:
    async with open_tokens(settings) as tokens:
        with pytest.raises(TokenError, match="`environments`"):
            await tokens.create("client", ["a b"])
        assert tokens.tokens == ()
