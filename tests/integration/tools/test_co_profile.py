"""`run_shell_command` and the profile `co`: approval as the boundary, a small environment, a gentle end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from execclient.govern.approval_policy import UNLESS_TRUSTED
from execclient.govern.approvals import ACCEPT, Review
from execclient.govern.sandbox import DangerFullAccess
from execclient.tools import command_call
from execclient.tools.config import ToolsConfig
from execclient.tools.environment import CO_FORCED, CO_VARIABLES
from execclient.tools.errors import RespondToModel, TimedOut
from execclient.tools.result import ToolResult
from execclient.tools.shell import TRY_OTHERWISE, TRY_SHORTER, outcome
from execclient.tools.toolset import Toolset
from tests.integration.tools.patience import limited
from tests.support.toolsets import ONE_TRANSPORT, Make, User
from tests.support.wire import at_most

CO = ToolsConfig(profile="co")


@pytest.fixture
def user() -> User:
    """Says yes."""
    return User(ACCEPT)


@pytest.fixture
def tools(make: Make, user: User) -> Toolset:
    """The tools of that profile, without a sandbox."""
    return make(config=CO, approval=UNLESS_TRUSTED, user=user, sandbox=DangerFullAccess())


Capped = Callable[[int], Toolset]


@pytest.fixture
def capped(make: Make, user: User) -> Capped:
    """The same tools with a ceiling for the time limits that are asked for."""

    def made(ceiling: int) -> Toolset:
        config = ToolsConfig(profile="co", shell_max_timeout=ceiling)
        return make(config=config, approval=UNLESS_TRUSTED, user=user, sandbox=DangerFullAccess())

    return made


async def run(tools: Toolset, cmd: str, **members: object) -> ToolResult:
    return await tools.call("run_shell_command", {"cmd": cmd, **members})


async def test_ordinary_commands_run_without_a_question_and_others_with_one(
    tools: Toolset, user: User
) -> None:
    for cmd, questions in (
        ("ls -la", 0),
        ("git status", 0),
        ("touch x", 1),
        ("ls; touch x", 1),
        ("find . -delete", 1),
    ):
        user.asked.clear()
        await run(tools, cmd)
        assert len(user.asked) == questions, cmd


@ONE_TRANSPORT
async def test_a_sandbox_holds_without_questions_and_questions_without_a_sandbox(
    make: Make, tmp_path: Path
) -> None:
    confined = make(config=CO)
    refused = make(
        config=CO, approval=UNLESS_TRUSTED, user=User(Review("denied")), sandbox=DangerFullAccess()
    )

    for tools in (confined, refused):
        result = await run(tools, f"echo x >{tmp_path}/outside")
        assert not result.success
        assert not (tmp_path / "outside").exists()


@ONE_TRANSPORT
async def test_it_sees_the_variables_of_its_list_and_no_other(tools: Toolset) -> None:
    variables = {line.split("=", 1)[0] for line in (await run(tools, "env")).stdout.splitlines()}

    git = {"GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"}
    assert variables <= {*CO_VARIABLES, *CO_FORCED, *git, "PWD", "SHLVL", "_", "OLDPWD"}
    assert {*CO_FORCED, *git, "PATH", "HOME"} <= variables


async def test_a_command_that_listens_is_ended_gently_and_keeps_its_output(
    capped: Capped, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_call, "GRACE_SECONDS", 5)
    script = "trap 'echo cleaned; exit 0' TERM; echo begun; sleep 60 & : >begun; wait"

    with at_most(15):
        result, _ = await limited(
            lambda ceiling: run(capped(ceiling), script, timeout=600), workspace / "begun", 1, 5
        )

    assert (result.exit_code, result.timed_out) == (124, True)
    assert result.stdout == "begun\ncleaned\n"
    with pytest.raises(TimedOut, match=TRY_SHORTER) as caught:
        outcome(result)
    assert "begun" in caught.value.output


@ONE_TRANSPORT
async def test_a_command_that_does_not_listen_is_killed_soon_after(tools: Toolset, workspace: Path) -> None:
    script = "trap '' TERM; echo begun; : >begun; sleep 60"

    with at_most(15):
        result, limit = await limited(
            lambda limit: run(tools, script, timeout=limit), workspace / "begun", 1, 5
        )

    assert result.timed_out
    assert limit + 0.1 < result.duration < 15


@ONE_TRANSPORT
async def test_what_a_python_program_has_printed_is_there_when_its_time_is_up(
    capped: Capped, workspace: Path
) -> None:
    program = "import time; print('x'); open('begun', 'x').close(); time.sleep(60)"

    result, _ = await limited(
        lambda ceiling: run(capped(ceiling), f'python3 -c "{program}"', timeout=600),
        workspace / "begun",
        1,
        10,
    )

    assert (result.timed_out, result.stdout) == (True, "x\n")


@ONE_TRANSPORT
async def test_output_that_speaks_of_a_time_limit_is_none(tools: Toolset) -> None:
    result = await run(tools, "echo timed out; exit 7")

    assert (result.exit_code, result.timed_out) == (7, False)
    with pytest.raises(RespondToModel, match=TRY_OTHERWISE) as caught:
        outcome(result)
    assert "code 7" in str(caught.value)
    assert "timed out\n" in str(caught.value)


@ONE_TRANSPORT
async def test_what_is_not_permitted_ends_the_matter(make: Make, tmp_path: Path) -> None:
    tools = make(config=CO, approval=UNLESS_TRUSTED, user=User(ACCEPT))
    denied = await run(make(config=CO, user=User(ACCEPT)), f"echo x >{tmp_path}/outside")

    assert outcome(denied) == {"display": denied.aggregated_output, "error": True}
    assert outcome(await run(tools, "echo fine")) == "fine\n"


@ONE_TRANSPORT
async def test_its_schema_shows_the_time_limit_and_is_shown_in_its_profile_only(
    make: Make, tools: Toolset
) -> None:
    spec = next(spec for spec in tools.specs() if spec["name"] == "run_shell_command")

    assert spec["parameters"]["properties"]["timeout"]["default"] == 120
    assert "run_shell_command" not in [spec["name"] for spec in make().specs()]
