"""Patches of a model, through every door, at a real daemon."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from execclient import Executor
from execclient.govern.approval_policy import NEVER, ON_REQUEST, UNTRUSTED, ApprovalPolicy
from execclient.govern.approvals import ACCEPT, ACCEPT_FOR_SESSION, CANCEL, Review
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.rules import PrefixRule, RuleSet
from execclient.govern.sandbox import DangerFullAccess, ReadOnly
from execclient.patch import TurnDiff
from execclient.tools.errors import TurnAborted
from execclient.tools.events import ToolEvent
from execclient.tools.payloads import CustomPayload
from execclient.tools.result import CallRecord, ToolResult
from execclient.tools.toolset import Toolset
from tests.support.toolsets import ONE_TRANSPORT, Make, User

DECLINE = Review("denied")


def patch(*lines: str) -> str:
    return "\n".join(("*** Begin Patch", *lines, "*** End Patch"))


ADD = patch("*** Add File: new.txt", "+one")
UPDATE = patch("*** Update File: a.txt", "@@", "-hello", "+goodbye")


async def custom(tools: Toolset, text: str, **options: object) -> ToolResult:
    return await tools.call("apply_patch", CustomPayload(text), **options)  # type: ignore[arg-type]


async def started(executor: Executor) -> int:
    return len(await executor.processes())


async def test_a_patch_changes_the_files_of_the_executor(tools: Toolset, workspace: Path) -> None:
    result = await custom(tools, patch("*** Add File: d/new.txt", "+one", *UPDATE.splitlines()[1:-1]))

    assert result.success
    assert result.aggregated_output == "Success. Updated the following files:\nA d/new.txt\nM a.txt\n"
    assert result.content.startswith("Exit code: 0\nWall time: ")
    assert (workspace / "d" / "new.txt").read_text() == "one\n"
    assert (workspace / "a.txt").read_text() == "goodbye\n"


@ONE_TRANSPORT
async def test_a_patch_may_come_as_the_argument_of_a_function(tools: Toolset, workspace: Path) -> None:
    assert (await tools.call("apply_patch", json.dumps({"input": ADD}))).success

    assert (workspace / "new.txt").read_text() == "one\n"
    assert "missing field `input`" in (await tools.call("apply_patch", "{}")).content


DOORS = {
    "argv": ("shell", {"command": ["apply_patch", ADD]}),
    "a here-document": ("shell", {"command": ["bash", "-lc", f"apply_patch <<'EOF'\n{ADD}\nEOF"]}),
    "shell_command": ("shell_command", {"command": f"apply_patch <<EOF\n{ADD}\nEOF\n"}),
    "exec_command": ("exec_command", {"cmd": f"apply_patch <<'X'\n{ADD}\nX"}),
    "run_shell_command": ("run_shell_command", {"cmd": f"apply_patch <<'X'\n{ADD}\nX"}),
}


@ONE_TRANSPORT
@pytest.mark.parametrize("door", DOORS)
async def test_a_patch_in_a_shell_s_clothes_starts_no_shell(
    tools: Toolset, executor: Executor, workspace: Path, door: str
) -> None:
    name, arguments = DOORS[door]
    assert isinstance(arguments, dict)

    result = await tools.call(name, arguments)

    assert result.success
    assert "A new.txt" in result.content
    assert (workspace / "new.txt").read_text() == "one\n"
    assert await started(executor) == 0


@ONE_TRANSPORT
async def test_its_paths_begin_where_the_call_would_have_run(tools: Toolset, workspace: Path) -> None:
    for folder in ("sub", "sub/deep"):
        (workspace / folder).mkdir()

    script = f"cd deep && apply_patch <<'EOF'\n{ADD}\nEOF"
    await tools.call("shell", {"command": ["bash", "-lc", script], "workdir": "sub"})

    assert (workspace / "sub" / "deep" / "new.txt").exists()


@ONE_TRANSPORT
@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-lc", "apply_patch <<'EOF'\n*** Begin Patch\n*** Mend File: x\n*** End Patch\nEOF"],
        ["bash", "-lc", ADD],
        [ADD],
    ],
    ids=["that cannot be read", "without its name", "alone"],
)
async def test_a_patch_that_is_none_is_told_to_the_model_and_never_run(
    tools: Toolset, executor: Executor, command: list[str]
) -> None:
    result = await tools.call("shell", {"command": command})

    assert not result.success
    assert result.content.startswith("apply_patch verification failed: ")
    assert await started(executor) == 0


@ONE_TRANSPORT
async def test_a_patch_that_does_not_fit_needs_no_approval_and_says_what_would_fit(
    make: Make, workspace: Path
) -> None:
    user = User(ACCEPT)
    tools = make(approval=UNTRUSTED, user=user)

    result = await custom(tools, patch("*** Update File: a.txt", "@@", "-hullo", "+goodbye"))

    assert user.asked == []
    assert result.content.startswith("apply_patch verification failed: Failed to find expected lines in ")
    assert "hello" in result.content  # the line that is nearest
    assert (workspace / "a.txt").read_text() == "hello\n"


@ONE_TRANSPORT
@pytest.mark.parametrize(
    ("approval", "path", "questions", "applied"),
    [
        (ON_REQUEST, "in.txt", 0, True),
        (NEVER, "in.txt", 0, True),
        (UNTRUSTED, "in.txt", 1, True),
        (ON_REQUEST, "../out.txt", 1, True),
        (ON_REQUEST, ".git/hooks/x", 1, True),
        (NEVER, "../out.txt", 0, False),
        (NEVER, ".codex/x", 0, False),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
async def test_who_is_asked_depends_on_the_policy_and_on_where_it_writes(
    make: Make, workspace: Path, approval: ApprovalPolicy, path: str, questions: int, applied: bool
) -> None:
    user = User(ACCEPT)

    result = await custom(make(approval=approval, user=user), patch(f"*** Add File: {path}", "+x"))

    assert len(user.asked) == questions
    assert (result.success, (workspace / path).exists()) == (applied, applied)
    if not applied:
        assert result.content == (
            "patch rejected: writing is blocked by read-only sandbox; rejected by user approval settings"
        )


@ONE_TRANSPORT
async def test_a_question_shows_the_files_and_what_would_change(make: Make, workspace: Path) -> None:
    user = User(DECLINE)

    result = await custom(make(approval=UNTRUSTED, user=user), UPDATE)

    (request,) = user.asked
    assert request.kind == "patch"
    assert request.paths == (str(workspace / "a.txt"),)
    assert request.diff is not None
    assert "-hello\n+goodbye\n" in request.diff
    assert result.content == "patch rejected by user"
    assert (workspace / "a.txt").read_text() == "hello\n"


@ONE_TRANSPORT
async def test_an_approval_for_the_session_covers_the_files_that_it_was_about(
    make: Make, workspace: Path
) -> None:
    user = User(ACCEPT_FOR_SESSION)
    tools = make(approval=UNTRUSTED, user=user)

    await custom(tools, UPDATE)
    await custom(tools, patch("*** Update File: a.txt", "@@", "-goodbye", "+again"))
    assert len(user.asked) == 1
    await custom(tools, patch("*** Update File: a.txt", "@@", "-again", "+x", "*** Add File: b.txt", "+y"))

    assert len(user.asked) == 2


@ONE_TRANSPORT
async def test_an_abort_ends_the_turn(make: Make, workspace: Path) -> None:
    with pytest.raises(TurnAborted):
        await custom(make(approval=UNTRUSTED, user=User(CANCEL)), ADD)

    assert not (workspace / "new.txt").exists()


@ONE_TRANSPORT
async def test_the_sandbox_holds_for_what_a_link_makes_of_a_path(
    make: Make, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside.txt").write_text("hello\n")
    (workspace / "link.txt").symlink_to(tmp_path / "outside.txt")

    result = await custom(
        make(approval=NEVER), patch("*** Update File: link.txt", "@@", "-hello", "+goodbye")
    )

    assert not result.success
    assert (tmp_path / "outside.txt").read_text() == "hello\n"
    allowed = await custom(
        make(approval=NEVER, sandbox=DangerFullAccess()),
        patch("*** Update File: link.txt", "@@", "-hello", "+goodbye"),
    )
    assert allowed.success
    assert (tmp_path / "outside.txt").read_text() == "goodbye\n"


@ONE_TRANSPORT
async def test_a_turn_keeps_account_of_what_its_patches_changed(tools: Toolset, workspace: Path) -> None:
    turn = TurnDiff(str(workspace))

    await custom(tools, UPDATE, tracker=turn)
    await tools.call("exec_command", {"cmd": f"apply_patch <<'E'\n{ADD}\nE"}, tracker=turn)

    assert "-hello\n+goodbye\n" in turn.text
    assert "+one\n" in turn.text


@ONE_TRANSPORT
async def test_a_patch_is_recorded_and_told_like_any_call(make: Make) -> None:
    told: list[ToolEvent] = []

    result = await custom(make(events=told.append), ADD)

    assert [event.type for event in told] == ["begin", "decided", "end"]
    record = CallRecord.from_json(json.loads(json.dumps(result.record.to_json())))
    assert ToolResult.from_record(record) == result
    assert record.phases == ("approval", "sandbox", "run")
    assert record.decided is not None
    assert record.decided.source == "sandbox_mode"


@ONE_TRANSPORT
async def test_the_same_patch_again_is_known_to_be_there(tools: Toolset, workspace: Path) -> None:
    first, again = [await custom(tools, UPDATE) for _ in range(2)]

    assert first.success
    assert again.success
    assert "applied already" in again.content
    assert (workspace / "a.txt").read_text() == "goodbye\n"


@ONE_TRANSPORT
async def test_a_cancelled_question_changes_nothing(make: Make, workspace: Path) -> None:
    asked = asyncio.Event()

    class Slow:
        async def review(self, request: object) -> Review:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    call = asyncio.create_task(custom(make(approval=UNTRUSTED, user=Slow()), ADD))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert not (workspace / "new.txt").exists()


@ONE_TRANSPORT
async def test_a_patch_in_a_read_only_turn_is_refused_without_a_question(make: Make, workspace: Path) -> None:
    result = await custom(make(approval=NEVER, sandbox=ReadOnly()), ADD)

    assert result.content.startswith("patch rejected: writing is blocked by read-only sandbox")
    assert not (workspace / "new.txt").exists()


@ONE_TRANSPORT
@pytest.mark.parametrize("door", ["apply_patch", "exec_command"])
async def test_a_rule_on_its_name_holds_for_a_patch_through_every_tool(
    make: Make, workspace: Path, door: str
) -> None:
    rules = RuleSet((PrefixRule((("apply_patch",),), "forbidden", "no patches"),))
    arguments = CustomPayload(ADD) if door == "apply_patch" else {"cmd": f"apply_patch <<'E'\n{ADD}\nE"}

    result = await make(policy=Policy(rules)).call(door, arguments)

    assert not result.success
    assert "no patches" in result.content
    assert not (workspace / "new.txt").exists()
    assert (await make(policy=Policy(rules, parity=True)).call(door, arguments)).success
