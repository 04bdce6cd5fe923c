"""Messages that were real once. Pure: the same chance makes the same message from the same seeds,
wherever the run has its folder.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.wire import Json

CORPUS = Path(__file__).parent / "corpus"
FOLDER = "@FOLDER@"
"""Stands for the folder of the run until the message is sent."""

JUNK: tuple[Json, ...] = (
    *(None, True, False, 0, 1, -1, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**40),
    *(0.5, -0.0, 1e300, 1e-320),
    *("", "x", " ", "0", "null", "\0", "a\nb", "\x7f", "x" * 5000, "A" * 33),
    *("\ud800", "\udfff\ud800", "\ufeff", "\u202ex", "e\u0301", "\u00e9", "\U0001f600", "İ", "\u2028"),
    *("p1", "YQ==", "YQ", "file:///", f"file://{FOLDER}", f"file://{FOLDER}/%00", "file:///%ff", "//x/y"),
    *([], {}, [[]], [{}], {"": None}, [1, "a", None], {"a": {"b": [0]}}, list(range(200))),
)
NUMBERS = (b"-0", b"1e400", b"1E5", b"00", b"-", b"9" * 400, b"0." + b"3" * 300, b"NaN", b"-Infinity", b"+1")
BYTES = (
    *(b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5", b"\xef\xbb\xbf", b"\x85", b"\\u", b"\\uD83D"),
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\n", b"\r", b"\t", b"//", b"tru", b"{}", b" " * 300),
)
NAMES = {
    "processId": ("p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", ""),
    "handleId": ("h", "w", "i", "j", ""),
    "writeId": tuple(f"w{number}" for number in range(40)),
    "watchId": tuple(range(0, 2000, 7)),
    "afterSeq": (0, 1, 2, 5),
}
"""Changed to another good one: what is in use, was in use, or is free."""

DEEP = 400
LONGEST_BATCH = 120
RENAMED = "renamed"


def load(dialect: str) -> list[Json]:
    """The seeds for a dialect: its own, and those of the other one translated."""
    own = _read(dialect)
    other = _read("lean" if dialect == "standard" else "standard")
    translated = [
        _translated(message, dialect)
        for message in other
        if isinstance(message, dict) and "method" in message
    ]
    return own + [message for message in translated if message not in own]


def _read(dialect: str) -> list[Json]:
    return [json.loads(line) for line in (CORPUS / f"{dialect}.jsonl").read_text().splitlines()]


def _translated(message: dict[str, Json], dialect: str) -> Json:
    members = {name: value for name, value in message.items() if name != "jsonrpc"}
    return {"jsonrpc": "2.0", **members} if dialect == "standard" else members


class Mutator:
    """Makes messages out of seeds.

    Args:
        seeds: decoded messages.
        chance: decides everything.
        folder: of the run.
    """

    def __init__(self, seeds: Sequence[Json], chance: random.Random, folder: Path) -> None:
        self._seeds = seeds
        self._chance = chance
        self._folder = str(folder).encode()
        self._next = 0
        self._of_bytes: tuple[Callable[[bytes], bytes], ...] = (
            *(self._flip, self._flip, self._truncate, self._splice, self._cut_out, self._repeat),
            *(self._insert, self._insert, self._number, self._nest, self._double_member),
        )

    def message(self) -> bytes:
        """One message."""
        return self._mutated().replace(FOLDER.encode(), self._folder)

    def _mutated(self) -> bytes:
        chance = self._chance.random()
        if chance < 0.03:
            count = self._chance.choice((0, 1, 2, 3, 5, LONGEST_BATCH if chance < 0.0005 else 7))
            return b"[%b]" % b",".join(self._one() for _ in range(count))
        return self._one()

    def _one(self) -> bytes:
        message = self._chance.choice(self._seeds)
        if isinstance(message, dict) and "id" in message and self._chance.random() < 0.9:
            self._next += 1
            message = message | {"id": self._next if self._chance.random() < 0.5 else f"r{self._next}"}
        for _ in range(self._times()):
            message = self._changed(message)
        data = json.dumps(message, ensure_ascii=self._chance.random() < 0.8).encode("utf-8", "surrogatepass")
        if self._chance.random() < 0.2:
            for _ in range(self._times()):
                data = self._chance.choice(self._of_bytes)(data)
        return data

    def _times(self) -> int:
        return self._chance.choice((0, 0, 1, 1, 1, 2, 3))

    # -- of the decoded message

    def _changed(self, message: Json) -> Json:
        """Most changes are to parameters: what is wrong with an envelope is soon found."""
        params = message.get("params") if isinstance(message, dict) else None
        if not isinstance(params, dict) or not params or self._chance.random() < 0.15:
            return self._restructured(message)
        if self._chance.random() < 0.5:
            named = [name for name in NAMES if name in params]
            return message | {"params": params | {name: self._chance.choice(NAMES[name]) for name in named}}
        return message | {"params": self._restructured(params)}

    def _restructured(self, value: Json) -> Json:
        """A copy with one change, somewhere: each container on the way is as likely as its child."""
        if isinstance(value, dict) and value:
            name = self._chance.choice(list(value))
            if isinstance(value[name], dict | list) and value[name] and self._chance.random() < 0.85:
                return value | {name: self._restructured(value[name])}
            return self._changed_member(value, name)
        if isinstance(value, list) and value:
            place = self._chance.randrange(len(value))
            changed: Any = self._restructured(value[place])
            return [*value[:place], changed, *value[place + self._chance.choice((0, 1, 1)) :]]
        return self._replaced(value)

    def _changed_member(self, value: dict[str, Json], name: str) -> Json:
        kind = self._chance.randrange(8)
        if kind == 0:
            return {other: value[other] for other in value if other != name}
        if kind == 1:
            return {(RENAMED if other == name else other): value[other] for other in value}
        if kind == 2:
            return list(value.values())
        if kind == 3:
            return value | {f"{name}{RENAMED}": self._chance.choice(JUNK)}
        if kind == 4:
            return value | {name: self._of_another(name, value[name])}
        return value | {name: self._replaced(value[name])}

    def _of_another(self, name: str, default: Json) -> Json:
        """What another seed has there."""
        other = self._chance.choice(self._seeds)
        if not isinstance(other, dict):
            return default
        params = other.get("params")
        if isinstance(params, dict) and name in params:
            return params[name]
        return other.get(name, default)

    def _replaced(self, value: Json) -> Json:
        kind = self._chance.randrange(4)
        if kind == 0 and isinstance(value, int):
            return value + self._chance.choice((1, -1, 2**16, 2**32, 2**63))
        if kind == 0 and isinstance(value, str):
            return value + self._chance.choice(("x", "/", "/x", "/..", "\0", "%2e%2e", " ", "ä"))
        if kind == 1:
            return [value]
        if kind == 2 and isinstance(value, str) and value:
            return value[: self._chance.randrange(len(value))]
        return self._chance.choice(JUNK)

    # -- of its bytes

    def _place(self, data: bytes) -> int:
        return self._chance.randrange(len(data) + 1)

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        changed = bytearray(data)
        changed[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)
        return bytes(changed)

    def _truncate(self, data: bytes) -> bytes:
        return data[: self._place(data)]

    def _splice(self, data: bytes) -> bytes:
        other = json.dumps(self._chance.choice(self._seeds)).encode()
        return data[: self._place(data)] + other[self._place(other) :]

    def _cut_out(self, data: bytes) -> bytes:
        start = self._place(data)
        return data[:start] + data[start + self._chance.randrange(1, 9) :]

    def _repeat(self, data: bytes) -> bytes:
        start = self._place(data)
        return data[:start] + data[start : start + 30] * self._chance.choice((2, 2, 50)) + data[start + 30 :]

    def _insert(self, data: bytes) -> bytes:
        place = self._place(data)
        return data[:place] + self._chance.choice(BYTES) + data[place:]

    def _number(self, data: bytes) -> bytes:
        place = data.find(b": ", self._place(data)) + 2
        return data[:place] + self._chance.choice(NUMBERS) + data[place:].lstrip(b"0123456789")

    def _nest(self, data: bytes) -> bytes:
        place = data.find(b": ", self._place(data)) + 2
        depth = self._chance.choice((120, 124, 128, DEEP))
        opened, closed = self._chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
        return data[:place] + opened * depth + b"1" + closed * depth + b"," + data[place:]

    def _double_member(self, data: bytes) -> bytes:
        start = data.find(b'"', self._place(data))
        end = data.find(b",", start)
        return data if start < 0 or end < 0 else data[:end] + b"," + data[start:end] + data[end:]
