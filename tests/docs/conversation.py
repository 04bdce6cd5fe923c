"""The messages of a page, typed into a daemon on stdio, and its answers compared with those shown."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from execprotocol.methods import EVENTS, METHODS, SERVER_REQUESTS
from execprotocol.model import decode
from execserver.rpc.params import decode_params
from tests.docs.commands import ANYTHING

PATIENCE = 20.0


def values_of(text: str) -> Iterator[Any]:
    """The JSON values that stand in a text one after the other."""
    decoder = json.JSONDecoder()
    position = 0
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        value, position = decoder.raw_decode(text, position)
        yield value


def is_of_client(message: Any) -> bool:
    """Whether a client sends it; a batch is judged by its first member."""
    if isinstance(message, list):
        return bool(message) and is_of_client(message[0])
    return isinstance(message, dict) and (
        message.get("method") in METHODS or message.get("method") == "initialized"
    )


def check_message(message: Any) -> None:
    """Fail for a message of the wire that a daemon would not understand; other JSON passes."""
    if not isinstance(message, dict) or "method" not in message:
        return
    name = message["method"]
    if name in METHODS:
        decode_params(METHODS[name], message.get("params"))
    elif name in SERVER_REQUESTS:
        decode(SERVER_REQUESTS[name].params, message.get("params"))
    else:
        assert name in EVENTS or name == "initialized", f"no method and no event is called {name!r}"


def same(expected: Any, actual: Any) -> bool:
    """Whether a message is what the page shows: `…` stands for any text or value, and as the name of a
    member for any further members.
    """
    if isinstance(expected, str) and ANYTHING in expected:
        pattern = ".*".join(re.escape(part) for part in expected.split(ANYTHING))
        return expected == ANYTHING or (
            isinstance(actual, str) and bool(re.fullmatch(pattern, actual, re.DOTALL))
        )
    if isinstance(expected, dict) and isinstance(actual, dict):
        open_end = ANYTHING in expected
        named = {name: value for name, value in expected.items() if name != ANYTHING}
        return (open_end or named.keys() == actual.keys()) and all(
            name in actual and same(value, actual[name]) for name, value in named.items()
        )
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(same, expected, actual))
    return type(expected) is type(actual) and bool(expected == actual)


class Conversation:
    """A daemon on stdio."""

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def exchange(self, message: Any) -> None:
        """Type it when it is a client's, else wait for it."""
        if is_of_client(message):
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            return
        line = self._lines.get(timeout=PATIENCE)
        assert line, f"the daemon ended instead of saying {message}"
        assert same(message, json.loads(line)), f"the page says {json.dumps(message)}\nthe daemon says {line}"

    def end(self) -> None:
        """Press Ctrl-D. Messages of the daemon that the page does not show are ignored."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._process.wait(PATIENCE)
        self.kill()
        assert status == 0, f"the daemon ended with status {status}"

    def kill(self) -> None:
        """End it, however the page went, and let go of its pipes."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join(PATIENCE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
