"""The fuzzing's own parts: nothing harmful is sent, a seed decides everything, a failure can be shrunk."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.fuzz.doors import Framed, HeaderDoor, LineDoor
from tests.fuzz.mutations import Mutator, load
from tests.fuzz.shrink import fewest
from tests.fuzz.verdicts import Judge, Verdict
from tests.support.wire import Json

FOLDER = Path("/tmp/fuzz-x/files")
OURS = f"file://{FOLDER}/f"
START = {"processId": "p", "cwd": "file:///", "env": {}, "tty": False}

HARMFUL: tuple[tuple[str, Json], ...] = (
    ("fs/remove", {"path": "file:///"}),
    ("fs/remove", {"path": f"file://{FOLDER}"}),
    ("fs/remove", {"path": f"file://{FOLDER}/../x"}),
    ("fs/remove", {"path": f"file://{FOLDER}/%2e%2e/x"}),
    ("fs/remove", ["file:///tmp/x", True, True, None]),
    ("fs/writeFile", {"path": "file:///tmp/x", "dataBase64": ""}),
    ("fs/copy", {"sourcePath": OURS, "destinationPath": "file:///tmp/x", "recursive": False}),
    ("fs/copy", {"sourcePath": f"{OURS}/d/e", "destinationPath": f"{OURS}/g", "recursive": True}),
    ("fs/open", {"handleId": "h", "path": "file:///etc/passwd", "mode": "replace"}),
    ("fs/writeBlock", {"handleId": "h", "offset": 2**40, "chunk": "YQ=="}),
    ("process/start", START | {"argv": ["/bin/rm", "-rf", "/"]}),
    ("process/read", {"processId": "p", "waitMs": 60_000}),
    ("http/request", {"method": "GET", "url": "http://localhost/", "requestId": "r"}),
)


def judge(*, standard: bool) -> Judge:
    return Judge(
        FOLDER, load("standard" if standard else "lean"), standard=standard, text_framing=not standard
    )


@pytest.mark.parametrize(("method", "params"), HARMFUL)
def test_what_could_do_harm_is_not_sent(method: str, params: Json) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    alone, inside = json.dumps(request).encode(), json.dumps([request]).encode()

    assert judge(standard=False).verdict(alone) is None
    assert judge(standard=True).verdict(alone) is None
    assert judge(standard=True).verdict(inside) is None
    assert not judge(standard=False).harmless_in_any_dialect(inside)


def test_what_is_owed_follows_the_protocol() -> None:
    lean, standard = judge(standard=False), judge(standard=True)

    assert lean.verdict(b'{"id":1,"method":"x"}') == Verdict(1)
    assert lean.verdict(b'{"method":"x"}') == Verdict(ends=True)
    assert lean.verdict(b'{"id":1,"method":"\xff"}') == Verdict(ends=True)
    assert standard.verdict(b'{"jsonrpc":"2.0","method":"x"}') == Verdict()
    assert standard.verdict(b'{"jsonrpc":"2.0","method":"x","params":1}') == Verdict(1)
    assert standard.verdict(b'[1,{"jsonrpc":"2.0","method":"x"}]') == Verdict(1)


def test_the_seed_decides_every_message() -> None:
    seeds = load("standard")
    first, again, other = (
        [Mutator(seeds, chance, FOLDER).message() for _ in range(50)]
        for chance in (random.Random(1), random.Random(1), random.Random(2))
    )

    assert first == again
    assert first != other


def test_a_harmful_message_that_hides_in_a_frame_is_found() -> None:
    remove = b'{"jsonrpc":"2.0","id":1,"method":"fs/remove","params":{"path":"file:///x"}}'
    lines = LineDoor(judge(standard=True), random.Random(1))
    headers = HeaderDoor(judge(standard=True), random.Random(1))

    assert lines._followed(b"nonsense\n" + remove + b"\n") is None
    assert headers._followed(b"Content-Length: 2\r\n\r\n{}" + headers.plain(remove)) is None
    assert headers._followed(b"Content-Length: 5\r\n\r\n" + remove) is not None


def test_the_fewest_messages_that_fail_are_found() -> None:
    messages = [Framed(b"%d" % number) for number in range(100)]

    left = fewest(messages, lambda attempt: {b"17", b"71"} <= {framed.data for framed in attempt})

    assert [framed.data for framed in left] == [b"17", b"71"]
