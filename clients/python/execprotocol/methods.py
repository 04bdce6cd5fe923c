"""The tables of methods, with parameters, results and scheduling, of events, and of requests of the server.

`counted` methods take a slot of `--concurrent-requests`; the others never wait for one
(`docs/protocol.md`, "Request scheduling").
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from execprotocol import environment, filesystem, handshake, http, network, port, process, search, watch
from execprotocol.model import Params


class Method(msgspec.Struct, frozen=True):
    """One method of the wire.

    `family` is the name in handshake errors; None for `initialize`. `open_to_all` methods need no handshake:
    they reveal nothing about a session.
    """

    name: str
    family: str | None
    params: type[Params]
    result: Any
    """The shape of the result, a `TypedDict`."""
    counted: bool = True
    open_to_all: bool = False
    extension: bool = False
    """Whether the reference does not have it."""
    later_members: tuple[str, ...] = ()
    """Members of an extension's parameters that a later version added, by their names on the wire."""

    @property
    def takes_nothing(self) -> bool:
        """Whether it has no parameters."""
        return self.params is environment.NoParams


_EXEC, _FS = "exec", "filesystem"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("initialize", None, handshake.InitializeParams, handshake.InitializeResult, counted=False),
        Method(
            "session/setTtl",
            "session",
            handshake.SetTtlParams,
            handshake.SetTtlResult,
            counted=False,
            extension=True,
        ),
        Method(
            "session/end",
            "session",
            environment.NoParams,
            handshake.EndResult,
            counted=False,
            extension=True,
        ),
        Method(
            "environment/info",
            "environment info",
            environment.NoParams,
            environment.EnvironmentInfo,
            counted=False,
        ),
        Method(
            "environment/status",
            "environment status",
            environment.NoParams,
            environment.EnvironmentStatus,
            counted=False,
        ),
        Method(
            "environmentConfig/read",
            "environment config",
            environment.ConfigReadParams,
            environment.ConfigReadResult,
        ),
        Method(
            "capabilityRoots/discoverV1",
            "capability discovery",
            environment.DiscoverV1Params,
            environment.DiscoverV1Result,
        ),
        Method(
            "capabilities/discoverV2",
            "capability discovery",
            environment.DiscoverV2Params,
            environment.DiscoverV2Result,
        ),
        Method(
            "process/start",
            _EXEC,
            process.StartParams,
            process.StartResult,
        ),
        Method(
            "process/read",
            _EXEC,
            process.ReadParams,
            process.ReadResult,
        ),
        Method(
            "process/write",
            _EXEC,
            process.WriteParams,
            process.WriteResult,
        ),
        Method(
            "process/signal",
            _EXEC,
            process.SignalParams,
            process.SignalResult,
            counted=False,
        ),
        Method(
            "process/terminate",
            _EXEC,
            process.TerminateParams,
            process.TerminateResult,
            counted=False,
        ),
        Method(
            "process/closeStdin",
            _EXEC,
            process.CloseStdinParams,
            process.CloseStdinResult,
            extension=True,
        ),
        Method(
            "process/resize",
            _EXEC,
            process.ResizeParams,
            process.ResizeResult,
            counted=False,
            extension=True,
        ),
        Method("process/list", _EXEC, process.ListParams, process.ListResult, extension=True),
        Method(
            "process/listForgotten",
            _EXEC,
            process.ListForgottenParams,
            process.ListForgottenResult,
            extension=True,
        ),
        Method("process/subscribe", _EXEC, process.SubscribeParams, process.SubscribeResult, extension=True),
        Method("process/unsubscribe", _EXEC, process.UnsubscribeParams, filesystem.Empty, extension=True),
        Method("port/list", _EXEC, port.PortListParams, port.PortListResult, extension=True),
        Method("port/open", _EXEC, port.PortOpenParams, port.PortOpenResult, extension=True),
        Method("fs/readFile", _FS, filesystem.ReadFileParams, filesystem.ReadFileResult),
        Method("fs/writeFile", _FS, filesystem.WriteFileParams, filesystem.Empty),
        Method(
            "fs/createDirectory",
            _FS,
            filesystem.CreateDirectoryParams,
            filesystem.Empty,
        ),
        Method("fs/getMetadata", _FS, filesystem.GetMetadataParams, filesystem.Metadata),
        Method("fs/canonicalize", _FS, filesystem.CanonicalizeParams, filesystem.CanonicalPath),
        Method("fs/readDirectory", _FS, filesystem.ReadDirectoryParams, filesystem.ReadDirectoryResult),
        Method("fs/walk", _FS, filesystem.WalkParams, filesystem.WalkResult),
        Method("fs/remove", _FS, filesystem.RemoveParams, filesystem.Empty),
        Method(
            "fs/copy",
            _FS,
            filesystem.CopyParams,
            filesystem.PutResult,
        ),
        Method("fs/install", _FS, filesystem.InstallParams, filesystem.PutResult, extension=True),
        Method("fs/setMetadata", _FS, filesystem.SetMetadataParams, filesystem.Empty, extension=True),
        Method("fs/rename", _FS, filesystem.RenameParams, filesystem.Empty, extension=True),
        Method(
            "fs/digest",
            _FS,
            filesystem.DigestParams,
            filesystem.DigestResult,
            extension=True,
            later_members=("size",),
        ),
        Method(
            "fs/applyEdits", _FS, filesystem.ApplyEditsParams, filesystem.ApplyEditsResult, extension=True
        ),
        Method("fs/putFiles", _FS, filesystem.PutFilesParams, filesystem.PutFilesResult, extension=True),
        Method("fs/getFiles", _FS, filesystem.GetFilesParams, filesystem.GetFilesResult, extension=True),
        Method("fs/search", _FS, search.SearchParams, search.SearchResult, extension=True),
        Method("fs/glob", _FS, search.GlobParams, search.GlobResult, extension=True),
        Method("fs/endSearch", _FS, search.EndSearchParams, filesystem.Empty, counted=False, extension=True),
        Method(
            "fs/open",
            _FS,
            filesystem.OpenParams,
            filesystem.OpenResult,
        ),
        Method("fs/readBlock", _FS, filesystem.ReadBlockParams, filesystem.ReadBlockResult),
        Method("fs/writeBlock", _FS, filesystem.WriteBlockParams, filesystem.Empty),
        Method("fs/close", _FS, filesystem.CloseParams, filesystem.Empty, counted=False),
        Method("fs/watchMissing", _FS, filesystem.WatchMissingParams, filesystem.WatchMissingResult),
        Method("fs/watch", _FS, watch.WatchParams, watch.WatchResult, extension=True),
        Method("fs/watchRead", _FS, watch.WatchReadParams, watch.WatchReadResult, extension=True),
        Method("fs/unwatch", _FS, watch.UnwatchParams, filesystem.Empty, extension=True),
        Method(
            "rpc.discover",
            "discovery",
            environment.NoParams,
            environment.OpenRpcDocument,
            counted=False,
            open_to_all=True,
            extension=True,
        ),
        Method("http/request", "http", http.HttpRequestParams, http.HttpRequestResult),
        Method(
            "server/health",
            "server",
            environment.NoParams,
            environment.Health,
            counted=False,
            open_to_all=True,
            extension=True,
        ),
    )
}

