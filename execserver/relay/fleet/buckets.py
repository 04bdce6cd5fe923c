"""Key-value buckets of JetStream: records with compare-and-set, and complete copies that follow a bucket.

- A read asks the leader of the bucket's stream: another server of the cluster may be behind.
- A write has an id of its own, by which the servers recognise it when it is sent again. So a write that was
  not acknowledged, because its server was killed, is repeated and happens once.
- A removed key keeps a marker for an hour, so that copies learn of the removal after a lost connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext, api
from nats.js.kv import KV_DEL, KV_OP, KV_PURGE, MSG_ROLLUP_SUBJECT, KeyValue

from execserver.relay.fleet.connection import NatsConnection, end_task
from execserver.relay.service.store import Outdated, StoreUnavailable
from execserver.telemetry.logs import Logger

ATTEMPT_SECONDS = 1.0
"""How long one request to a server may take. After an election, requests wait for the end of an attempt."""

ELECTION_SECONDS = 10.0
"""How long a request is repeated while no server answers: after the loss of a leader, the servers of a bucket
take 4 to 9 s to choose another."""

PAUSE_SECONDS = 0.1
"""Between two attempts."""

MARKER_SECONDS = 3600
"""How long the marker of a removed key stays."""

SNAPSHOT_SECONDS = 1.0
"""How long a copy waits for changes that the server of its feed has not received yet."""

_WRONG_REVISION = (10071, 10164)
_TRANSIENT = (None, 10008, 10158)
"""No code, JetStream is temporarily unavailable, and: the same write, sent before, is on its way."""
_STREAM_NOT_FOUND = 10059
_NO_SERVERS_FOR_REPLICAS = 10005
_NOT_CLUSTERED = 10074
_NO_ANSWER = (
    nats.js.errors.NoStreamResponseError,
    nats.js.errors.APIError,
    nats.errors.TimeoutError,
)
_EXPECTED = (nats.errors.Error, OSError, TimeoutError, StoreUnavailable)
_NO_ROOM = (10023, 10028, 10047)

log = Logger()


class BucketSettings(NamedTuple):
    """The properties of a bucket, which hold when it is created."""

    name: str
    memory: bool = False
    """Whether its records are lost when all servers end."""
    seconds: float | None = None
    """How long a record stays; None: until it is removed."""


class BucketMissing(StoreUnavailable):
    """There is no such bucket: it was not created yet, or was lost with the memory of its servers."""


class Value(NamedTuple):
    """The value of a key, with its revision."""

    data: bytes
    revision: int


class Bucket:
    """One bucket.

    Args:
        connection: to the cluster.
        settings: its properties.
        replicas: how many servers have it; None: 3 in a cluster, 1 at a single server.
    """

    def __init__(self, connection: NatsConnection, settings: BucketSettings, replicas: int | None) -> None:
        self.name = settings.name
        self._connection = connection
        self._settings = settings
        self._replicas = replicas

    @property
    def may_be_lost(self) -> bool:
        """Whether its records are lost when all servers end."""
        return self._settings.memory

    @property
    def stream(self) -> str:
        """The name of its stream."""
        return f"KV_{self.name}"

    @property
    def context(self) -> JetStreamContext:
        """For requests about its stream."""
        return self._connection.client.jetstream(timeout=ATTEMPT_SECONDS)

    async def ensure(self) -> None:
        """Create the bucket if there is none.

        Raises:
            StoreUnavailable: it cannot be created now.
        """
        try:
            await self.info()
        except BucketMissing:
            await self._create()

    async def info(self, seconds: float = ATTEMPT_SECONDS) -> api.StreamInfo:
        """What its leader says of it. Raises as `get`."""
        return await self._repeat(lambda: self.context.stream_info(self.stream), seconds)

    async def get(self, key: str, seconds: float = ELECTION_SECONDS) -> Value | None:
        """The newest value of a key; None if there is none.

        Args:
            key: letters, digits and - _ / = .
            seconds: how long to try.

        Raises:
            StoreUnavailable: it cannot be read.
            BucketMissing: there is no bucket.
        """
        found = await self._last(key, seconds)
        if found is None or (found.headers or {}).get(KV_OP) in (KV_DEL, KV_PURGE):
            return None
        assert found.seq is not None
        return Value(found.data or b"", found.seq)

    async def put(
        self,
        key: str,
        data: bytes,
        revision: int | None,
        seconds: float = ELECTION_SECONDS,
        ttl: float | None = None,
    ) -> int:
        """Write a value; returns its revision.

        Args:
            key: as `get`.
            data: the value.
            revision: of the value that this one replaces; 0: there must be none. None: whatever is there.
            seconds: how long to try.
            ttl: how many seconds the value stays; None: as long as the bucket says.

        Raises:
            Outdated: the key has another revision by now.
            StoreUnavailable: it cannot be written. It may or may not have been written.
            BucketMissing: there is no bucket.
        """
        try:
            return await self._publish(key, data, {}, revision, seconds, ttl)
        except Outdated:
            if revision != 0:
                raise
            last = await self._last(key, seconds)
            if last is None or (last.headers or {}).get(KV_OP) not in (KV_DEL, KV_PURGE):
                raise
            return await self._publish(key, data, {}, last.seq, seconds, ttl)

    async def remove(self, key: str, revision: int | None, seconds: float = ELECTION_SECONDS) -> int:
        """Remove a key; returns the revision of its marker. Arguments and errors as those of `put`."""
        headers = {KV_OP: KV_PURGE, api.Header.ROLLUP: MSG_ROLLUP_SUBJECT}
        return await self._publish(key, b"", headers, revision, seconds, MARKER_SECONDS)

    async def _publish(
        self,
        key: str,
        data: bytes,
        headers: dict[str, str],
        revision: int | None,
        seconds: float,
        ttl: float | None = None,
    ) -> int:
        headers = {**headers, api.Header.MSG_ID: secrets.token_hex(12)}
        if revision is not None:
            headers[api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE] = str(revision)
        subject = f"$KV.{self.name}.{key}"
        answer = await self._repeat(
            lambda: self.context.publish(subject, data, headers=dict(headers), msg_ttl=ttl),
            seconds,
        )
        return answer.seq

    async def _last(self, key: str, seconds: float) -> api.RawStreamMsg | None:
        subject = f"$KV.{self.name}.{key}"
        try:
            return await self._repeat(
                lambda: self.context.get_msg(self.stream, subject=subject, direct=False), seconds
            )
        except _KeyMissing:
            return None

    async def _create(self) -> None:
        settings = self._settings
        replicas = (self._replicas,) if self._replicas is not None else (3, 1)
        for count in replicas:
            try:
                await self.context.create_key_value(
                    bucket=settings.name,
                    storage=api.StorageType.MEMORY if settings.memory else api.StorageType.FILE,
                    ttl=settings.seconds,
                    # Copies learn of a value that has expired by a marker too.
                    limit_marker_ttl=None if settings.seconds is None else MARKER_SECONDS,
                    replicas=count,
                    direct=False,  # see above: a read must not be stale
                )
            except nats.js.errors.APIError as error:
                if error.err_code == _NOT_CLUSTERED and count != replicas[-1]:
                    continue  # a single server
                if error.err_code == _NO_SERVERS_FOR_REPLICAS:
                    raise StoreUnavailable(
                        f"the bucket {self.name} needs {count} NATS servers with JetStream, there are fewer: "
                        "start them, or give --nats-replicas"
                    ) from None
                raise self._unavailable(error) from None
            except (nats.errors.Error, OSError, TimeoutError) as error:
                raise self._unavailable(error) from None
            log.info("bucket created", bucket=self.name, replicas=count)
            return

    async def _repeat(self, request: Callable[[], Awaitable[_Answer]], seconds: float) -> _Answer:
        """Make a request again while no server answers.

        Raises:
            Outdated: the key has another revision.
            StoreUnavailable: no server answered in time, or one refused.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                if not self._connection.is_connected:
                    raise nats.errors.ConnectionClosedError
                return await request()
            except nats.js.errors.APIError as error:
                if error.err_code in _WRONG_REVISION:
                    raise Outdated from None
                if error.err_code == _STREAM_NOT_FOUND:
                    raise BucketMissing(f"there is no bucket {self.name} at the NATS servers") from None
                if isinstance(error, nats.js.errors.NotFoundError):
                    raise _KeyMissing from None
                if error.err_code not in _TRANSIENT:
                    raise self._unavailable(error) from None
                problem: Exception = error
            except (nats.errors.Error, OSError, TimeoutError) as error:
                problem = error
            if time.monotonic() >= deadline:
                raise self._unavailable(problem) from None
            await asyncio.sleep(PAUSE_SECONDS)

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        if self._connection.fault:
            return StoreUnavailable(self._connection.fault)
        code = getattr(error, "err_code", None)
        reason = getattr(error, "description", None) or str(error) or type(error).__name__
        if code in _NO_ROOM:
            reason += (
                ": the disk of NATS servers is full, or their limits `max_file` or `max_mem` are reached"
            )
        elif code in _TRANSIENT and isinstance(error, _NO_ANSWER):
            reason = (
                "no NATS server answers for it: more than half of its servers must run, with JetStream and "
                "room on the disk; after the loss of one, they take up to 10 s to choose a leader"
            )
        return StoreUnavailable(f"bucket {self.name}: {reason}")


