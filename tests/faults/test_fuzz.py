"""Random messages, cut anywhere: the daemon answers each request exactly once and never fails.

Paths are drawn from a folder of the test's own only, whole, never cut: `fs/remove` is among the methods.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.service import Serve, Service
from tests.support.wire import Client, Json, WebSocketTransport, encode, path_uri

SECONDS = 3.0
BATCH = 150
SEED = int(os.environ.get("EXECSERVER_FUZZ_SEED", "1"))

JUNK: tuple[Json, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 1.5, 1e300),
    *("", "x", "\0", "ä\U0001f600", "x" * 70_000),
    *([], {}, [[]], [1, "a", None], {"a": {"b": []}}, list(range(300))),
)
BROKEN = (
    *(b"{", b"}", b"[]", b"[1]", b"nonsense", b'"text"', b"null", b"17", b'{"id":1}'),
    *(b'{"id":1.5,"method":"x"}', b'{"id":null,"method":"x"}', b'{"id":{},"method":"x"}'),
    *(b'{"id":1,"method":5}', b'{"id":1,"id":2,"method":"x"}', b'{"id":1,"method":"x"} trailing'),
    *(
        b'{"id":99999999999999999999,"method":"x"}',
        b'{"id":1e400,"method":"x"}',
        b'{"id":"\\ud800","method":"x"}',
    ),
    *(b'{"id":1,"method":"x","trace":5}', b'{"id":1,"method":"x","trace":{"traceparent":1}}'),
    *(b'{"x":"\\"","y":"\\"","y":1}', b'{"id":1,"method":"x","n":' + b"9" * 5000 + b"}"),
    b'{"a":' * 200 + b"1" + b"}" * 200,
)
FATAL = (
    b'{"method":"no/such/notification"}',
    b'{"id":5,"result":{}}',
    b'{"id":"x","error":{"code":1,"message":""}}',
    b'{"method":"process/start","params":{}}',
)


class Generator:
    """Messages that look like ours, more or less."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        (folder / "d" / "e").mkdir(parents=True, exist_ok=True)
        (folder / "f").write_bytes(b"content" * 1000)
        if not (folder / "fifo").exists():
            os.mkfifo(folder / "fifo")
            (folder / "link").symlink_to("nowhere")
        names = ("f", "g", "d", "d/e", "d/e/x", "fifo", "link", "none/of/it", "n" * 300)
        self._paths = [path_uri(folder / name) for name in names]
        self._next = 0
        path, chance = self._path, self._chance
        self._methods: dict[str, Callable[[], dict[str, Json]]] = {
            "initialize": lambda: {"clientName": "fuzz"},
            "environment/info": dict,
            "environment/status": dict,
            "environmentConfig/read": lambda: {
                "cwd": path(),
                "configPaths": [["a"]],
                "requirementsPaths": [],
            },
            "capabilityRoots/discoverV1": lambda: {"roots": []},
            "capabilities/discoverV2": lambda: {"cwd": path()},
            "no/such/method": dict,
            "process/start": self._start,
            "process/read": lambda: (
                self._process()
                | {
                    "afterSeq": chance.randrange(5),
                    "maxBytes": chance.choice([None, 0, 1, 9999]),
                    "waitMs": chance.randrange(40),
                }
            ),
            "process/write": lambda: (
                self._process() | {"chunk": encode("x" * chance.randrange(99)), "writeId": self._name()}
            ),
            "process/signal": lambda: (
                self._process()
                | {
                    "signal": chance.choice(
                        ["interrupt", "SIGTERM", "SIGSTOP", "SIGCONT", "SIGRTMIN+1", "no"]
                    ),
                    "scope": chance.choice(["group", "leader"] * 10 + ["tree"]),
                }
            ),
            "process/closeStdin": self._process,
            "process/resize": lambda: (
                self._process() | {"size": {"rows": chance.randrange(9), "cols": chance.randrange(70_000)}}
            ),
            "fs/rename": lambda: {
                "sourcePath": path(),
                "destinationPath": path(),
                "overwrite": chance.random() < 0.5,
            },
            "fs/install": lambda: {
                "sourcePath": path(),
                "destinationPath": path(),
                "permissions": chance.choice([None, 0o600, 0o7777, -1, 8**4]),
            },
            "fs/setMetadata": lambda: {"path": path(), "modifiedAtNs": chance.choice([0, -1, 2**62, 2**63])},
            "fs/digest": lambda: {"path": path()},
            "fs/applyEdits": lambda: {"edits": [self._edit() for _ in range(chance.randrange(5))]},
            "fs/putFiles": lambda: {
                "entries": [
                    {
                        "path": path(),
                        "permissions": chance.choice([0o600, 0o7777, -1]),
                        "dataBase64": chance.choice([None, "YQ==", "", "!", encode(bytes(5000))]),
                        "sha256": chance.choice([None, None, "0" * 64, "0"]),
                    }
                    for _ in range(chance.randrange(5))
                ],
                "keepMode": chance.random() < 0.5,
            },
            "fs/getFiles": lambda: {
                "paths": [path() for _ in range(chance.randrange(5))],
                "maxBytes": chance.choice([0, 3, 4 << 20, 5 << 20, -1]),
            },
            "process/terminate": lambda: (
                self._process() | ({"scope": "tree"} if chance.random() < 0.05 else {})
            ),
            "fs/readFile": lambda: {"path": path()},
            "fs/writeFile": lambda: {
                "path": path(),
                "dataBase64": chance.choice(["YQ==", "", "YQ", "!", encode(bytes(5000))]),
            },
            "fs/createDirectory": lambda: {"path": path(), "recursive": chance.random() < 0.5},
            "fs/getMetadata": lambda: {"path": path()},
            "fs/canonicalize": lambda: {"path": path()},
            "fs/readDirectory": lambda: {"path": path()},
            "fs/walk": lambda: {"path": path(), "options": self._walk()},
            "fs/remove": lambda: {
                "path": path(),
                "recursive": chance.random() < 0.5,
                "force": chance.random() < 0.5,
            },
            "fs/copy": lambda: {
                "sourcePath": path(),
                "destinationPath": path(),
                "recursive": chance.random() < 0.5,
            },
            "fs/open": lambda: (
                self._handle() | {"path": path(), "mode": chance.choice(["read", "replace", "append"])}
            ),
            "fs/readBlock": lambda: (
                self._handle()
                | {"offset": chance.choice([0, 5, 2**63, 2**64 - 1]), "len": chance.choice([0, 1, 1 << 20])}
            ),
            "fs/writeBlock": lambda: (
                self._handle() | {"offset": chance.choice([0, 9, 2**63 - 1]), "chunk": "YQ=="}
            ),
            "fs/close": self._handle,
            "fs/watchMissing": lambda: {
                "watchId": chance.randrange(2**40),
                "missing": [path(), path()],
                "present": None,
            },
            "http/request": lambda: {"method": "GET", "url": "nonsense://", "requestId": self._name()},
        }

    def request(self) -> tuple[int, bytes]:
        """A request whose id is new."""
        self._next += 1
        method = self._chance.choice(list(self._methods))
        params: Json = self._methods[method]()
        if params and self._chance.random() < 0.3:
            params = self._mutated(params)
        message = {"id": self._next, "method": method, "params": params}
        if self._chance.random() < 0.1:
            message["trace"] = {"traceparent": "x"}
        return self._next, json.dumps(message, ensure_ascii=self._chance.random() < 0.5).encode()

    def broken(self) -> bytes:
        """A message that is a parse error."""
        return self._chance.choice(BROKEN)

    def pieces(self, data: bytes) -> list[bytes]:
        """The same bytes, cut at random."""
        cuts = sorted(self._chance.randrange(len(data) + 1) for _ in range(self._chance.randrange(12)))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def chance(self, share: float) -> bool:
        """True in that share of the cases."""
        return self._chance.random() < share

    def _mutated(self, params: dict[str, Json]) -> Json:
        kind = self._chance.randrange(4)
        name = self._chance.choice(list(params))
        if kind == 0:
            return {other: value for other, value in params.items() if other != name}
        if kind == 1:
            value = self._chance.choice(JUNK)
            # A number that is a valid time to wait would be waited for.
            return params | ({} if name == "waitMs" and type(value) is int and value > 0 else {name: value})
        if kind == 2:
            return list(params.values())
        return self._chance.choice([value for value in JUNK if value not in ({}, None)])

    def _path(self) -> str:
        return self._chance.choice(self._paths)

    def _name(self) -> str:
        return self._chance.choice(["a", "b", "c", "d", ""])

    def _process(self) -> dict[str, Json]:
        return {"processId": self._name()}

    def _handle(self) -> dict[str, Json]:
        return {"handleId": self._chance.choice(["h", "i", "", "h" * 33])}

    def _edit(self) -> Json:
        chance = self._chance
        return {
            "op": chance.choice(["write", "remove", "no"]),
            "path": self._path(),
            "dataBase64": chance.choice(["YQ==", "", "YQ"]),
            "expected": chance.choice([None, None, {"absent": True}, {"sha256": "0" * 64}, {}]),
            "createParents": chance.random() < 0.5,
            **({"modeFrom": self._path()} if chance.random() < 0.2 else {}),
        }

    def _walk(self) -> dict[str, Json]:
        limits = {
            name: self._chance.choice([0, 1, 3, 10**6])
            for name in ("maxDepth", "maxDirectories", "maxEntries")
        }
        return limits | {"followDirectorySymlinks": self._chance.random() < 0.5}

    def _start(self) -> dict[str, Json]:
        argv = self._chance.choice(
            [["/bin/true"], ["echo", "hi"], ["/bin/cat"], ["/nonexistent"], [""], [], ["/bin/sleep", "0.05"]]
        )
        return self._process() | {
            "argv": argv,
            "cwd": self._chance.choice(["file:///", self._path()]),
            "env": self._chance.choice([{}, {"PATH": "/bin"}, {"A=B": ""}, {"": ""}, {"PATH": "\0"}]),
            "tty": self._chance.random() < 0.3,
            "pipeStdin": self._chance.random() < 0.5,
        }


