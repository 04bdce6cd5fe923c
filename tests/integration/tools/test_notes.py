"""What an answer says besides the output: why the sandbox was in the way, and what to do instead."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from execclient import Executor
from execclient.govern.approval_policy import NEVER, ON_FAILURE
from execclient.govern.approvals import Review
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.rules import RuleSet
from execclient.govern.sandbox import DangerFullAccess
from execclient.tools import ToolResult, ToolsConfig
from execclient.tools.toolset import Toolset
from tests.support.toolsets import INSIDE, ONE_TRANSPORT, Make, User

pytestmark = ONE_TRANSPORT

PARITY = Policy(RuleSet(), parity=True)


async def told(tools: Toolset, script: str) -> ToolResult:
    """The answer to a script."""
    return await tools.call("exec_command", {"cmd": script, "login": False, "yield_time_ms": 30_000})


def note(result: ToolResult) -> str:
    """The only warning of an answer, which is in its text, too."""
    (warning,) = warnings(result)
    assert warning in result.content.splitlines()
    return warning


def warnings(result: ToolResult) -> tuple[str, ...]:
    """The warnings of an answer."""
    assert result.record is not None
    return result.record.warnings


# -- protected names

BY_COMMANDS = [
    ("git init", ".git"),
    ("git clone -q ../other .", ".git"),
    ("mkdir .codex", ".codex"),
    ("mkdir -p .aws && echo '[default]' > .aws/config", ".aws"),
    ("python3 -c 'import os; os.makedirs(\".agents/skills\")'", ".agents"),
    ("ln -s /etc .codex", ".codex"),
    ("mv a.txt .aws/credentials", ".aws"),
    ("rmdir .git", ".git"),
]


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A repository with a commit, beside the workspace."""
    path = tmp_path / "other"
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        path.mkdir(exist_ok=True)
        who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        subprocess.run(["git", *who, *words], cwd=path, check=True, timeout=60)
    return path


@pytest.mark.parametrize(("script", "name"), BY_COMMANDS, ids=[script for script, _ in BY_COMMANDS])
async def test_a_denied_change_of_a_protected_name_is_explained(
    tools: Toolset, executor: Executor, workspace: Path, other: Path, script: str, name: str
) -> None:
    if "clone" in script:
        (workspace / "a.txt").unlink()

    result = await told(tools, script)

    assert result.exit_code
    text = note(result)
    assert f"the sandbox has denied a change of {workspace}/{name}." in text
    assert "programs outside of the sandbox run its hooks or trust its settings" in text
    assert 'call exec_command again with sandbox_permissions "require_escalated" and a justification' in text
    assert result.failure is not None
    assert result.failure.kind == "denied"
    assert f"{workspace}/{name} is protected" in result.failure.message

    context = INSIDE.context(str(workspace), [str(workspace)])
    ran = await executor.run(["sh", "-c", script], cwd=str(workspace), sandbox=context)
    assert ran.denial is not None
    assert {(each["reason"], each["protectedPath"]) for each in ran.denial["evidence"]} == {
        ("protectedName", f"{workspace}/{name}")
    }
    assert not [each for each in workspace.iterdir() if each.name != "a.txt"], "nothing is left behind"


async def test_the_advice_leads_to_the_repository(make: Make, workspace: Path) -> None:
    user = User(Review("approved"))
    tools = make(user=user)
    assert "require_escalated" in note(await told(tools, "git init -q"))
    again = {
        "cmd": "git init -q",
        "sandbox_permissions": "require_escalated",
        "justification": "a repository",
    }
    assert (await tools.call("exec_command", again)).success
    assert [request.reason for request in user.asked] == ["a repository"]
    assert (workspace / ".git" / "HEAD").exists()
    denied = note(await told(tools, "git commit -q --allow-empty -m x || git config user.name a"))
    assert f"denied a change of {workspace}/.git." in denied


async def test_a_model_that_may_not_ask_is_told_so(make: Make) -> None:
    text = note(await told(make(approval=NEVER), "mkdir .codex"))
    assert "require_escalated" not in text
    assert "You cannot ask for more permissions here" in text


