"""The method table: name → family, parameters, result, and how it is scheduled.

`counted` methods take a slot of `--concurrent-requests`; the others never wait for one
(`docs/protocol.md`, "Request scheduling").

The models are named and not imported: with pydantic they take longer to load than all that a daemon
needs for its first answers (`rpc/quick_params.py`).
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from execserver.loading import LOADER

if TYPE_CHECKING:
    from execserver.protocol.model import Params


class Method(msgspec.Struct, frozen=True):
    """One method of the wire.

    `family` is the word that handshake errors use for it; `None` marks `initialize`.
    `open_to_all` methods need no handshake: they say nothing about a session.
    """

    name: str
    family: str | None
    params_name: str
    """The model of the parameters, by module and class."""
    result_name: str
    counted: bool = True
    open_to_all: bool = False
    extension: bool = False
    """Whether the reference does not have it."""
    extension_members: tuple[str, ...] = ()
    """Those of its parameters that the reference does not have, by their names on the wire."""

    @property
    def params(self) -> type[Params]:
        """The model of the parameters; loads it, and pydantic with it."""
        return _shape(self.params_name)  # type: ignore[no-any-return]

    @property
    def result(self) -> Any:
        """The shape of the result; loads it, as `params`."""
        return _shape(self.result_name)

    @property
    def takes_nothing(self) -> bool:
        """Whether it has no parameters."""
        return self.params_name == NO_PARAMS


NO_PARAMS = "environment.NoParams"

_EXEC, _FS = "exec", "filesystem"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("initialize", None, "handshake.InitializeParams", "handshake.InitializeResult", counted=False),
        Method(
            "session/end",
            "session",
            "environment.NoParams",
            "handshake.EndResult",
            counted=False,
            extension=True,
        ),
        Method(
            "environment/info",
            "environment info",
            "environment.NoParams",
            "environment.EnvironmentInfo",
            counted=False,
        ),
        Method(
            "environment/status",
            "environment status",
            "environment.NoParams",
            "environment.EnvironmentStatus",
            counted=False,
        ),
        Method(
            "environmentConfig/read",
            "environment config",
            "environment.ConfigReadParams",
            "environment.ConfigReadResult",
        ),
        Method(
            "capabilityRoots/discoverV1",
            "capability discovery",
            "environment.DiscoverV1Params",
            "environment.DiscoverV1Result",
        ),
        Method(
            "capabilities/discoverV2",
            "capability discovery",
            "environment.DiscoverV2Params",
            "environment.DiscoverV2Result",
        ),
        Method(
            "process/start",
            _EXEC,
            "process.StartParams",
            "process.StartResult",
            extension_members=("timeoutMs", "idleTimeoutMs", "ifExists", "size"),
        ),
        Method(
            "process/read",
            _EXEC,
            "process.ReadParams",
            "process.ReadResult",
            extension_members=("sessionId",),
        ),
        Method(
            "process/write",
            _EXEC,
            "process.WriteParams",
            "process.WriteResult",
            extension_members=("sessionId",),
        ),
        Method(
            "process/signal",
            _EXEC,
            "process.SignalParams",
            "process.SignalResult",
            counted=False,
            extension_members=("scope", "sessionId"),
        ),
        Method(
            "process/terminate",
            _EXEC,
            "process.TerminateParams",
            "process.TerminateResult",
            counted=False,
            extension_members=("scope", "sessionId"),
        ),
        Method(
            "process/closeStdin",
            _EXEC,
            "process.CloseStdinParams",
            "process.CloseStdinResult",
            extension=True,
        ),
        Method(
            "process/resize",
            _EXEC,
            "process.ResizeParams",
            "process.ResizeResult",
            counted=False,
            extension=True,
        ),
        Method("process/list", _EXEC, "process.ListParams", "process.ListResult", extension=True),
        Method(
            "process/subscribe", _EXEC, "process.SubscribeParams", "process.SubscribeResult", extension=True
        ),
        Method("process/unsubscribe", _EXEC, "process.UnsubscribeParams", "filesystem.Empty", extension=True),
        Method("fs/readFile", _FS, "filesystem.ReadFileParams", "filesystem.ReadFileResult"),
        Method("fs/writeFile", _FS, "filesystem.WriteFileParams", "filesystem.Empty"),
        Method(
            "fs/createDirectory",
            _FS,
            "filesystem.CreateDirectoryParams",
            "filesystem.Empty",
            extension_members=("permissions",),
        ),
        Method("fs/getMetadata", _FS, "filesystem.GetMetadataParams", "filesystem.Metadata"),
        Method("fs/canonicalize", _FS, "filesystem.CanonicalizeParams", "filesystem.CanonicalPath"),
        Method("fs/readDirectory", _FS, "filesystem.ReadDirectoryParams", "filesystem.ReadDirectoryResult"),
        Method("fs/walk", _FS, "filesystem.WalkParams", "filesystem.WalkResult"),
        Method("fs/remove", _FS, "filesystem.RemoveParams", "filesystem.Empty"),
        Method(
            "fs/copy",
            _FS,
            "filesystem.CopyParams",
            "filesystem.PutResult",
            extension_members=("keepMode", "preserveTimes"),
        ),
        Method("fs/install", _FS, "filesystem.InstallParams", "filesystem.PutResult", extension=True),
        Method("fs/setMetadata", _FS, "filesystem.SetMetadataParams", "filesystem.Empty", extension=True),
        Method("fs/rename", _FS, "filesystem.RenameParams", "filesystem.Empty", extension=True),
        Method(
            "fs/digest",
            _FS,
            "filesystem.DigestParams",
            "filesystem.DigestResult",
            extension=True,
            extension_members=("size",),
        ),
        Method(
            "fs/applyEdits", _FS, "filesystem.ApplyEditsParams", "filesystem.ApplyEditsResult", extension=True
        ),
        Method(
            "fs/open",
            _FS,
            "filesystem.OpenParams",
            "filesystem.OpenResult",
            extension_members=("permissions",),
        ),
        Method("fs/readBlock", _FS, "filesystem.ReadBlockParams", "filesystem.ReadBlockResult"),
        Method("fs/writeBlock", _FS, "filesystem.WriteBlockParams", "filesystem.Empty"),
        Method("fs/close", _FS, "filesystem.CloseParams", "filesystem.Empty", counted=False),
        Method("fs/watchMissing", _FS, "filesystem.WatchMissingParams", "filesystem.WatchMissingResult"),
        Method(
            "rpc.discover",
            "discovery",
            "environment.NoParams",
            "environment.OpenRpcDocument",
            counted=False,
            open_to_all=True,
            extension=True,
        ),
        Method("http/request", "http", "http.HttpRequestParams", "http.HttpRequestResult"),
        Method(
            "server/health",
            "server",
            "environment.NoParams",
            "health.Health",
            counted=False,
            open_to_all=True,
            extension=True,
        ),
    )
}

EVENT_NAMES = {
    "process/output": "process.OutputEvent",
    "process/exited": "process.ExitedEvent",
    "process/closed": "process.ClosedEvent",
    "fs/missingChanged": "filesystem.MissingChangedEvent",
    "http/request/bodyDelta": "http.BodyDeltaEvent",
}


@cache
def _shape(name: str) -> Any:
    module, _, shape = name.partition(".")
    return getattr(LOADER.load(lambda: import_module(f"execserver.protocol.{module}")), shape)


@cache
def events() -> dict[str, Any]:
    """The shape of each event's parameters, by the event's name."""
    return {event: _shape(name) for event, name in EVENT_NAMES.items()}


def load_shapes() -> None:
    """Load everything that the table names: a tenth of a second, once, in whatever thread."""
    for method in METHODS.values():
        _shape(method.params_name)
        _shape(method.result_name)


def extension_names() -> list[str]:
    """What this daemon serves beyond the reference: the methods, as `fs/digest`, and the members of the
    parameters of others, as `process/start.size`. Sorted.
    """
    names = [method.name for method in METHODS.values() if method.extension]
    names += [f"{method.name}.{member}" for method in METHODS.values() for member in method.extension_members]
    return sorted(names)
