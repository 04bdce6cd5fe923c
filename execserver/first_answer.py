"""The first answer of a server that is started for one client: to an `initialize` that waits at standard
input, given before the libraries are loaded.

A client that starts a daemon sends `initialize` at once and waits for the answer. It says who the daemon is
and which session the client has, both of which are known long before anything else could be done; so the
client goes on, and what it sends next is there when the server is.

Only what is plain is answered here: a command line of `--listen stdio` and nothing else, no settings from
anywhere, and a request as agents write it. Everything else is left to the server, which is a copy of the
process that answers, so that it has all that was read here. It goes through the answered request like any
other (`FramedChannel.go_on_after`); the answer that it makes is the one that was given, which
`tests/integration/test_first_answer.py` compares.

Standard library only, and little of it.
"""

from __future__ import annotations

import _json  # of `json`, whose modules take longer to load than all of this
import os
import select
import stat

from execserver.host import Host
from execserver.supervisor import config_file

TYPE_CHECKING = False  # `typing` takes longer, too
if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_READ = 65536
_MAX_ID = 2**63 - 1


class FirstAnswer:
    """What a client was told before there was a server, by whom, and what it has sent so far.

    Args:
        host: the facts that it was told.
        received: what was read of it.
    """

    def __init__(self, host: Host, received: bytes) -> None:
        self.host = host
        self.session_id: str | None = None
        """The session that it was promised; None when nothing was answered."""
        self.request = b""
        """The request that was answered, with its newline."""
        self.answer = b""
        """The answer, with its newline."""
        self.rest = received
        """What was read behind it."""


def answer_first(environment: Mapping[str, str]) -> FirstAnswer | None:
    """Answer what waits at standard input, if that is a plain `initialize` and nothing is set. Waits for
    nothing.

    Args:
        environment: the variables.

    Returns:
        What was read, and what was answered; None when nothing was read.
    """
    try:
        if not _has_no_settings(environment) or not _readable_pipe(0):
            return None
        host = Host()
        received = os.read(0, _MOST_READ)
    except OSError:
        return None  # what is wrong, the server finds again
    if not received:
        return None  # the server will see the end of the input, too
    first = FirstAnswer(host, received)
    _answer(first)
    return first


def _has_no_settings(environment: Mapping[str, str]) -> bool:
    if any(name.startswith("EXECSERVER_") for name in environment):
        return False
    return config_file.find(None, environment) is None


def _readable_pipe(descriptor: int) -> bool:
    """Whether a read returns something at once: of a pipe or a socket, whose end can be read again. A
    terminal's cannot, and behind that is nobody who is in a hurry.
    """
    mode = os.fstat(descriptor).st_mode
    return (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) and bool(select.select([descriptor], [], [], 0)[0])


def _answer(first: FirstAnswer) -> None:
    line, newline, rest = first.rest.partition(b"\n")
    request_id = _plain_initialize(line) if newline else None
    if request_id is None or not _has_room(1):
        return
    session_id = _uuid4()
    result = {"sessionId": session_id, "environmentInfo": first.host.info()}
    try:
        answer = _encode({"id": request_id, "result": result}).encode() + b"\n"
    except UnicodeEncodeError:
        return
    if len(answer) > select.PIPE_BUF:  # so much whoever takes anything takes at once
        return
    first.session_id, first.request, first.answer, first.rest = session_id, line + newline, answer, rest
    try:
        os.write(1, answer)
    except OSError:
        return  # nobody reads, as the server will find, too


def _has_room(descriptor: int) -> bool:
    try:
        return bool(select.select([], [descriptor], [], 0)[1])
    except OSError:
        return False


def _plain_initialize(line: bytes) -> int | str | None:
    """The id of an `initialize` that asks for a new session and nothing else; None for any other message."""
    if b"\\" in line:
        return None
    try:
        message = _object(line.decode().strip(" \t\r"))
    except (ValueError, StopIteration, RecursionError, AttributeError):
        return None  # the last one is a scanner of another version, that asks for more
    if message.keys() != {"id", "method", "params"} or message["method"] != "initialize":
        return None
    request_id, params = message["id"], message["params"]
    if not isinstance(params, dict) or not isinstance(params.pop("clientName", None), str):
        return None
    if params.pop("resumeSessionId", None) is not None or params:
        return None
    if type(request_id) is str or (type(request_id) is int and 0 <= request_id <= _MAX_ID):
        return request_id
    return None


class _Scanning:
    """How JSON is scanned: as `json.JSONDecoder` does, but for members that stand twice."""

    strict = True
    object_hook = array_hook = None
    parse_float = float
    parse_int = int

    @staticmethod
    def parse_constant(name: str) -> object:
        raise ValueError(name)

    @staticmethod
    def object_pairs_hook(pairs: list[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) < len(pairs):
            raise ValueError("a member stands twice")
        return value


def _object(text: str) -> dict[str, object]:
    """A JSON object.

    Raises:
        ValueError, StopIteration: it is none.
    """
    value, end = _json.make_scanner(_Scanning)(text, 0)  # type: ignore[arg-type]  # reads its attributes
    if not isinstance(value, dict) or end != len(text):
        raise ValueError("no object")
    return value


def _encode(value: object) -> str:
    """JSON, as the server writes it."""
    if isinstance(value, dict):
        members = (f"{_json.encode_basestring(name)}:{_encode(each)}" for name, each in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_encode, value)) + "]"
    if isinstance(value, str):
        text: str = _json.encode_basestring(value)
        return text
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _uuid4() -> str:
    """As `uuid.uuid4`, whose module takes longer to load than all of this."""
    number = int.from_bytes(os.urandom(16), "big")
    number = number & ~(0xF << 76) & ~(3 << 62) | 4 << 76 | 2 << 62
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
