"""The watches of all sessions: beginning, finding and ending them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from execprotocol.errors import InvalidRequest
from execprotocol.limits import MAX_POLLED_ENTRIES, MAX_WATCHES
from execserver.telemetry.logs import Logger
from execserver.watching.client import program_code
from execserver.watching.visibility import Visibility, reading_only
from execserver.watching.watch import Watch

if TYPE_CHECKING:
    from execprotocol.watch import WatchParams
    from execserver.filesystem.mounts import MountTable
    from execserver.fsworker.launch import WorkerLauncher
    from execserver.sandbox.policy import Policy

log = Logger()

_COMPARED = {
    "path": "path",
    "recursive": "recursive",
    "ignore_rules": "ignoreRules",
    "exclude_dirs": "excludeDirs",
    "sandbox": "sandbox",
}
"""The parameters that an attaching request repeats, and their names on the wire."""


class WatchStarter:
    """Starts the programs of watches, for all sessions.

    Args:
        launcher: starts them, in a sandbox or without one.
        mounts: tells which mounts are polled.
    """

    def __init__(self, launcher: WorkerLauncher, mounts: MountTable) -> None:
        self._launcher = launcher
        self._mounts = mounts

    async def begin(
        self, params: WatchParams, policy: Policy | None, has_news: Callable[[Watch], None]
    ) -> Watch:
        """Begin a watch; every folder of it is watched then.

        Args:
            params: of the request.
            policy: limits files; None for no sandbox.
            has_news: called when the watch has something to send.

        Raises:
            RpcError: the path cannot be watched, or the sandbox cannot be enforced.
            OSError: the system is out of resources.
        """
        code = await asyncio.to_thread(program_code, ignore_rules=params.ignore_rules)
        visibility = None if policy is None else await asyncio.to_thread(Visibility, policy)
        if policy is None:
            process = self._launcher.unconfined(code)
        else:
            process = await self._launcher.launch(reading_only(policy), code)
        watch = Watch(params, visibility, has_news)
        order = (
            os.fsencode(params.path),
            params.recursive,
            params.ignore_rules,
            params.exclude_dirs,
            list(self._mounts.devices_that_can_hang),
            MAX_POLLED_ENTRIES,
        )
        try:
            await watch.begin(process, order)
        except BaseException:
            watch.release()
            raise
        return watch


class _Entry(NamedTuple):
    """A watch, which may be about to begin."""

    params: WatchParams
    beginning: asyncio.Task[Watch]

    @property
    def watch(self) -> Watch | None:
        """The watch, once it has begun."""
        return self.beginning.result() if self.beginning.done() else None


class SessionWatches:
    """The watches of one session by their ids.

    A watch begins even if the connection of its request is lost meanwhile: the client can attach to it.

    Args:
        starter: starts the programs.
        push: asks the connection, if there is one, to send the events of a watch.
    """

    def __init__(self, starter: WatchStarter, push: Callable[[Watch], None]) -> None:
        self._starter = starter
        self._push = push
        self._entries: dict[str, _Entry] = {}
        self._closed = False

    async def begin(self, params: WatchParams, policy: Policy | None) -> Watch:
        """Begin a watch, or attach to one.

        Raises:
            InvalidRequest: the id is taken, there are too many watches, or the session has ended.
            RpcError: see `WatchStarter.begin`.
            OSError: the system is out of resources.
        """
        if self._closed:
            raise InvalidRequest("the session has ended", name="stopping")
        name = params.watch_id
        entry = self._entries.get(name)
        if entry is not None:
            _require_equal(params, entry.params)
        elif len(self._entries) >= MAX_WATCHES:
            raise InvalidRequest(
                f"the session has {MAX_WATCHES} watches already: end one with fs/unwatch",
                name="too_many_watches",
                field="watchId",
            )
        else:
            beginning = asyncio.get_running_loop().create_task(
                self._starter.begin(params, policy, self._push)
            )
            entry = self._entries[name] = _Entry(params, beginning)
            beginning.add_done_callback(partial(self._begun, name, entry))
        return await asyncio.shield(entry.beginning)

    def get(self, name: str) -> Watch:
        """The watch of an id.

        Raises:
            InvalidRequest: there is none.
        """
        entry = self._entries.get(name)
        watch = None if entry is None else entry.watch
        if watch is None:
            raise InvalidRequest(
                f"unknown watch id {name}: begin the watch again, and look at everything below its path",
                name="unknown_watch",
                field="watchId",
            )
        return watch

    def end(self, name: str) -> asyncio.Future[None] | None:
        """End a watch; no error if there is none. The future is done when its program has ended."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return None
        if entry.watch is None:
            entry.beginning.cancel()
            return None
        return entry.watch.release()

    def push_all(self) -> None:
        """There is a new connection: send what was not sent yet."""
        for entry in list(self._entries.values()):
            if entry.watch is not None:
                self._push(entry.watch)

    def close(self) -> list[asyncio.Future[None]]:
        """End all watches, and begin no other. The futures are done when the programs have ended."""
        self._closed = True
        ended = [self.end(name) for name in list(self._entries)]
        return [each for each in ended if each is not None]

    def _begun(self, name: str, entry: _Entry, beginning: asyncio.Task[Watch]) -> None:
        if beginning.cancelled() or beginning.exception() is not None:
            if self._entries.get(name) is entry:
                del self._entries[name]
        else:
            log.debug("watch begun", mode=beginning.result().mode)


def _require_equal(params: WatchParams, first: WatchParams) -> None:
    """Check that a request may attach to a watch.

    Raises:
        InvalidRequest: it does not ask for that, or its parameters differ.
    """
    name = params.watch_id
    if params.if_exists == "fail":
        raise InvalidRequest(f"watch {name} exists already", name="watch_exists", field="watchId")
    for field, wire in _COMPARED.items():
        if getattr(first, field) != getattr(params, field):
            raise InvalidRequest(
                f"watch {name} was begun with another `{wire}`: repeat the parameters of the first request, "
                "or use another watchId",
                name="watch_differs",
                field=wire,
            )
