"""The records of the store, as one relay reads and changes them, and keeps them right about its own sockets.

- A change is decided on the newest record, and again if another relay changed the record meanwhile.
- A record may be wrong for a while about sockets of this relay: one ended while the store did not answer, or
  a write took effect after its timeout. `OwnSockets.settle` puts it right.
- A socket that the record names no more is closed: another socket replaced it, maybe at another relay.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from execserver.relay.service.bus import Bus
from execserver.relay.service.store import (
    EnvironmentRecord,
    Outdated,
    Registration,
    RegistryStore,
    StoreUnavailable,
)

MAX_ATTEMPTS = 50
"""How often a decision is made again because other relays were quicker. Each time one of them has succeeded,
so more means that the store is out of order."""

Decide = Callable[[EnvironmentRecord], EnvironmentRecord]

SocketEnd = Literal["redialed", "replaced", "revoked"]
"""Why an executor's socket has to be closed: its registration has a newer socket; a newer registration
replaced its own; its token has ended."""

EndSocket = Callable[[SocketEnd], None]


class EnvironmentRecords:
    """Reads and changes records. Coroutines raise StoreUnavailable.

    Args:
        store: keeps the records.
        bus: knows which relays live.
    """

    def __init__(self, store: RegistryStore, bus: Bus) -> None:
        self._store = store
        self._bus = bus

    async def read(self, environment_id: str) -> EnvironmentRecord:
        """The newest record; one without registration if there is none."""
        stored = await self._store.environment(environment_id)
        return stored.record if stored is not None else EnvironmentRecord(environment_id)

    async def change(self, environment_id: str, decide: Decide) -> EnvironmentRecord:
        """Replace a record by what `decide` makes of it; returns the new one.

        Args:
            environment_id: of the record.
            decide: called with the newest record, again if it is changed meanwhile. A result without
                registration removes the record. What it raises is raised here.
        """
        for _ in range(MAX_ATTEMPTS):
            stored = await self._store.environment(environment_id)
            record, revision = stored if stored is not None else (EnvironmentRecord(environment_id), 0)
            new = decide(record)
            if new == record:
                return new
            try:
                if new.current is None:
                    await self._store.remove(environment_id, revision)
                else:
                    await self._store.save(new, revision)
            except Outdated:
                continue
            return new
        raise StoreUnavailable(
            f"other relays changed the record of {environment_id} {MAX_ATTEMPTS} times meanwhile; try again"
        )

    def live(self, record: EnvironmentRecord) -> Registration | None:
        """The newest registration with an open socket: one at a relay that lives."""
        for registration in record.registrations():
            if registration.socket is not None and self._bus.is_alive(registration.socket.node):
                return registration
        return None


def registration_of(record: EnvironmentRecord, registration_id: str) -> Registration | None:
    """The registration with an id; None if the record names it no more."""
    for registration in record.registrations():
        if registration.id == registration_id:
            return registration
    return None


@dataclass(slots=True, eq=False)
class _OwnSocket:
    """An executor's socket of this relay."""

    registration: Registration
    close: EndSocket
    is_saved: bool = False
    """Whether the store has kept a record that names it."""
    is_seen: bool = False
    """Whether such a record came by `on_change`. A later one without the socket means its end; an earlier one
    may still be on its way."""
    is_ended: bool = False

    def end(self, why: SocketEnd) -> None:
        """Have it closed, once."""
        if not self.is_ended:
            self.is_ended = True
            self.close(why)


