"""The tokens of a fleet, in a bucket of the NATS cluster that each relay follows.

    PREFIX_tokens   file   one `TokenRecord` each, by its id

A relay that cannot reach the cluster goes on with the tokens that it knows; it learns of a revocation when it
can again. A record that is invalid, or has members that this version does not know, allows nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence

from execserver.relay.fleet.buckets import Bucket, BucketSettings, Mirror
from execserver.relay.fleet.connection import NatsConnection
from execserver.relay.service.settings import NatsSettings
from execserver.relay.service.store import Outdated, StoreUnavailable
from execserver.relay.service.tokens import (
    Role,
    TokenError,
    TokenRecord,
    TokenRecordError,
    Tokens,
    new_token,
)

NEWS_SECONDS = 15.0
"""How long a token may be unknown to a relay that another relay has accepted: during an election, a new token
is known to one before the other."""


KEPT_SECONDS = 3600.0
"""How long it is remembered that a token is unknown."""


class FleetTokens(Tokens):
    """The tokens of a fleet. `bucket` and `mirror` are for `NatsStore.follow`, which follows the bucket.

    Args:
        connection: to the cluster.
        settings: with the prefix of the bucket, and its replicas.
        clock: seconds since 1970.
    """

    def __init__(
        self, connection: NatsConnection, settings: NatsSettings, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(clock)
        self.bucket = Bucket(connection, BucketSettings(f"{settings.prefix}_tokens"), settings.replicas)
        self.mirror = Mirror(self.bucket, _decode)
        self.mirror.on_change(self._changed)
        self._is_current = True
        self._seen: set[str] = set()  # all that were ever in the bucket
        self._new: dict[str, float] = {}  # others, and when they were first asked for

    def refresh(self) -> None:
        """Take over what the bucket has now; requests are refused until it was read."""
        if not self._is_current:
            self._is_current = True
            records = self.mirror.records.values()
            self._take(tuple(sorted(records, key=lambda each: (each.created, each.id))))

    def check(self, presented: str | None, role: Role, environment_id: str) -> TokenRecord:
        """Check a token. See `Tokens.check`.

        Raises:
            StoreUnavailable: the tokens were not read yet.
        """
        self._check_complete()
        return super().check(presented, role, environment_id)

    def check_pool(self, presented: str | None, pool: str) -> TokenRecord:
        """Check a token for a pool. See `Tokens.check_pool`. Raises as `check`."""
        self._check_complete()
        return super().check_pool(presented, pool)

    def ended(self, token_ids: Iterable[str]) -> set[str]:
        """The ids of those tokens that were revoked or have expired."""
        now = self._clock()
        self._new = {each: since for each, since in self._new.items() if now - since < KEPT_SECONDS}
        return {
            each
            for each in super().ended(token_ids)
            if each in self._seen or now - self._new.setdefault(each, now) >= NEWS_SECONDS
        }

    async def create(
        self,
        role: str,
        environments: Sequence[str],
        *,
        pools: Sequence[str] = (),
        expires_in: float | None = None,
        note: str = "",
    ) -> tuple[TokenRecord, str]:
        """Create a token. Arguments and result as of `new_token`.

        Raises:
            TokenError: a value is invalid.
            StoreUnavailable: it cannot be kept.
        """
        while True:
            record, secret = new_token(
                role, environments, pools=pools, expires_in=expires_in, note=note, now=self._clock()
            )
            try:
                await self.bucket.put(record.id, json.dumps(record.to_json()).encode(), 0)
            except Outdated:  # another token has this id
                continue
            return record, secret

    async def revoke(self, token_id: str) -> None:
        """Remove a token.

        Raises:
            TokenError: there is no token with that id.
            StoreUnavailable: it cannot be removed.
        """
        if not token_id.isalnum() or await self.bucket.get(token_id) is None:
            raise TokenError(
                f"there is no token {token_id!r} in the bucket {self.bucket.name}; "
                "`token list` shows their ids"
            )
        await self.bucket.remove(token_id, None)

    def _check_complete(self) -> None:
        if not self.mirror.complete.is_set():
            raise StoreUnavailable("the tokens of the fleet were not read yet; try again")

    def _changed(self, token_id: str, _record: TokenRecord | None) -> None:
        self._is_current = False
        self._seen.add(token_id)


def _decode(data: bytes) -> TokenRecord:
    try:
        return TokenRecord.from_json(json.loads(data))
    except (TokenRecordError, RecursionError) as error:
        raise ValueError(str(error)) from None