async def test_a_user_who_has_just_refused_is_not_asked_again(make: Make) -> None:
    user = User(Review("denied", "not here"))
    for tool, command in (
        ("exec_command", {"cmd": "mkdir .codex"}),
        ("shell", {"command": ["mkdir", ".codex"]}),
    ):
        refused, denied = warnings(await make(approval=ON_FAILURE, user=user).call(tool, command))
        assert refused == "Not run again without the sandbox: not here"
        assert "the sandbox has denied a change" in denied
        assert "require_escalated" not in denied
    assert len(user.asked) == 2


@pytest.mark.parametrize("tool", ["shell", "shell_command"])
async def test_every_tool_explains_a_denial_by_its_name(make: Make, workspace: Path, tool: str) -> None:
    script = "echo x > .aws"
    command = ["sh", "-c", script] if tool == "shell" else script
    text = note(await make().call(tool, {"command": command}))
    assert f"denied a change of {workspace}/.aws." in text
    assert f"call {tool} again" in text


async def test_other_denials_name_the_path(tools: Toolset, tmp_path: Path) -> None:
    text = note(await told(tools, f"touch {tmp_path}/beside"))
    assert f"denied writing to {tmp_path}/beside, which is outside of the writable folders" in text
    text = note(await told(tools, "python3 -c 'import socket; socket.socket()'"))
    assert "the sandbox has no network" in text


async def test_a_failure_of_the_command_is_not_blamed_on_the_sandbox(tools: Toolset, other: Path) -> None:
    for script in (
        "mkdir a.txt",
        "exit 3",
        "cat missing",
        "grep x .codex",
        "mkdir .codex; true",
        f"git clone -q {other} .",
        "echo Permission denied; exit 1",
    ):
        assert not warnings(await told(tools, script)), script


# -- processes that end with the sandbox

SERVER = "sleep 600 >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do :; done"


async def test_processes_that_ended_with_their_sandbox_are_named(tools: Toolset) -> None:
    text = note(await told(tools, f"{SERVER}; echo up"))
    assert text.startswith("Warning: 1 process left running by the command (sleep) ended with it")
    assert "exec_command in the foreground" in text
    text = note(await told(tools, f"{SERVER}; {SERVER}; exit 3"))
    assert text.startswith("Warning: 2 processes left running by the command (sleep) ended with it")


async def test_the_advice_leads_to_a_server_that_stays(tools: Toolset) -> None:
    script = "while read line; do echo got $line; done"
    start = {"cmd": script, "login": False, "tty": True, "yield_time_ms": 250}
    session = (await tools.call("exec_command", start)).process_id
    assert session is not None
    assert (await told(tools, "true")).success
    asked = {"session_id": int(session), "chars": "one\n", "yield_time_ms": 250}
    assert (await tools.call("write_stdin", asked)).process_id == session


async def test_a_tool_without_sessions_has_another_way(make: Make) -> None:
    config = ToolsConfig(shell_type="shell_command")
    text = note(await make(config=config).call("shell_command", {"command": SERVER, "login": False}))
    assert "call shell_command with sandbox_permissions" in text
    never = make(config=config, approval=NEVER)
    text = note(await never.call("shell_command", {"command": SERVER, "login": False}))
    assert text.endswith("Use them within one command.")


async def test_no_process_is_made_up(tools: Toolset) -> None:
    for script in ("sleep 0 & wait", "yes | head -1", SERVER + "; kill $!; wait"):
        assert not warnings(await told(tools, script)), script


async def test_without_a_sandbox_processes_stay(make: Make) -> None:
    assert not warnings(await told(make(sandbox=DangerFullAccess()), SERVER))


# -- patches that only a shell could carry out

PATCH = "*** Begin Patch\n*** Add File: new.txt\n+one\n*** End Patch"

FORMS = [
    f"cat <<'EOF' | apply_patch\n{PATCH}\nEOF",
    f"echo '{PATCH}' | apply_patch",
    f"printf '%s\\n' '{PATCH}' | apply_patch",
    f'apply_patch "{PATCH}"',
    f"apply_patch \"$(cat <<'EOF'\n{PATCH}\nEOF\n)\"",
    f"apply_patch <<< '{PATCH}'",
    f"set -e\napply_patch <<'EOF'\n{PATCH}\nEOF",
    f"apply_patch <<'EOF' && echo done\n{PATCH}\nEOF",
    f"apply_patch <<'EOF'\n{PATCH}\nEOF\necho done",
    f"/usr/bin/apply_patch <<'EOF'\n{PATCH}\nEOF",
    f"apply-patch <<'EOF'\n{PATCH}\nEOF",
    f"bash -lc \"apply_patch <<'EOF'\n{PATCH}\nEOF\"",
    f"(applypatch <<'EOF'\n{PATCH}\nEOF\n)",
    "echo x > p.patch; apply_patch < p.patch",
    f"cd $PWD && apply_patch <<'EOF'\n{PATCH}\nEOF",
]


