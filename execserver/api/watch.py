"""The handlers of `fs/watch`, `fs/watchRead` and `fs/unwatch`. `docs/protocol.md`, "Watches"."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import msgspec

from execprotocol.errors import InvalidRequest, file_error
from execprotocol.limits import MAX_WATCH_ID_BYTES
from execprotocol.path_uri import ForeignPath
from execserver.api.confinement import file_policy
from execserver.filesystem.mounts import MountTable
from execserver.fsworker.launch import WorkerLauncher
from execserver.rpc.handlers import Caller, Encoded, Handlers

if TYPE_CHECKING:
    from execprotocol.watch import UnwatchParams, WatchParams, WatchReadParams
    from execserver.watching.watch import Watch
    from execserver.watching.watches import SessionWatches, WatchStarter

_MAX_WAIT_SECONDS = 7 * 24 * 3600.0
"""A timer of the loop cannot wait for 2^64 milliseconds."""

_NOTHING = Encoded(b"{}")


class WatchHandlers:
    """The methods of watches.

    Args:
        launcher: starts the programs of watches.
        mounts: tells which mounts are polled.
        tmpdir: the daemon's `TMPDIR`, for the role `tmpdir` of sandboxes.
    """

    def __init__(self, launcher: WorkerLauncher, mounts: MountTable, tmpdir: str | None) -> None:
        self._launcher = launcher
        self._mounts = mounts
        self._tmpdir = tmpdir
        self._starter: WatchStarter | None = None

    def table(self) -> Handlers:
        """Method name → handler."""
        return {"fs/watch": self.watch, "fs/watchRead": self.read, "fs/unwatch": self.unwatch}

    async def watch(self, caller: Caller, params: WatchParams) -> Encoded:
        """Begin a watch, or attach to one."""
        _check(params)
        policy = file_policy(params.sandbox, self._tmpdir)
        try:
            watch = await self._watches(caller).begin(params, policy)
        except OSError as error:
            raise file_error(error) from None
        result = {"watchId": params.watch_id, "mode": watch.mode, "nextSeq": watch.announced_seq}
        return Encoded(msgspec.json.encode(result), after=watch.send_events, begun=True)

    def read(self, caller: Caller, params: WatchReadParams) -> Encoded | Awaitable[Encoded]:
        """Answer a read, at once when there are changes."""
        watch = self._watches(caller).get(params.watch_id)
        if not params.wait_ms or watch.has_news(params.after_seq):
            return Encoded(watch.page(params.after_seq, params.max_changes))
        return self._read_when_news(caller, watch, params, params.wait_ms)

    def unwatch(self, caller: Caller, params: UnwatchParams) -> Encoded:
        """End a watch."""
        if caller.session.watches is not None:
            caller.session.watches.end(params.watch_id)
        return _NOTHING

    async def _read_when_news(
        self, caller: Caller, watch: Watch, params: WatchReadParams, wait_ms: int
    ) -> Encoded:
        await watch.wait_for_news(params.after_seq, min(wait_ms / 1000, _MAX_WAIT_SECONDS))
        await caller.wait_to_reply()
        if watch.released:
            self._watches(caller).get(params.watch_id)  # raises, unless there is a new one
        return Encoded(watch.page(params.after_seq, params.max_changes))

    def _watches(self, caller: Caller) -> SessionWatches:
        """The watches of the caller's session, made at the first use: few sessions need them."""
        from execserver.watching.watches import SessionWatches, WatchStarter

        session = caller.session
        if session.watches is None:
            if self._starter is None:
                self._starter = WatchStarter(self._launcher, self._mounts)
            session.watches = SessionWatches(self._starter, session.push)
            if session.ending is not None:
                session.watches.close()
        return session.watches


def _check(params: WatchParams) -> None:
    size = len(params.watch_id.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= MAX_WATCH_ID_BYTES:
        raise InvalidRequest(
            f"`watchId` must have 1 to {MAX_WATCH_ID_BYTES} bytes, not {size}", field="watchId"
        )
    for name in params.exclude_dirs:
        if not name or "/" in name or "\0" in name:
            raise InvalidRequest(
                f"`excludeDirs` has names of directories, without slashes: {name!r}", field="excludeDirs"
            )
    if type(params.path) is ForeignPath:
        raise InvalidRequest(f"'{params.path}' is invalid on 'linux'")
