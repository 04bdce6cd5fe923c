"""Acts for the audit folder: the requests that start, end or change something, each with its outcome.

An act is described by its parameters, without contents, values of the environment, and of a URL only the
host. A request whose parameters do not decode is no act.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Generator, Iterable, Iterator, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from msgspec.structs import replace

from execprotocol.errors import InvalidParams, InvalidRequest, RpcError
from execprotocol.model import decode_base64
from execserver.audit.trail import AuditTrail
from execserver.processes.start_options import bounded_argv, bounded_path
from execserver.rpc.handlers import Caller, Encoded, Handler, Handlers, Result, StreamedResult

ACTS = frozenset(
    {
        *("session/end", "session/setTtl", "http/request", "port/open"),
        *("process/start", "process/write", "process/closeStdin", "process/signal", "process/terminate"),
        *("fs/writeFile", "fs/createDirectory", "fs/remove", "fs/copy", "fs/install", "fs/setMetadata"),
        *("fs/rename", "fs/applyEdits", "fs/putFiles", "fs/open", "fs/writeBlock"),
    }
)
"""The methods that are written down; `fs/open` only if it is to write."""

_PLAIN = {
    "process_id": "processId",
    "session_id": "ofSession",
    "signal": "signal",
    "scope": "scope",
    "port": "port",
    "handle_id": "handleId",
    "offset": "offset",
    "mode": "mode",
    "permissions": "permissions",
    "recursive": "recursive",
}
_PATHS = {"cwd": "cwd", "path": "path", "source_path": "sourcePath", "destination_path": "destinationPath"}
_CONTENTS = ("chunk", "data_base64", "body_base64")
_LISTS = ("edits", "entries")

MAX_LISTED = 100
"""Files of one request that are named; `files` has their number."""

_AT_ONCE_BYTES = 256 << 10
"""Contents up to which the digest is computed on the event loop."""


def audited(handlers: Handlers, trail: AuditTrail) -> Handlers:
    """The handlers, of which those of acts write them down."""
    return {name: _audited(name, each, trail) if name in ACTS else each for name, each in handlers.items()}


def _audited(method: str, handler: Handler, trail: AuditTrail) -> Handler:
    def call(caller: Caller, params: Any) -> Result | Awaitable[Result]:
        if method == "fs/open" and params.mode == "read":
            return handler(caller, params)
        if sum(map(len, _contents(params))) > _AT_ONCE_BYTES:
            return later(caller, params)
        return run(caller, params, _members(method, caller, params))

    async def later(caller: Caller, params: Any) -> Result:
        members = await asyncio.to_thread(_members, method, caller, params)
        result = run(caller, params, members)
        return await result if isinstance(result, _OpenAct) else cast("Result", result)

    def run(caller: Caller, params: Any, members: dict[str, Any]) -> Result | Awaitable[Result]:
        trail.begin()
        try:
            result = handler(caller, params)
        except BaseException as error:
            trail.end({**members, **_failure(error)})
            raise
        act = _OpenAct(trail, members, numbered=method == "process/start" and caller.extensions)
        if isinstance(result, (Mapping, Encoded, StreamedResult)):
            return act.done(result)
        act.work = result
        return act

    return call


class _OpenAct(Awaitable[Result]):
    """An act that is going on: the awaitable of its handler, which also writes it down.

    Args:
        trail: where to.
        members: its description.
        numbered: whether the result has the number of the act.
    """

    def __init__(self, trail: AuditTrail, members: dict[str, Any], *, numbered: bool) -> None:
        self.work: Awaitable[Result]
        self._trail = trail
        self._members = members
        self._numbered = numbered
        self._is_open = True

    def __await__(self) -> Generator[Any, None, Result]:
        try:
            result = yield from self.work.__await__()
        except BaseException as error:
            self._end(_failure(error))
            raise
        return self.done(result)

    def close(self) -> None:
        """End the act, if it is going on: a task that is cancelled early never awaits it."""
        if self._is_open:
            self._end(_failure(asyncio.CancelledError()))
            close = getattr(self.work, "close", None)
            if close is not None:
                close()

    def done(self, result: Result) -> Result:
        """The act has succeeded; its result for the client."""
        more = {"status": result["status"]} if isinstance(result, Mapping) and "status" in result else {}
        number = self._end({"decision": "allowed", "outcome": "ok", **more})
        if self._numbered and number and isinstance(result, Encoded):
            return replace(result, json=result.json[:-1] + b',"audit":%d}' % number)
        return result

    def _end(self, outcome: Mapping[str, Any]) -> int | None:
        self._is_open = False
        return self._trail.end({**self._members, **outcome})


def _failure(error: BaseException) -> dict[str, str]:
    refused = isinstance(error, (InvalidRequest, InvalidParams))
    if isinstance(error, RpcError):
        outcome = error.name
    elif isinstance(error, asyncio.CancelledError):
        outcome = "cancelled"
    else:
        outcome = "failed"
    return {"decision": "refused" if refused else "allowed", "outcome": outcome}


def _members(method: str, caller: Caller, params: Any) -> dict[str, Any]:
    """The description of a request."""
    members: dict[str, Any] = {
        "session": caller.session.id,
        "peer": caller.peer_proof or _client_of_relay(caller),
        "method": method,
    }
    if (argv := getattr(params, "argv", None)) is not None:
        members["argv"] = bounded_argv(argv)
    for name, member in _PLAIN.items():
        if (value := getattr(params, name, None)) is not None:
            members[member] = value
    for name, member in _PATHS.items():
        if (path := getattr(params, name, None)) is not None:
            members[member] = bounded_path(str(path))
    if (url := getattr(params, "url", None)) is not None:
        members["host"] = _host(url)
    if hasattr(params, "sandbox"):
        members["sandbox"] = _sandbox(params.sandbox)
    for name in _LISTS:
        if (files := getattr(params, name, None)) is not None:
            members["files"] = len(files)
            members[name] = [_file(each) for each in files[:MAX_LISTED]]
    return members | _written(params)


def _client_of_relay(caller: Caller) -> str:
    return f"key:{caller.key_fingerprint}" if caller.key_fingerprint else "unknown"


def _file(entry: Any) -> dict[str, Any]:
    op = entry.__struct_config__.tag  # of an edit
    return ({"op": op} if op else {}) | {"path": bounded_path(str(entry.path))} | _written(entry)


def _written(params: Any) -> dict[str, Any]:
    """The size and the digest of what a request writes."""
    for content in _own_contents(params):
        try:
            data = content if isinstance(content, bytes) else decode_base64(_encoded(content))
        except ValueError:
            return {}  # the handler refuses it
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {}


def _encoded(content: str | memoryview) -> bytes | memoryview:
    return content.encode() if isinstance(content, str) else content


def _own_contents(params: Any) -> Iterator[bytes | str | memoryview]:
    for name in _CONTENTS:
        if (content := getattr(params, name, None)) is not None:
            yield cast("bytes | str | memoryview", content)


def _contents(params: Any) -> Iterator[bytes | str | memoryview]:
    yield from _own_contents(params)
    for name in _LISTS:
        entries: Iterable[Any] = getattr(params, name, None) or ()
        for entry in entries:
            yield from _own_contents(entry)


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}"
    except ValueError:
        return ""


def _sandbox(context: Any) -> str:
    """The kind of a request's sandbox; `none` if it asks for none."""
    return "none" if context is None else str(context.permissions.__struct_config__.tag)
