"""Records what tests send, as seeds for the fuzzing: a plugin of pytest.

    python -m pytest -p tests.fuzz.record tests/e2e tests/conformance

writes `corpus/lean.jsonl` and `corpus/standard.jsonl` anew: a message a line, a few of each shape, the
folder of the test replaced by `@FOLDER@`. Commands that run long or name a file of their test are left
out: what stands in the corpus is started by the fuzzing as it stands there.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import wire
from tests.support.wire import Client, Json

CORPUS = Path(__file__).parent / "corpus"
FOLDER = "@FOLDER@"

LARGEST = 2048
"""Bytes of a seed. Mutations of a long payload are mutations of its payload only."""

OF_ONE_SHAPE = 3
"""Seeds of one method with the same members."""

MOST_BYTES = 60_000
"""Of one dialect's corpus, so that it stays fit to be kept."""

_TEST_FOLDER = re.compile(r"file:///tmp/[^\"\\]*?/test_[^/\"\\]+")
_LONG_RUNNING = re.compile(r"sleep|/dev/|/tmp|yes|while|read|mkfifo|nohup|setsid|head|dd|seq|trap|kill|&")

_messages: dict[str, list[str]] = {"lean": [], "standard": []}
_shapes: Counter[str] = Counter()


def _shape(message: Json) -> str:
    if isinstance(message, list):
        return f"batch of {[_shape(item) for item in message[:4]]}"
    if not isinstance(message, dict):
        return type(message).__name__
    params = message.get("params")
    members = sorted(params) if isinstance(params, dict) else type(params).__name__
    return f"{sorted(message)} {message.get('method')} {members}"


def _harmless(message: Json) -> bool:
    if isinstance(message, list):
        return all(map(_harmless, message))
    if not isinstance(message, dict) or message.get("method") != "process/start":
        return True
    params = message.get("params")
    argv = params.get("argv") if isinstance(params, dict) else None
    return isinstance(argv, list) and not _LONG_RUNNING.search(json.dumps(argv))


def _note(standard: bool, message: Json) -> None:
    dialect = "standard" if standard else "lean"
    text = _TEST_FOLDER.sub(f"file://{FOLDER}", json.dumps(message))
    shape = f"{dialect} {_shape(message)}"
    if len(text) > LARGEST or not _harmless(message) or text in _messages[dialect]:
        return
    if _shapes[shape] < OF_ONE_SHAPE:
        _shapes[shape] += 1
        _messages[dialect].append(text)


def _noting(send: Callable[..., Any]) -> Callable[..., Any]:
    def noted(self: Client, *messages: Any) -> Any:
        for message in messages:
            if not isinstance(message, bytes):
                _note(self.standard, message)
        return send(self, *messages)

    return noted


def pytest_configure(config: pytest.Config) -> None:
    """Listen in on every client."""
    for name in ("send", "send_all"):
        setattr(wire.Client, name, _noting(getattr(wire.Client, name)))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Keep what was heard."""
    for dialect, messages in _messages.items():
        kept, size = [], 0
        for text in messages:
            size += len(text) + 1
            if size <= MOST_BYTES:
                kept.append(text)
        if kept:
            (CORPUS / f"{dialect}.jsonl").write_text("\n".join(kept) + "\n")
