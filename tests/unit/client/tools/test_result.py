"""Facts of a call, and the result that follows from them."""

from __future__ import annotations

import json

import pytest

from execclient.tools.errors import (
    IoFailure,
    KilledBySignal,
    Rejected,
    RespondToModel,
    SandboxDenied,
    TimedOut,
    ToolError,
)
from execclient.tools.result import CallRecord, Decided, Failure, FailureKind, ToolResult, failed

RECORD = CallRecord(
    call_id="call_abc123",
    tool="shell_command",
    command=("/bin/bash", "-lc", "grep -r TODO src/"),
    cwd="/w",
    phases=("approval", "sandbox", "run"),
    decided=Decided(
        requirement="skip",
        source="sandbox_mode",
        decided_by=None,
        sandbox_policy={"type": "workspace-write"},
        sandbox_type="linuxSeccomp",
        bypassed=False,
        attempts=1,
        revision="0123456789abcdef",
        rules=("r.rules:3: grep allow",),
    ),
    process_id="p1",
    exit_code=0,
    cause="normal",
    duration=0.127,
    text="src/main.rs:42:    // TODO: refactor this\n",
    stdout="src/main.rs:42:    // TODO: refactor this\n",
    aggregated="src/main.rs:42:    // TODO: refactor this\n",
    total_bytes=42,
)


def result(record: CallRecord = RECORD) -> ToolResult:
    return ToolResult.from_record(record)


def test_a_record_that_is_read_again_gives_the_same_result() -> None:
    bad = failed(RECORD, "timeout", "too late")

    for record in (RECORD, bad):
        read = CallRecord.from_json(json.loads(json.dumps(record.to_json())))
        assert read == record
        assert ToolResult.from_record(read) == result(record)


def test_the_item_for_a_model_has_type_call_and_output() -> None:
    assert result().to_openai() == {
        "type": "function_call_output",
        "call_id": "call_abc123",
        "output": "src/main.rs:42:    // TODO: refactor this\n",
    }


def test_the_block_for_anthropic_says_when_it_is_an_error() -> None:
    assert "is_error" not in result().to_anthropic()
    assert result(failed(RECORD, "exit", "exit code 1")).to_anthropic()["is_error"] is True


def test_the_result_for_mcp_has_the_facts_beside_the_text() -> None:
    answer = result(failed(RECORD, "exit", "exit code 1")).to_mcp()

    assert answer["content"] == [{"type": "text", "text": RECORD.text}]
    assert answer["isError"] is True
    # Some hosts show a model this instead of the content.
    assert answer["structuredContent"]["output"] == answer["content"][0]["text"]
    assert answer["structuredContent"]["failure"] == {
        "kind": "exit",
        "message": "exit code 1",
        "terminal": False,
    }


def test_a_session_is_shown_by_its_output_its_id_and_no_exit_code() -> None:
    running = CallRecord(call_id="c", tool="write_stdin", session="1001", aggregated="bar\n")

    assert result(running).to_process_json() == {
        "output": "bar\n",
        "process_id": "1001",
        "exit_code": None,
    }


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("timeout", TimedOut),
        ("denied", SandboxDenied),
        ("signal", KilledBySignal),
        ("rejected", Rejected),
        ("io", IoFailure),
        ("cancelled", IoFailure),
        ("exit", RespondToModel),
        ("arguments", RespondToModel),
    ],
)
def test_each_kind_of_failure_has_its_error(kind: FailureKind, error: type[ToolError]) -> None:
    with pytest.raises(error, match="what happened") as caught:
        result(failed(RECORD, kind, "what happened")).check()

    assert type(caught.value) is error


def test_errors_of_limits_and_sandboxes_carry_the_output() -> None:
    with pytest.raises(TimedOut) as late:
        result(failed(RECORD, "timeout", "m")).check()
    with pytest.raises(SandboxDenied) as denied:
        result(failed(RECORD, "denied", "m")).check()

    assert late.value.output == denied.value.output == RECORD.aggregated


def test_an_error_of_a_signal_has_its_number() -> None:
    record = CallRecord(call_id="c", tool="shell", exit_code=137, failure=Failure("signal", "killed"))

    with pytest.raises(KilledBySignal) as caught:
        result(record).check()

    assert caught.value.signal == 9


def test_a_success_checks_to_itself() -> None:
    assert result().check() == result()


def test_omitted_and_lost_output_is_one_number() -> None:
    record = CallRecord(call_id="c", tool="shell", omitted_bytes=3, lost_bytes=4)

    assert (result(record).truncated, result(record).omitted_bytes) == (True, 7)


def test_output_that_was_lost_on_the_way_is_a_truncation_too() -> None:
    assert result(CallRecord(call_id="c", tool="shell", lost_bytes=4)).truncated
