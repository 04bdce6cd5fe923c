"""Requests that need nothing but a look, answered in one loop.

What an agent host asks most often (what is this path, who are you) it asks word for word again
(`repeats.py`). Answering such a request is a dictionary look-up and at most one system call; the way of all
others, through admission, handler, encoder and channel, is a dozen calls, which cost several times that.

    messages of one read → QuickAnswers.answer → answers of a few KiB → channel

Rules kept in this file:

1. The answer is byte for byte that of the long way. Whatever is not the plain case (an error, a link, a mount
   that can hang) is left to it: an `Answerer` that says None has done nothing.
2. Nothing is answered here that may have to wait for something before it; the connection asks that before
   it comes here, and nothing that happens here changes it.
3. Who asks the same several times in a row, in one read, is answered by one look: it comes after all of
   them, so no client can tell.
4. Every request is counted as the long way counts it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol

from execserver.rpc.repeats import HEAD, MAX_MESSAGE_BYTES, MAX_REMEMBERED, Repeats
from execserver.telemetry.measures import RequestCounts, measures

MOST_AT_ONCE = 512
"""Messages that are answered before the connection looks whether its turn is over."""

FLUSH_BYTES = 4096
"""Answers that are handed to the channel together: what an outbox lets leave early at first."""

_NUMBER = rb"(?:0|[1-9][0-9]{0,17})"

POLL = re.compile(
    rb'\{"id":%(n)b,"method":"process/read","params":\{"processId":"[ !#-\[\]-~]{1,128}"'
    rb'(?:,"afterSeq":(?:null|%(n)b))?(?:,"maxBytes":(?:null|%(n)b))?,"waitMs":[1-9][0-9]{0,17}\}\}'
    % {b"n": _NUMBER}
)
"""How agents write a `process/read` that waits; the handler has nothing to refuse in it but its process."""


class Asker(Protocol):
    """What an answer may depend on beside its parameters."""

    extensions: bool
    """Whether `initialize` asked for extension members."""


class Sink(Protocol):
    """Where answers go."""

    def send_all(self, messages: Sequence[bytes]) -> None:
        """Queue whole messages."""


Answerer = Callable[[Asker], bytes | None]
"""Gives the result of one request, as JSON, as often as it is asked; None leaves it to the long way."""

Prepare = Callable[[Any], Answerer | None]
"""Makes the answerer for decoded parameters; None when those are always left to the long way."""

Preparers = Mapping[str, Prepare]
"""Method name → what prepares its answers."""


class QuickAnswers:
    """The prepared answers of a daemon.

    Args:
        repeats: what has come before.
    """

    def __init__(self, repeats: Repeats) -> None:
        self._preparers: dict[str, Prepare] = {}
        self._repeats = repeats
        self._prepared: dict[bytes, tuple[Answerer, RequestCounts]] = {}

    def add(self, preparers: Preparers) -> None:
        """Answer these methods from now on: their handlers are there."""
        self._preparers.update(preparers)

    def answer(self, messages: Sequence[bytes | bytearray], position: int, asker: Asker, sink: Sink) -> int:
        """Answer messages from `position` on, up to the first one that is none of these.

        Returns:
            The position behind the last one that was answered, of at most `MOST_AT_ONCE`.
        """
        begins, prepared = HEAD.match, self._prepared
        answers: list[bytes] = []
        size = alike = 0
        asked = tail = b""
        counts = None
        began = perf_counter()
        # A slice would be another one for each message that is none of these.
        for number in range(position, min(len(messages), position + MOST_AT_ONCE)):
            message = messages[number]
            if message.__class__ is not bytes or len(message) > MAX_MESSAGE_BYTES:
                break
            head = begins(message)
            if head is None:
                break
            rest = message[head.end(1) :]
            if rest != asked:
                entry = prepared.get(rest) or self._prepare(rest)
                result = entry and entry[0](asker)
                if not entry or result is None:
                    break
                if counts is not None:
                    began = _count(counts, alike, began)
                asked, tail, alike, counts = rest, b',"result":%b}' % result, 0, entry[1]
            answer = b'{"id":' + head[1] + tail
            answers.append(answer)
            alike += 1
            size += len(answer)
            if size >= FLUSH_BYTES:
                sink.send_all(answers)
                position += len(answers)
                answers, size = [], 0
        if counts is not None:
            _count(counts, alike, began)
        if answers:
            sink.send_all(answers)
        return position + len(answers)

    def _prepare(self, rest: bytes) -> tuple[Answerer, RequestCounts] | None:
        known = self._repeats.known(rest)
        if known is None:
            return None
        method, params = known
        prepare = self._preparers.get(method)
        answerer = None if prepare is None else prepare(params)
        if answerer is None:
            return None
        if len(self._prepared) >= MAX_REMEMBERED:
            self._prepared.clear()
        entry = self._prepared[rest] = answerer, measures.requests[method]
        return entry


def _count(counts: RequestCounts, alike: int, began: float) -> float:
    """Count the answers that one look gave; the time now."""
    now = perf_counter()
    counts.add_alike(alike, now - began)
    return now


def may_be_overtaken(message: bytes | bytearray) -> bool:
    """Whether a message is a `process/read` that may wait, and valid. Who asks something small behind one
    gets that first: to let a request wait takes long, to answer that does not.
    """
    return POLL.fullmatch(message) is not None