EVENTS: dict[str, Any] = {
    "process/output": process.OutputEvent,
    "process/exited": process.ExitedEvent,
    "process/closed": process.ClosedEvent,
    "fs/missingChanged": filesystem.MissingChangedEvent,
    "fs/changed": watch.ChangedEvent,
    "http/request/bodyDelta": http.BodyDeltaEvent,
    "network/policyDecision": network.PolicyDecisionEvent,
    "executor/draining": handshake.DrainingEvent,
    "port/listening": port.ListeningEvent,
}


EXTENSION_EVENTS = ("executor/draining", "fs/changed", "port/listening")
"""The events that the reference does not have."""


class ServerRequest(NamedTuple):
    """A request of the server, which the client answers."""

    params: type[Params]
    result: type[Params]


SERVER_REQUESTS: dict[str, ServerRequest] = {
    "network/policyRequest": ServerRequest(network.PolicyRequestParams, network.PolicyRequestResult),
}


def extension_names() -> list[str]:
    """The extensions to the reference, sorted: methods such as `fs/digest`, and parameters of other methods
    such as `process/start.size`; also events, such as `executor/draining`.
    """
    names = [method.name for method in METHODS.values() if method.extension]
    names += EXTENSION_EVENTS
    for method in METHODS.values():
        names += [f"{method.name}.{member}" for member in method.later_members]
        if method.family is not None and not method.extension:
            fields = msgspec.structs.fields(method.params)
            members = [each.encode_name for each in fields if each.name in method.params.extension_members]
            names += [f"{method.name}.{member}" for member in members]
    return sorted(names)
