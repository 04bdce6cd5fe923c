"""Requests that come again and again, word for word but for their id: decoded and checked once.

An agent host asks dozens of times a turn what the same few files are, whoever waits for a daemon asks
for its status, and who follows a process that says nothing asks again from where it was. Decoding such
a request costs more than answering it. What is remembered is what the decoder and the models made of
the text behind the id, so a message that is found here means exactly what it would mean if it was
decoded again; everything unusual (another order of members, an id that is a text, blanks) is not found
and goes the long way.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from execserver.protocol.errors import InvalidParams
from execserver.protocol.methods import METHODS
from execserver.rpc import envelope
from execserver.rpc.envelope import ParseError, Request
from execserver.rpc.params import NOTHING, decode_params

if TYPE_CHECKING:
    from execserver.protocol.model import Params


REPEATED_METHODS = (
    "fs/getMetadata",
    "fs/canonicalize",
    "environment/info",
    "environment/status",
    "process/read",
)
"""Methods that change nothing and whose parameters nobody changes."""

MAX_MESSAGE_BYTES = 512
"""Longer ones are not remembered."""

MAX_REMEMBERED = 256
"""When there are more, all are forgotten: who asks for so many different things gains nothing here."""

MAX_SEEN_ONCE = 1024
"""What came once is remembered without what it means: most of what is asked for is asked once."""

# Fewer digits than the largest id has, and no leading zero, which JSON does not allow.
HEAD = re.compile(
    rb'\{"id":(0|[1-9][0-9]{0,17}),"method":"(?:%b)"'
    % b"|".join(re.escape(name.encode()) for name in REPEATED_METHODS)
)
"""How a message begins that may be remembered; the first group is its id, written as an answer has it."""

_ASKED_ALIKE = {
    b',"method":"%b"%b}' % (name.encode(), params): (name, NOTHING)
    for name in ("environment/info", "environment/status")
    for params in (b"", b',"params":null', b',"params":{}')
}
"""What everybody asks in the same words is remembered before it comes."""


class Repeats:
    """What is remembered. All is decided by the text: one for the whole daemon will do."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[str, Params]] = dict(_ASKED_ALIKE)
        self._once: set[bytes] = set()

    def find(self, message: bytes) -> tuple[int, str, Params] | None:
        """The id, method and decoded parameters of a message that has come before; None for any other.

        Args:
            message: one JSON text, of at most `MAX_MESSAGE_BYTES`.
        """
        head = HEAD.match(message)
        if head is None:
            return None
        rest = message[head.end(1) :]
        known = self._known.get(rest)
        if known is not None:
            return int(head[1]), *known
        self._see(rest, message)
        return None

    def known(self, rest: bytes) -> tuple[str, Params] | None:
        """Method and decoded parameters of messages that end so behind their id, if they are remembered.

        Args:
            rest: what stands behind the id, which is `HEAD`'s first group.
        """
        return self._known.get(rest)

    def _see(self, rest: bytes, message: bytes) -> None:
        if rest not in self._once:
            if len(self._once) >= MAX_SEEN_ONCE:
                self._once.clear()
            self._once.add(rest)
            return
        self._once.discard(rest)
        try:
            request = envelope.decode(message)
            if not isinstance(request, Request) or request.trace is not None:
                return
            params = decode_params(METHODS[request.method], request.params)
        except (ParseError, InvalidParams):
            return  # whoever decodes it again says so
        if len(self._known) >= MAX_REMEMBERED:
            self._known = dict(_ASKED_ALIKE)
        self._known[rest] = request.method, params


repeats = Repeats()
