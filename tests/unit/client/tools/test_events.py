"""What a host is told of a call."""

from __future__ import annotations

import json

import pytest

from execclient.tools.events import (
    MAX_DELTAS,
    CallBegin,
    CallDecided,
    CallEnd,
    CallEvents,
    OutputDelta,
    ToolEvent,
    to_json,
)


def ended(events: CallEvents, **members: object) -> None:
    events.end(success=True, exit_code=0, duration=0.5, preview="", **members)  # type: ignore[arg-type]


def test_each_event_carries_the_id_of_its_call() -> None:
    told: list[ToolEvent] = []
    events = CallEvents(told.append, "c7", "shell")

    events.begin(("ls",), "/w")
    events.decided("run", "heuristic", None, sandboxed=True)
    events.delta("stdout", b"a")
    ended(events)

    assert [type(event) for event in told] == [CallBegin, CallDecided, OutputDelta, CallEnd]
    assert {getattr(event, "call_id", None) for event in told} == {"c7"}


def test_there_is_one_begin_and_one_end_whatever_is_said_again() -> None:
    told: list[ToolEvent] = []
    events = CallEvents(told.append, "c", "shell")

    for _ in range(2):
        events.begin(("ls",), "/w")
    for _ in range(2):
        ended(events)

    assert [event.type for event in told] == ["begin", "end"]


def test_an_end_without_a_begin_brings_it_along() -> None:
    told: list[ToolEvent] = []

    ended(CallEvents(told.append, "c", "nothing"))

    assert [event.type for event in told] == ["begin", "end"]


def test_deltas_stop_at_their_limit_and_the_end_still_comes() -> None:
    told: list[ToolEvent] = []
    events = CallEvents(told.append, "c", "shell")
    events.begin(("yes",), "/w")

    for _ in range(MAX_DELTAS + 5):
        events.delta("stdout", b"y\n")
    ended(events)
    events.delta("stdout", b"late")

    assert MAX_DELTAS == 10_000
    assert [event.type for event in told].count("delta") == MAX_DELTAS
    assert told[-1].type == "end"


def test_an_event_is_json_and_its_bytes_are_base64() -> None:
    assert json.loads(json.dumps(to_json(OutputDelta("c", "pty", b"\xff\x00")))) == {
        "type": "delta",
        "call_id": "c",
        "stream": "pty",
        "chunk": "/wA=",
    }


def test_an_end_that_a_sink_cannot_take_is_no_error_and_is_not_told_again() -> None:
    told: list[ToolEvent] = []

    def fail(event: ToolEvent) -> None:
        told.append(event)
        if event.type == "end":
            raise OSError("full disk")

    events = CallEvents(fail, "c", "shell")
    ended(events)
    ended(events)

    assert [event.type for event in told] == ["begin", "end"]


def test_a_beginning_that_a_sink_cannot_take_is_an_error() -> None:
    def fail(event: ToolEvent) -> None:
        raise OSError("full disk")

    with pytest.raises(OSError, match="full disk"):
        CallEvents(fail, "c", "shell").begin(("ls",), "/w")