async def test_a_patch_that_no_program_applies_is_explained(tools: Toolset, workspace: Path) -> None:
    for script in FORMS:
        text = note(await told(tools, script))
        assert text.startswith("Warning: the patch was not applied: there is no program apply_patch."), script
        assert "apply_patch <<'EOF', the lines of the patch, EOF" in text
        assert not (workspace / "new.txt").exists(), script
    assert (await told(tools, f"apply_patch <<'EOF'\n{PATCH}\nEOF")).success
    assert (workspace / "new.txt").read_text() == "one\n"


async def test_the_advice_is_for_the_tool_that_the_model_has(make: Make, workspace: Path) -> None:
    script = f"echo '{PATCH}' | apply_patch"
    text = note(await told(make(config=ToolsConfig(apply_patch=True)), script))
    assert text.endswith("Call the tool apply_patch, with the patch as its input.")
    text = note(await make().call("shell", {"command": ["sh", "-c", script]}))
    assert text.endswith('Rerun as ["apply_patch", "<patch>"]')
    direct = await make().call("shell", {"command": ["/usr/bin/apply_patch", PATCH]})
    assert direct.content.endswith('Rerun as ["apply_patch", "<patch>"]')
    assert (await make().call("shell", {"command": ["apply_patch", PATCH]})).success
    assert (workspace / "new.txt").exists()


async def test_only_a_call_of_apply_patch_is_explained(tools: Toolset) -> None:
    for script in (
        "echo 'apply_patch: command not found'",
        "no_such_program",
        "printf 'apply_patch: not found\\n'; exit 127",
    ):
        assert not warnings(await told(tools, script)), script


# -- scripts that are too long


@pytest.mark.parametrize("inside", [True, False])
async def test_a_script_that_is_too_long_has_a_way_out(make: Make, inside: bool) -> None:
    tools = make(sandbox=INSIDE if inside else DangerFullAccess())
    result = await told(tools, f"echo '{'x' * 140_000}'")
    assert "argv[2] has 140007 bytes, and an argument may have 131071" in result.content
    assert "write the script to a file in parts" in result.content
    result = await tools.call("shell", {"command": ["true", *["x" * 100_000] * 80]})
    assert "the 81 arguments have 8000085 bytes" in result.content


# -- parity


async def test_with_parity_the_answers_are_those_of_the_reference(make: Make) -> None:
    tools = make(policy=PARITY)
    for script in ("mkdir .codex", SERVER, FORMS[0]):
        assert "Warning" not in (await told(tools, script)).content


# -- terminal input


async def test_input_that_the_terminal_would_cut_is_refused_with_a_way_out(make: Make) -> None:
    tools = make(config=ToolsConfig(clean_terminal=True))
    start = {"cmd": "read -r line; echo got ${#line}", "login": False, "tty": True, "yield_time_ms": 250}
    session = (await tools.call("exec_command", start)).process_id
    assert session is not None
    asked = {"session_id": int(session), "yield_time_ms": 5000}
    refused = await tools.call("write_stdin", {**asked, "chars": "x" * 5000 + "\n"})
    assert refused.content.startswith("write_stdin failed: the input has a line of 5000 bytes")
    assert refused.content.endswith("or write the text to a file and let the program read it.")
    done = await tools.call("write_stdin", {**asked, "chars": "x" * 4000 + "\n"})
    assert done.aggregated_output == "got 4000\n"


async def test_with_parity_a_terminal_cuts_input_as_in_the_reference(make: Make) -> None:
    tools = make(policy=PARITY)
    start = {"cmd": "read -r line; echo got ${#line}", "login": False, "tty": True, "yield_time_ms": 250}
    session = (await tools.call("exec_command", start)).process_id
    assert session is not None
    done = await tools.call(
        "write_stdin", {"session_id": int(session), "yield_time_ms": 5000, "chars": "x" * 5000 + "\n"}
    )
    assert "got 4095" in done.content