def _wait_for_replies(client: Client, count: int) -> None:
    client.wait_until(lambda: len(client.reply_order()) >= count, 10, "all replies")


def _frame(client: Client, message: bytes, cut: bool) -> bytes:
    if not isinstance(client.transport, WebSocketTransport):
        return message + b"\n"
    frame = WebSocketTransport.frame
    if not cut:
        return frame(WebSocketTransport.TEXT, message)
    middle = len(message) // 2
    return frame(WebSocketTransport.BINARY, message[:middle], fin=False) + frame(0, message[middle:])


@pytest.mark.parametrize("flags", [(), ("--concurrent-requests", "1"), ("--concurrent-requests", "3")])
def test_random_messages_are_each_answered_once(
    transport: str, flags: tuple[str, ...], serve: Serve, folder: Path
) -> None:
    service = serve(transport, *flags)
    client = service.connect()
    generator = Generator(folder / "files", SEED)
    handshake = len(client.reply_order())
    wanted: Counter[Any] = Counter()
    until = time.monotonic() + (SECONDS if not flags else SECONDS / 4)
    while time.monotonic() < until:
        data = b""
        for _ in range(BATCH):
            if generator.chance(0.05):
                wanted[-1] += 1
                data += _frame(client, generator.broken(), generator.chance(0.2))
            else:
                number, message = generator.request()
                wanted[f"r{number}"] += 1
                renamed = message.replace(b'{"id": %d,' % number, b'{"id": "r%d",' % number, 1)
                data += _frame(client, renamed, generator.chance(0.2))
        for piece in generator.pieces(data):
            client.transport.send_bytes(piece)
        total = handshake + wanted.total()
        _wait_for_replies(client, total)
    answered = Counter(client.reply_order()[handshake:])
    assert answered == wanted
    internal = [
        message for message in client.received if message.get("error", {}).get("message") == "internal error"
    ]
    assert internal == []
    assert service.failures() == []
    assert client.call("environment/status") == {"status": "ready"}


@pytest.mark.over("unix", "ws")
def test_connections_that_end_by_their_own_fault_leave_the_daemon_well(
    transport: str, serve: Serve, folder: Path
) -> None:
    service: Service = serve(transport, "--session-ttl", "1")
    witness, generator = service.connect(), Generator(folder / "files", SEED)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        client = service.connect(handshake=generator.chance(0.8))
        data = b"".join(_frame(client, generator.request()[1], generator.chance(0.3)) for _ in range(30))
        data += _frame(client, random.Random(len(data)).choice(FATAL), cut=False)
        try:
            for piece in generator.pieces(data):
                client.transport.send_bytes(piece)
        except OSError:
            pass  # dropped before all of it was sent
        client.wait_end()
        client.close()
        witness.call("environment/status")
    assert service.failures() == []