class OwnSockets:
    """The sockets of executors at this relay, and the records that name them.

    Args:
        store: notifies of changed records.
        records: of the same store.
        node: the name of this relay.
        clock: seconds since 1970.
        is_token_valid: whether a token, by its id, was not revoked and has not expired.
    """

    def __init__(
        self,
        store: RegistryStore,
        records: EnvironmentRecords,
        node: str,
        clock: Callable[[], float],
        is_token_valid: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._records = records
        self._node = node
        self._clock = clock
        self._is_token_valid = is_token_valid
        self._sockets: dict[str, dict[str, _OwnSocket]] = {}  # by environment and address
        self._unsettled: set[str] = set()  # environments whose record may be wrong
        store.on_change(self._changed)

    async def opened(
        self, registration: Registration, address: str, decide: Decide, close: EndSocket
    ) -> None:
        """Change the record to one that names a new socket.

        Args:
            registration: whose socket it is.
            address: of the socket.
            decide: makes the new record. What it raises is raised here.
            close: called once at most, when the socket has to be closed.
        """
        socket = _OwnSocket(registration, close)
        self._sockets.setdefault(registration.environment_id, {})[address] = socket
        await self._records.change(registration.environment_id, decide)
        socket.is_saved = True
        if not socket.is_seen:
            # If another socket replaced it at once, there may be no news but of the other one.
            self._unsettled.add(registration.environment_id)

    async def closed(self, environment_id: str, address: str) -> None:
        """Remove a socket, also from its record. If that fails, `settle` does it later (idempotent)."""
        sockets = self._sockets.get(environment_id, {})
        if sockets.pop(address, None) is None:
            return
        if not sockets:
            del self._sockets[environment_id]
        await self._settle(environment_id)

    def token_ids(self) -> set[str]:
        """The tokens of all registrations, and of this relay's sockets."""
        used = {socket.registration.token_id for socket in self._all()}
        for record in self._store.environments().values():
            used.update(registration.token_id for registration in record.registrations())
        return used

    def revoked(self, token_ids: Set[str]) -> None:
        """Close the sockets of ended tokens, and let `settle` remove the registrations."""
        for socket in self._all():
            if socket.registration.token_id in token_ids:
                socket.end("revoked")
        for environment_id, record in self._store.environments().items():
            if any(registration.token_id in token_ids for registration in record.registrations()):
                self._unsettled.add(environment_id)

    async def settle(self) -> None:
        """Correct records. It does not raise StoreUnavailable: the next call tries again."""
        for environment_id in tuple(self._unsettled):
            if not await self._settle(environment_id):
                return

    def _all(self) -> list[_OwnSocket]:
        return [socket for sockets in self._sockets.values() for socket in sockets.values()]

    def _changed(self, environment_id: str, record: EnvironmentRecord | None) -> None:
        sockets, named = self._sockets.get(environment_id, {}), self._named(record)
        if not named <= sockets.keys():  # for example by a write that took effect after its timeout
            self._unsettled.add(environment_id)
        for address, socket in tuple(sockets.items()):
            if address in named:
                socket.is_seen = True
            elif socket.is_seen:
                self._end(socket, record)
            elif socket.is_saved:
                self._unsettled.add(environment_id)

    async def _settle(self, environment_id: str) -> bool:
        """Correct one record, and close the sockets that it does not name. False: the store failed."""
        self._unsettled.add(environment_id)
        # Only these: the record that is read may be older than the next socket.
        saved = [each for each in self._sockets.get(environment_id, {}).items() if each[1].is_saved]
        try:
            record = await self._records.change(environment_id, self._corrected)
        except StoreUnavailable:
            return False
        self._unsettled.discard(environment_id)
        named = self._named(record)
        for address, socket in saved:
            if address not in named:
                self._end(socket, record)
        return True

    def _corrected(self, record: EnvironmentRecord) -> EnvironmentRecord:
        """The record without closed sockets of this relay, and without registrations of ended tokens."""
        current, older = (
            self._corrected_registration(record.current),
            self._corrected_registration(record.older),
        )
        if older is not None and older.socket is None:
            older = None
        if current is None:
            current, older = older, None
        return replace(record, current=current, older=older)

    def _corrected_registration(self, registration: Registration | None) -> Registration | None:
        if registration is None or not self._is_token_valid(registration.token_id):
            return None
        socket = registration.socket
        own = self._sockets.get(registration.environment_id, {})
        if socket is not None and socket.node == self._node and socket.address not in own:
            return replace(registration, socket=None, changed=self._clock())
        return registration

    def _named(self, record: EnvironmentRecord | None) -> set[str]:
        """The addresses of this relay's sockets in a record."""
        sockets = [each.socket for each in record.registrations()] if record is not None else []
        return {each.address for each in sockets if each is not None and each.node == self._node}

    def _end(self, socket: _OwnSocket, record: EnvironmentRecord | None) -> None:
        registration = socket.registration
        if not self._is_token_valid(registration.token_id):
            socket.end("revoked")
        elif record is not None and registration_of(record, registration.id) is not None:
            socket.end("redialed")
        else:
            socket.end("replaced")
