"""What a message may do to this machine, and what the daemon owes for it.

A mutated message may ask for anything, so each is decoded with the daemon's own decoders before it is
sent, and is not sent unless what it asks for is harmless: only commands of the corpus are started, only
paths in the folder of the run are touched, nothing is asked for over the network, and nothing is waited for.
What the daemon owes is worked out here once more, from `docs/protocol.md`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from execprotocol import filesystem, http, process, watch
from execprotocol.errors import InvalidParams
from execprotocol.methods import METHODS
from execprotocol.model import Params
from execprotocol.path_uri import ForeignPath
from execserver.rpc import codec
from execserver.rpc.codec import ParseError
from execserver.rpc.params import decode_params
from tests.support.wire import Json

LONGEST_WAIT_MS = 20
LARGEST_OFFSET = 1 << 20
"""Of a written block: beyond, a sparse file would be read and copied at length."""
UNWRITABLE_OFFSET = 2**63 - 1

MOST_IN_BATCH = 100


@dataclass(frozen=True)
class Verdict:
    """What the daemon does with one message: how many replies it sends (in one array for a batch), or
    ends the connection."""

    replies: int = 0
    ends: bool = False


class Judge:
    """Knows the folder of the run and the commands of the corpus.

    Args:
        folder: the only place where anything may be changed.
        seeds: whose commands may be started.
        standard: the dialect of the connection.
        text_framing: whether bytes that are not UTF-8 end a lean connection.
    """

    def __init__(self, folder: Path, seeds: Iterable[Json], *, standard: bool, text_framing: bool) -> None:
        self._folder = str(folder)
        self._commands = {tuple(argv) for argv in _commands(seeds)}
        self._standard = standard
        self._text_framing = text_framing

    def verdict(self, message: bytes | bytearray) -> Verdict | None:
        """What comes of a message; None for one that must not be sent."""
        return self._of_standard(message) if self._standard else self._of_lean(message)

    def harmless_in_any_dialect(self, message: bytes) -> bool:
        """Whether a message may be sent where the dialect is not chosen yet."""
        return self._of_lean(message) is not None and self._of_standard(message) is not None

    def _of_lean(self, message: bytes | bytearray) -> Verdict | None:
        try:
            decoded = codec.decode(message)
        except ParseError:
            return Verdict(ends=True) if self._text_framing and not _is_utf8(message) else Verdict(1)
        if isinstance(decoded, codec.Request):
            return Verdict(1) if self.harmless(decoded.method, decoded.params) else None
        if isinstance(decoded, codec.Notification) and decoded.method == "initialized":
            return Verdict()
        return Verdict(ends=True)

    def _of_standard(self, message: bytes | bytearray) -> Verdict | None:
        try:
            value = codec.decode_any(message)
        except ParseError:
            return Verdict(1)
        if isinstance(value, dict):
            return self._of_one(value)
        if not 1 <= len(value) <= MOST_IN_BATCH:
            return Verdict(1)
        verdicts = [self._of_one(item) for item in value]
        if None in verdicts:
            return None
        return Verdict(sum(verdict.replies for verdict in verdicts if verdict is not None))

    def _of_one(self, message: Json) -> Verdict | None:
        if not isinstance(message, dict):
            return Verdict(1)
        if "method" not in message and "id" in message and ("result" in message or "error" in message):
            return Verdict()
        method = message.get("method")
        if isinstance(method, str) and not self.harmless(method, message.get("params")):
            return None
        return Verdict(0 if _is_notification(message) else 1)

    # -- what may be asked for

    def harmless(self, method: str, params: Json) -> bool:
        """Whether a request may be made on this machine."""
        if method not in METHODS:
            return True
        try:
            decoded = decode_params(METHODS[method], params)
        except InvalidParams:
            return True
        return self._harmless_params(decoded)

    def _harmless_params(self, params: Params) -> bool:
        if isinstance(params, process.StartParams):
            return tuple(params.argv) in self._commands
        if isinstance(params, process.ReadParams):
            return (params.wait_ms or 0) <= LONGEST_WAIT_MS
        if isinstance(params, watch.WatchReadParams):
            return (params.wait_ms or 0) <= LONGEST_WAIT_MS
        if isinstance(params, http.HttpRequestParams):
            return ":" not in params.url
        if isinstance(params, filesystem.WriteBlockParams):
            return not LARGEST_OFFSET < params.offset < UNWRITABLE_OFFSET
        if isinstance(params, filesystem.CopyParams):
            return self._harmless_copy(params)
        if isinstance(params, filesystem.GetMetadataParams | filesystem.CanonicalizeParams):
            return True
        if isinstance(params, filesystem.WatchMissingParams):
            present = [] if params.present is None else [params.present]
            return all(self._is_ours(path) for path in [*params.missing, *present])
        if isinstance(params, filesystem.ReadDirectoryParams | filesystem.WalkParams):
            return self._is_ours(params.path, itself=True)
        if isinstance(params, filesystem.ReadFileParams):
            return self._is_ours(params.path) or not os.path.lexists(params.path)
        path = getattr(params, "path", None)
        return path is None or self._is_ours(path)

    def _harmless_copy(self, params: filesystem.CopyParams) -> bool:
        # Folders are copied one level below ours only, or copies of copies would grow without end.
        ends = (params.source_path, params.destination_path)
        return all(self._is_ours(path) for path in ends) and (
            not params.recursive or all(self._is_child(path) for path in ends)
        )

    def _is_ours(self, path: str, *, itself: bool = False) -> bool:
        """Whether nothing outside of the folder can be meant. `path` has no dot segments any more."""
        if isinstance(path, ForeignPath):
            return True
        return (itself and path == self._folder) or (
            path.startswith(self._folder + "/") and os.path.normpath(path) == path
        )

    def _is_child(self, path: str) -> bool:
        return isinstance(path, ForeignPath) or os.path.dirname(path) == self._folder


def _is_notification(message: dict[str, Any]) -> bool:
    """A request without an id, whose envelope is right: anything else is answered."""
    trace = message.get("trace")
    return (
        "id" not in message
        and message.get("jsonrpc") == "2.0"
        and isinstance(message.get("method"), str)
        and isinstance(message.get("params"), dict | list | None)
        and (
            trace is None
            or (
                isinstance(trace, dict)
                and all(isinstance(trace.get(name), str | None) for name in ("traceparent", "tracestate"))
            )
        )
    )


def _commands(seeds: Iterable[Json]) -> Iterator[list[str]]:
    for seed in seeds:
        if isinstance(seed, list):
            yield from _commands(seed)
        elif isinstance(seed, dict) and seed.get("method") == "process/start":
            argv = seed["params"].get("argv") if isinstance(seed.get("params"), dict) else None
            if isinstance(argv, list) and argv and all(isinstance(word, str) for word in argv):
                yield argv


def _is_utf8(message: bytes | bytearray) -> bool:
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True