class _KeyMissing(Exception):
    pass


_Answer = TypeVar("_Answer")
_Record = TypeVar("_Record")


class _Known(NamedTuple, Generic[_Record]):
    record: _Record | None
    revision: int


class Mirror(Generic[_Record]):
    """A copy of a bucket, which follows it.

    Args:
        bucket: the bucket.
        decode: makes a record of a value; raises ValueError if it is invalid. Invalid values are logged, and
            are not in the copy, and neither are keys with a dot.
    """

    def __init__(self, bucket: Bucket, decode: Callable[[bytes], _Record]) -> None:
        self.complete = asyncio.Event()
        """Set once the copy has been complete."""
        self._bucket = bucket
        self._decode = decode
        self._known: dict[str, _Known[_Record]] = {}  # None: removed here, until the feed says so too
        self._records: dict[str, _Record] = {}
        self._seen = 0
        self._checked = (0, 0)  # what it had seen at the last check, and what there was to be seen
        self._changed: list[Callable[[str, _Record | None], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._feed: asyncio.Task[None] | None = None

    @property
    def records(self) -> Mapping[str, _Record]:
        """All records by their keys."""
        return self._records

    def on_change(self, changed: Callable[[str, _Record | None], None]) -> None:
        """Call `changed` with a key and its new record, None if it was removed, in the order of changes."""
        self._changed.append(changed)

    def start(self) -> None:
        """Follow the bucket until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """End (idempotent)."""
        await end_task(self._task)
        await end_task(self._feed)

    def restart(self) -> None:
        """Read the whole bucket again: messages may have been lost."""
        if self._feed is not None:
            self._feed.cancel()

    def note(self, key: str, record: _Record | None, revision: int) -> None:
        """Take a change that this relay has made, before the feed brings it."""
        known = self._known.get(key)
        if known is not None and known.revision >= revision:
            return
        self._known[key] = _Known(record, revision)
        if self._records.get(key) == record:
            return  # it was read again
        if record is None:
            del self._records[key]
        else:
            self._records[key] = record
        for changed in self._changed:
            changed(key, record)

    async def check(self, seconds: float) -> None:
        """Read the bucket again if the feed has brought nothing new although there is something.

        Raises:
            StoreUnavailable: the bucket has no leader now.
            BucketMissing: there is no bucket.
        """
        info = await self._bucket.info(seconds)
        seen_before, last_before = self._checked
        stands = self._seen == seen_before and self._seen < last_before
        self._checked = self._seen, info.state.last_seq
        if stands or self._seen > info.state.last_seq:  # the latter: a bucket in memory was lost
            self.restart()

    async def _follow(self) -> None:
        while True:
            self._feed = asyncio.get_running_loop().create_task(self._read())
            await asyncio.wait((self._feed,))
            if not self._feed.cancelled():
                error = self._feed.exception()
                if error is not None and not isinstance(error, _EXPECTED):
                    log.error("copy of a bucket failed", bucket=self._bucket.name, error=repr(error))
                await asyncio.sleep(ATTEMPT_SECONDS / 4)

    async def _read(self) -> None:
        """Read all, then follow."""
        known = tuple(self._known.items())
        keys = await self._bucket.context.key_value(self._bucket.name)
        last = (await keys.status()).stream_info.state.last_seq
        if self._bucket.may_be_lost or any(each.revision > last for _, each in known):
            # Revisions may have begun anew. Otherwise an older record must not replace a newer one, even
            # for a moment: it could name another socket of an executor.
            for key, each in known:
                if self._known.get(key) is each:
                    self._known[key] = _Known(each.record, 0)
        watcher = await keys.watchall()
        try:
            self._seen = 0
            found: set[str] = set()
            async for entry in watcher:
                if entry is None:
                    break  # all that the feed's server has
                found.add(entry.key)
                self._take(entry)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SNAPSHOT_SECONDS):
                    while self._seen < last:
                        entry = await anext(watcher)
                        found.add(entry.key)
                        self._take(entry)
            await self._complete(found, last)
            async for entry in watcher:
                self._take(entry)
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):
                await watcher.stop()

    async def _complete(self, found: set[str], last: int) -> None:
        """Remove what is gone, after everything else was read."""
        self._seen = max(self._seen, last)  # the last change may be a marker that is no longer there
        for key, known in tuple(self._known.items()):
            if key in found or known.revision > self._seen:
                continue
            # The server of the feed may still be behind; the leader of the bucket is not.
            if await self._bucket.get(key) is None and self._known.get(key) is known:
                self.note(key, None, known.revision + 1)
                del self._known[key]
        self.complete.set()

    def _take(self, entry: KeyValue.Entry) -> None:
        assert entry.revision is not None
        self._seen = max(self._seen, entry.revision)
        if "." in entry.key:
            return
        record = None
        if entry.operation not in (KV_DEL, KV_PURGE):
            try:
                record = self._decode(entry.value or b"")
            except ValueError as error:
                log.error("invalid record", bucket=self._bucket.name, key=entry.key, error=str(error))
        self.note(entry.key, record, entry.revision)
        if record is None and self._known[entry.key].revision <= entry.revision:
            del self._known[entry.key]
