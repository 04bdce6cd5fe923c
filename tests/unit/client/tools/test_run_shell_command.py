"""What `run_shell_command` makes of a time limit, and of what came of a command."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execclient.tools.arguments import RunShellCommandArguments, parse
from execclient.tools.config import ToolsConfig
from execclient.tools.errors import IoFailure, KilledBySignal, RespondToModel, TimedOut, ToolError
from execclient.tools.exec_params import ExecParams
from execclient.tools.payloads import FunctionPayload
from execclient.tools.registry import ToolInvocation
from execclient.tools.result import CallRecord, FailureKind, ToolResult, failed
from execclient.tools.shell import (
    TRY_OTHERWISE,
    TRY_SHORTER,
    RunShellCommandHandler,
    outcome,
)


async def prepared(config: ToolsConfig, **arguments: object) -> ExecParams:
    """What would be run, as the handler hands it on."""

    def keep(call_id: str, tool: str, params: ExecParams, **_: object) -> ExecParams:
        return params

    context: Any = SimpleNamespace(services=SimpleNamespace(config=config), cwd="/w", command_call=keep)
    parsed = parse(RunShellCommandArguments, {"cmd": "make", **arguments})
    invocation = ToolInvocation("c", "run_shell_command", FunctionPayload("{}"), context)
    made: Any = await RunShellCommandHandler().prepare(context, parsed, invocation)
    assert isinstance(made, ExecParams)
    return made


def outcome_of(kind: FailureKind, *, terminal: bool = False, output: str = "partial\n") -> object:
    record = CallRecord("c", "run_shell_command", aggregated=output, exit_code=137)
    return outcome(ToolResult.from_record(failed(record, kind, "what happened", terminal=terminal)))


async def test_a_script_is_one_word_for_sh_in_the_turns_folder() -> None:
    params = await prepared(ToolsConfig(), cmd="echo 'a b' | wc")

    assert (params.command, params.cwd) == (("sh", "-c", "echo 'a b' | wc"), "/w")


async def test_a_command_has_two_minutes_and_never_more_than_ten() -> None:
    limits = [{}, {"timeout": 600}, {"timeout": 601}, {"timeout": 10_000}]

    seconds = [(await prepared(ToolsConfig(), **each)).expiration.seconds for each in limits]

    assert seconds == [120, 600, 600, 600]


@given(asked=st.integers(1, 10**9), ceiling=st.floats(0.1, 10**6))
async def test_whatever_a_model_asks_for_the_ceiling_holds(asked: int, ceiling: float) -> None:
    params = await prepared(ToolsConfig(shell_max_timeout=ceiling), timeout=asked)

    assert params.expiration.seconds == min(asked, ceiling)


@pytest.mark.parametrize(
    ("kind", "error", "advice"),
    [
        ("timeout", TimedOut, TRY_SHORTER),
        ("exit", RespondToModel, TRY_OTHERWISE),
        ("signal", KilledBySignal, TRY_OTHERWISE),
        ("io", IoFailure, TRY_OTHERWISE),
    ],
)
def test_what_another_attempt_may_mend_is_raised_with_advice_and_output(
    kind: FailureKind, error: type[ToolError], advice: str
) -> None:
    with pytest.raises(error) as caught:
        outcome_of(kind)

    assert str(caught.value) == f"what happened. {advice}\npartial\n"


@pytest.mark.parametrize(("output", "shown"), [("partial\n", "partial\n"), ("", "what happened")])
def test_what_no_attempt_can_mend_is_displayed(output: str, shown: str) -> None:
    assert outcome_of("denied", terminal=True, output=output) == {"display": shown, "error": True}


def test_a_success_is_its_output() -> None:
    assert outcome(ToolResult.from_record(CallRecord("c", "t", aggregated="fine\n"))) == "fine\n"
