"""An approval holds for its request only: for its sandbox, its executor, its session and its links."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor, connect
from execclient.govern.approval_policy import NEVER, ON_REQUEST, UNTRUSTED
from execclient.govern.approvals import (
    ACCEPT,
    ACCEPT_FOR_SESSION,
    CANCEL,
    DECLINE,
    ApprovalRequest,
    Approvals,
    Review,
)
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.rules import PrefixRule, RuleSet
from execclient.govern.sandbox import DangerFullAccess, ReadOnly
from execclient.tools.apply_patch import PatchRuntime
from execclient.tools.config import Turn
from execclient.tools.errors import TurnAborted
from execclient.tools.payloads import CustomPayload
from execclient.tools.result import ToolResult
from execclient.tools.toolset import Toolset
from tests.integration.tools.patience import shown
from tests.support.toolsets import INSIDE, ONE_TRANSPORT, Make, User

pytestmark = ONE_TRANSPORT

FULL = Turn(sandbox=DangerFullAccess())
CONFINED = Turn(sandbox=INSIDE)


def patch(*lines: str) -> CustomPayload:
    return CustomPayload("\n".join(("*** Begin Patch", *lines, "*** End Patch")))


async def command(tools: Toolset, cmd: str, **options: Any) -> ToolResult:
    return await tools.call("shell", {"command": ["bash", "-c", cmd]}, **options)


async def shell(tools: Toolset, **options: Any) -> str:
    """The number of a shell that waits for input."""
    arguments = {"cmd": "sh", "tty": True, "login": False, "yield_time_ms": 250}
    result = await tools.call("exec_command", arguments, **options)
    assert result.process_id is not None
    assert " " in await shown(tools, result, " ")  # its prompt
    return result.process_id


async def typed(tools: Toolset, session: str, chars: str, **options: Any) -> ToolResult:
    arguments = {"session_id": int(session), "chars": chars, "yield_time_ms": 250}
    return await tools.call("write_stdin", arguments, **options)


# -- approvals for the session


async def test_what_was_approved_within_a_sandbox_is_asked_about_again_without_one(make: Make) -> None:
    user = User(ACCEPT_FOR_SESSION)
    tools = make(approval=UNTRUSTED, user=user)

    for turn in (CONFINED, CONFINED, FULL, FULL):
        assert (await command(tools, "true", turn=turn)).success

    assert len(user.asked) == 2


async def test_what_was_approved_in_one_workspace_is_asked_about_again_in_a_wider_one(
    make: Make, workspace: Path
) -> None:
    user = User(ACCEPT_FOR_SESSION)
    tools = make(approval=UNTRUSTED, user=user)

    await command(tools, "true")
    await command(tools, "true", turn=Turn(workspace_roots=(str(workspace.parent),)))

    assert len(user.asked) == 2


async def test_a_policy_with_parity_has_the_reference_s_keys(make: Make) -> None:
    user = User(ACCEPT_FOR_SESSION)
    tools = make(approval=UNTRUSTED, user=user, policy=Policy(parity=True))

    for turn in (CONFINED, FULL):
        await command(tools, "true", turn=turn)

    assert len(user.asked) == 1


async def test_a_turn_that_never_asks_takes_no_answer_from_another_turn(make: Make) -> None:
    user = User(ACCEPT_FOR_SESSION)
    tools = make(approval=ON_REQUEST, user=user)
    script = "rm -f x"

    assert (await command(tools, script)).success
    result = await command(tools, script, turn=Turn(approval=NEVER))

    assert "rejected: rm -f style commands are not permitted" in result.content
    assert len(user.asked) == 1


@pytest.fixture
async def other(start_server: Any, tmp_path: Path) -> AsyncIterator[Executor]:
    """Another daemon, in another folder."""
    async with connect(start_server(f"unix://{tmp_path}/other", cwd=tmp_path).url) as connected:
        yield connected


async def test_what_was_approved_at_one_executor_is_asked_about_again_at_another(
    executor: Executor, other: Executor, workspace: Path
) -> None:
    user = User(ACCEPT_FOR_SESSION)
    approvals = Approvals(user=user, policy=UNTRUSTED)
    for each in (executor, other):
        async with Toolset(each, approvals=approvals, sandbox=INSIDE, cwd=str(workspace)) as tools:
            for _ in range(2):
                assert (await command(tools, "true")).success

    assert len(user.asked) == 2


async def test_a_patch_approved_within_the_sandbox_is_asked_about_again_outside(make: Make) -> None:
    user = User(ACCEPT_FOR_SESSION)
    tools = make(approval=UNTRUSTED, user=user)

    for text in ("one", "two"):
        assert (await tools.call("apply_patch", patch("*** Add File: b.txt", f"+{text}"))).success
    result = await tools.call(
        "apply_patch", patch("*** Add File: b.txt", "+three"), turn=Turn(sandbox=ReadOnly())
    )

    assert result.success
    assert len(user.asked) == 2


# -- patches


@pytest.mark.parametrize("name", ["link", "folder/new.txt"])
async def test_who_is_asked_is_shown_where_the_links_of_a_patch_lead(
    make: Make, workspace: Path, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "target").write_text("old\n")
    (workspace / "link").symlink_to(outside / "target")
    (workspace / "folder").symlink_to(outside)
    user = User(DECLINE)

    text = patch(f"*** Add File: {name}", "+x", f"*** Add File: {tmp_path}/y", "+y")
    await make(user=user).call("apply_patch", text)

    (request,) = user.asked
    real = {"link": outside / "target", "folder/new.txt": outside / "new.txt"}[name]
    assert set(request.paths) == {str(workspace / name), str(tmp_path / "y"), str(real)}


class Swapper(User):
    """Says yes, after a confined command has put a link in the place of a folder of the workspace."""

    def __init__(self, tools: Toolset, script: str) -> None:
        super().__init__(ACCEPT)
        self._tools = tools
        self._script = script

    async def review(self, request: ApprovalRequest) -> Review:
        assert (await command(self._tools, self._script)).success
        return await super().review(request)


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("mkdir sub", ("*** Add File: sub/g", "+new", "*** Add File: {outside}/y", "+y")),
        ("mkdir sub; echo old >sub/f", ("*** Update File: sub/f", "@@", "-old", "+new",
                                        "*** Add File: {outside}/y", "+y")),
        ("mkdir sub; echo old >sub/f", ("*** Delete File: sub/f", "*** Add File: {outside}/y", "+y")),
        ("mkdir sub; echo old >sub/f", ("*** Update File: sub/f", "*** Move to: {outside}/y", "@@", "-old",
                                        "+new")),
        ("mkdir sub; ln -s $PWD/sub {outside}/in", ("*** Add File: {outside}/in/g", "+new")),
    ],
    ids=["add", "update", "delete", "move", "a link outside that leads inside"],
)  # fmt: skip
@pytest.mark.parametrize("when", ["while it is asked", "after the last look"])
async def test_a_link_that_takes_the_place_of_an_approved_folder_leads_no_patch_outside(
    make: Make,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    body: tuple[str, ...],
    when: str,
) -> None:
    outside, secret = tmp_path / "outside", tmp_path / "secret"
    outside.mkdir()
    secret.mkdir()
    (secret / "f").write_text("old\n")
    subprocess.run(["/bin/sh", "-ec", before.format(outside=outside)], cwd=workspace, check=True)
    user = Swapper(make(approval=NEVER), f"mv sub was; ln -s {secret} sub")
    if when == "after the last look":
        # What a command that runs in the background may be just fast enough for.
        monkeypatch.setattr(PatchRuntime, "_require_same_targets", lambda _: asyncio.sleep(0))
    tools = make(approval=ON_REQUEST, user=user)

    result = await tools.call("apply_patch", patch(*(line.format(outside=outside) for line in body)))

    assert len(user.asked) == 1
    assert not result.success
    assert {path.name: path.read_text() for path in secret.iterdir()} == {"f": "old\n"}
    assert not (outside / "y").exists()


async def test_a_patch_within_and_outside_of_the_sandbox_is_applied_after_an_approval(
    make: Make, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "sub").mkdir()
    text = patch(
        "*** Add File: sub/f", "+x", f"*** Add File: {tmp_path}/y", "+y", "*** Add File: .git/z", "+z"
    )

    result = await make(user=User(ACCEPT)).call("apply_patch", text)

    assert result.success, result.content
    assert [(path).read_text() for path in (workspace / "sub/f", tmp_path / "y", workspace / ".git/z")] == [
        "x\n", "y\n", "z\n"
    ]  # fmt: skip


async def test_a_shell_s_clothes_get_no_patch_past_a_rule(make: Make, workspace: Path) -> None:
    rules = RuleSet((PrefixRule((("apply_patch",),), "forbidden", "edit by hand"),))
    script = f"apply_patch <<'EOF'\n{patch('*** Add File: new.txt', '+x').input}\nEOF"

    result = await command(make(policy=Policy(rules)), script)

    assert result.content == "patch rejected: edit by hand"
    assert not (workspace / "new.txt").exists()


async def test_a_rule_that_asks_about_patches_in_a_shell_s_clothes_asks(make: Make) -> None:
    rules = RuleSet((PrefixRule((("apply_patch",),), "prompt", "mind the tree"),))
    script = f"apply_patch <<'EOF'\n{patch('*** Add File: new.txt', '+x').input}\nEOF"
    user = User(ACCEPT)

    assert (await command(make(policy=Policy(rules), user=user), script)).success
    never = await command(make(policy=Policy(rules), user=user, approval=NEVER), script)

    assert [request.reason for request in user.asked] == ["mind the tree"]
    assert never.content.startswith("patch rejected: approval required")


# -- sessions of another turn


async def test_a_turn_types_freely_into_its_own_sessions(make: Make) -> None:
    user = User(DECLINE)
    tools = make(user=user)

    session = await shell(tools)

    result = await typed(tools, session, "echo $((2+2))\n")
    assert "4\r\n" in await shown(tools, result, "4\r\n")
    assert user.asked == []


async def test_typing_into_a_session_that_may_more_than_the_turn_is_asked_about(
    make: Make, workspace: Path
) -> None:
    user = User(DECLINE)
    tools = make(user=user)
    session = await shell(tools, turn=FULL)

    refused = await typed(tools, session, "touch typed\n", turn=Turn(sandbox=ReadOnly()))

    assert refused.content == "write_stdin failed: rejected by user"
    (request,) = user.asked
    assert request.command == "touch typed\n"
    assert request.reason is not None
    assert "sh -c sh" in request.reason
    assert request.permits == (
        *DangerFullAccess().describe(),
        "if for the whole session: all input for this process from now on",
    )
    assert not (workspace / "typed").exists()


async def test_an_answer_for_the_session_covers_what_is_typed_into_that_process(make: Make) -> None:
    user = User(ACCEPT_FOR_SESSION)
    tools = make(user=user)
    first, second = await shell(tools, turn=FULL), await shell(tools, turn=FULL)

    for session in (first, first, second):
        result = await typed(tools, session, "echo $((2+2))\n", turn=CONFINED)
        assert "4\r\n" in await shown(tools, result, "4\r\n")

    assert len(user.asked) == 2


async def test_without_questions_no_input_is_written_but_reading_and_interrupting_are_free(
    make: Make,
) -> None:
    tools = make()
    session = await shell(tools, turn=FULL)
    strict = Turn(sandbox=ReadOnly(), approval=NEVER)

    refused = await typed(tools, session, "ls\n", turn=strict)
    interrupted = await typed(tools, session, "\x03", turn=strict)

    assert "the approval policy never allows no questions" in refused.content
    assert interrupted.process_id == session


async def test_who_ends_the_turn_instead_of_typing_ends_it(make: Make) -> None:
    tools = make(user=User(CANCEL))
    session = await shell(tools, turn=FULL)

    with pytest.raises(TurnAborted):
        await typed(tools, session, "ls\n", turn=CONFINED)


async def test_a_turn_that_asks_about_every_command_asks_about_what_is_typed_too(make: Make) -> None:
    user = User(ACCEPT)
    tools = make(user=user)
    session = await shell(tools)

    await typed(tools, session, "echo\n", turn=Turn(approval=UNTRUSTED))

    assert len(user.asked) == 1
