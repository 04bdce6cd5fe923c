"""Incoming frames, as picows parses them for us."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from execserver.transports.websocket_parser import BINARY, CLOSE, PING, TEXT, FrameParser, WebSocketFrame
from tests.support.wire import WebSocketTransport

frame = WebSocketTransport.frame
MAX_FRAME_BYTES = 1 << 20


def test_the_version_of_picows_is_one_whose_constructor_is_known() -> None:
    installed = version("picows")
    assert installed.startswith("2.3."), (
        f"picows {installed}: compare `WSProtocol.__init__` of its picows.pyx with the call in "
        "execserver/transports/websocket_parser.py and the calls of `_NullTransport`, measure again what a "
        "documented parser costs (docs/dependencies.md), then change pyproject.toml and this test"
    )


class Parsed:
    """What became of bytes, in pieces of one size."""

    def __init__(self, stream: bytes, piece: int) -> None:
        self.frames: list[tuple[object, bytes, bool]] = []
        self.errors = 0
        asyncio.run(self._parse(stream, piece))

    async def _parse(self, stream: bytes, piece: int) -> None:
        parser = FrameParser(MAX_FRAME_BYTES, self._frame, self._error)
        for start in range(0, len(stream), piece):
            parser.feed(stream[start : start + piece])
            if self.errors:
                return

    def _frame(self, _: object, frame: WebSocketFrame) -> None:
        self.frames.append((frame.msg_type, frame.get_payload_as_bytes(), bool(frame.fin)))

    def _error(self) -> None:
        self.errors += 1


def test_frames_of_all_kinds_and_sizes_come_out_whole_however_they_are_cut() -> None:
    payloads = [b"", b"x", b"y" * 125, b"z" * 126, b"w" * 65_535, b"v" * 65_536]
    stream = b"".join(frame(1, payload) for payload in payloads)
    stream += frame(2, b"bytes") + frame(1, b"begun", fin=False) + frame(9, b"ping") + frame(8, b"\x03\xe8")
    wanted = [
        *((TEXT, payload, True) for payload in payloads),
        (BINARY, b"bytes", True),
        (TEXT, b"begun", False),
        (PING, b"ping", True),
        (CLOSE, b"\x03\xe8", True),
    ]

    for piece in (7, 1000, len(stream)):
        assert Parsed(stream, piece).frames == wanted


def test_a_peer_that_breaks_the_protocol_is_reported_after_its_good_frames() -> None:
    good = frame(1, b"good")
    for broken in (
        frame(3, b"reserved kind"),
        frame(1, bytes(MAX_FRAME_BYTES + 1)),
        frame(9, bytes(126)),
    ):
        parsed = Parsed(good + broken, 1 << 16)
        assert (parsed.frames, parsed.errors > 0) == ([(TEXT, b"good", True)], True)
