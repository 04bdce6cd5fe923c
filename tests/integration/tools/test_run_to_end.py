"""The tools that run a command to its end, and rules for all tools, with a real daemon."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor
from execclient.govern.approval_policy import NEVER, ON_FAILURE, UNTRUSTED
from execclient.govern.approvals import ACCEPT, Review
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.rules import PrefixRule, RuleSet
from execclient.govern.sandbox import DangerFullAccess, ReadOnly, WorkspaceWrite
from execclient.shells import ZSH, Shell
from execclient.tools.config import ToolsConfig, Turn
from execclient.tools.environment import EXEC_ENVIRONMENT
from execclient.tools.errors import PolicyChanged, RespondToModel, TurnAborted
from execclient.tools.events import MAX_DELTAS, OutputDelta, ToolEvent
from execclient.tools.payloads import CustomPayload, FunctionPayload, LocalShellPayload
from execclient.tools.result import CallRecord, ToolResult
from execclient.tools.toolset import Toolset
from tests.integration.tools.patience import limited, until
from tests.support.noise import noise_watched
from tests.support.toolsets import INSIDE, ONE_TRANSPORT, Make, User, shell_for
from tests.support.wire import at_most, wait_gone


def rule(words: str, decision: Any) -> PrefixRule:
    return PrefixRule(tuple((word,) for word in words.split()), decision)


async def sh(tools: Toolset, script: str, **members: Any) -> ToolResult:
    return await tools.call("shell", {"command": ["sh", "-c", script], **members})


async def started(executor: Executor) -> int:
    return len(await executor.processes())


# -- what is run


async def test_the_words_of_a_command_reach_it_as_they_are(tools: Toolset) -> None:
    words = ["two words", "$HOME", "new\nline", "", "'quoted'", "*", "ü\\"]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"

    result = await tools.call("shell", {"command": ["python3", "-c", code, *words]})

    assert json.loads(result.stdout) == words


@ONE_TRANSPORT
async def test_three_names_are_one_tool(tools: Toolset) -> None:
    arguments = {"command": ["echo", "same"]}
    handlers = {id(tools.registry.lookup(name, FunctionPayload("{}"))) for name in
                ("shell", "container.exec", "local_shell")}  # fmt: skip

    results = [await tools.call(name, arguments) for name in ("shell", "container.exec", "local_shell")]

    assert len(handlers) == 1
    assert {result.aggregated_output for result in results} == {"same\n"}


@ONE_TRANSPORT
async def test_the_shell_that_a_model_family_has_built_in_comes_parsed(tools: Toolset) -> None:
    from execclient.tools.arguments import ShellArguments

    payload = LocalShellPayload(ShellArguments(command=("echo", "hi")))

    assert (await tools.call("local_shell", payload)).stdout == "hi\n"
    assert "cannot handle payload" in (await tools.call("shell_command", payload)).content
    assert "cannot handle payload" in (await tools.call("shell", CustomPayload("ls"))).content


async def test_a_script_runs_in_the_shell_for_the_account(tools: Toolset, executor: Executor) -> None:
    result = await tools.call("shell_command", {"command": "echo $0; echo a | tr a b", "login": False})

    assert result.stdout == f"{shell_for(executor.info['shell']['path'])}\nb\n"
    assert result.record.command[1] == "-c"


async def test_a_relative_folder_begins_in_that_of_the_turn(tools: Toolset, workspace: Path) -> None:
    (workspace / "src").mkdir()

    for workdir, folder in ((None, workspace), ("src", workspace / "src"), ("/usr", Path("/usr"))):
        result = await sh(tools, "pwd", **({} if workdir is None else {"workdir": workdir}))
        assert result.stdout == f"{folder}\n"


async def test_a_folder_that_is_not_there_is_told_and_nothing_is_started(
    tools: Toolset, executor: Executor
) -> None:
    result = await sh(tools, "pwd", workdir="nowhere")

    assert result.failure is not None
    assert (result.failure.kind, result.success) == ("io", False)
    assert "No such file or directory" in result.content
    assert await started(executor) == 0


@ONE_TRANSPORT
async def test_a_program_that_is_not_there_is_exit_code_127(tools: Toolset) -> None:
    result = await tools.call("shell", {"command": ["no-such-program"]})

    assert (result.exit_code, result.success) == (127, False)


@ONE_TRANSPORT
async def test_a_model_is_told_what_is_missing(tools: Toolset, workspace: Path) -> None:
    script = workspace / "script"
    script.write_text("#!/no/interpreter\n")
    script.chmod(0o755)
    missing = "No such file or directory (os error 2)"
    gone = f"the working directory {workspace}/gone does not exist"

    for tool, arguments, reason in (
        (
            "shell",
            {"command": ["no-such-program"]},
            "the program no-such-program is not in the PATH of the executor",
        ),
        ("shell", {"command": [str(script)]}, f"the interpreter /no/interpreter of {script} does not exist"),
        ("shell", {"command": ["true"], "workdir": "gone"}, gone),
        ("shell_command", {"command": "true", "workdir": "gone"}, gone),
        ("exec_command", {"cmd": "true", "workdir": "gone"}, gone),
    ):
        result = await tools.call(tool, arguments)

        assert result.failure is not None
        assert missing in result.content
        assert reason in result.content, tool


@ONE_TRANSPORT
async def test_a_model_is_told_that_the_shell_of_the_account_is_missing(
    executor: Executor, make: Make
) -> None:
    tools = make(shell=Shell(ZSH, "/no/such/zsh"))

    result = await tools.call("exec_command", {"cmd": "echo hi"})

    assert "the program /no/such/zsh does not exist" in result.content


async def test_standard_input_is_empty(tools: Toolset) -> None:
    with at_most(15):
        assert (await tools.call("shell", {"command": ["cat"]})).aggregated_output == ""


async def test_streams_are_kept_apart_and_in_the_order_of_their_arrival(make: Make, workspace: Path) -> None:
    def heard(event: ToolEvent) -> None:
        if isinstance(event, OutputDelta):
            (workspace / event.chunk.decode().strip()).touch()

    tools = make(events=heard)
    # It goes on when what it has printed is there.
    script = (
        "heard() { until [ -e $1 ]; do sleep 0.01; done; };"
        " for i in 1 2 3; do echo o$i; heard o$i; echo e$i >&2; heard e$i; done; sleep 0.25; exit 3"
    )

    result = await sh(tools, script)

    assert (result.exit_code, result.success, result.timed_out) == (3, False, False)
    assert result.stdout == "o1\no2\no3\n"
    assert result.stderr == "e1\ne2\ne3\n"
    assert result.aggregated_output == "o1\ne1\no2\ne2\no3\ne3\n"
    assert result.duration > 0.2
    assert re.match(r"Exit code: 3\nWall time: \d+\.\d", result.content)
    assert result.content.endswith("Output:\n" + result.aggregated_output)


@ONE_TRANSPORT
async def test_the_variables_of_the_tools_are_there_and_secrets_are_not(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ToolsConfig(dependency_env={"A": "dependency", "B": "dependency"}, env={"B": "explicit"})

    result = await make(config=config, session_id="talk").call("shell", {"command": ["env"]}, "call_7")

    variables = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert {name: variables[name] for name in EXEC_ENVIRONMENT} == dict(EXEC_ENVIRONMENT)
    assert (variables["A"], variables["B"]) == ("dependency", "explicit")
    assert (variables["CODEX_TOOL_CALL_ID"], variables["CODEX_SESSION_ID"]) == ("call_7", "talk")
    assert variables["CODEX_SANDBOX_NETWORK_DISABLED"] == "1"
    assert {"PATH", "HOME"} <= set(variables)


@pytest.mark.parametrize("url", ["stdio"], indirect=True)
async def test_variables_that_look_like_secrets_stay_with_the_daemon(
    monkeypatch: pytest.MonkeyPatch, url: str, workspace: Path
) -> None:
    from execclient import connect

    for name in ("MY_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "HARMLESS"):
        monkeypatch.setenv(name, "value")

    async with connect(url) as executor:
        filtered = Toolset(executor, cwd=str(workspace))
        open_ = Toolset(executor, cwd=str(workspace), config=ToolsConfig(filter_secrets=False))
        seen, all_ = [(await each.call("shell", {"command": ["env"]})).stdout for each in (filtered, open_)]

    assert "HARMLESS=value" in seen
    assert not any(name in seen for name in ("MY_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD"))
    assert all(name in all_ for name in ("MY_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD"))


# -- limits


async def test_a_time_limit_ends_all_that_was_started_and_keeps_the_output(
    make: Make, workspace: Path
) -> None:
    tools = make(sandbox=DangerFullAccess())
    script = "sleep 60 & echo $!; echo before; : >begun; wait"

    with at_most(15):
        result, limit = await limited(
            lambda limit: sh(tools, script, timeout_ms=limit), workspace / "begun", 300, 5_000
        )

    assert (result.exit_code, result.timed_out) == (124, True)
    assert result.failure is not None
    assert result.failure.kind == "timeout"
    assert f"Output:\ncommand timed out after {limit} milliseconds\n" in result.content
    child, printed = result.stdout.split()
    assert printed == "before"
    assert wait_gone(int(child))


async def test_a_cancelled_call_ends_all_that_was_started(make: Make, workspace: Path) -> None:
    tools = make(sandbox=DangerFullAccess())
    pid_file = workspace / "pid"
    call = asyncio.create_task(sh(tools, "sleep 60 & echo $! >pid.new; mv pid.new pid; wait"))
    while not pid_file.exists():
        await asyncio.sleep(0.01)

    with at_most(15):
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert wait_gone(int(pid_file.read_text()))


@ONE_TRANSPORT
async def test_a_cancelled_call_in_a_flood_of_output_returns_at_once(make: Make) -> None:
    told: list[ToolEvent] = []
    tools = make(events=told.append)
    for _ in range(3):  # the daemon may stand still while we do not
        told.clear()
        call = asyncio.create_task(sh(tools, "yes"))
        await until(lambda: any(isinstance(event, OutputDelta) for event in told))
        await asyncio.sleep(0.2)

        with noise_watched() as noise:
            began = time.monotonic()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            taken = time.monotonic() - began
        if taken < 0.5 + noise.allowance:
            break
    assert taken < 0.5 + noise.allowance


@ONE_TRANSPORT
async def test_long_output_keeps_both_ends_and_says_what_is_gone(make: Make) -> None:
    told: list[ToolEvent] = []
    tools = make(events=told.append)

    result = await sh(tools, "seq 1 400000")

    assert result.exit_code == 0
    total = sum(len(f"{number}\n") for number in range(1, 400001))
    assert result.record.total_bytes == total
    assert result.omitted_bytes == total - (1 << 20)
    assert result.aggregated_output.startswith("1\n2\n3\n")
    assert result.aggregated_output.endswith("399999\n400000\n")
    assert f"... {result.omitted_bytes} bytes omitted ..." not in result.content  # both were cut away
    assert result.truncated
    assert len(result.content.encode()) < 11_000
    assert sum(event.type == "delta" for event in told) <= MAX_DELTAS


# -- who decides


async def test_what_a_rule_forbids_is_never_started(make: Make, executor: Executor) -> None:
    tools = make(policy=Policy(RuleSet((rule("cat", "forbidden"),))))

    result = await tools.call("shell", {"command": ["cat", "a.txt"]})

    assert result.content == "`cat a.txt` rejected: policy forbids commands starting with `cat`"
    assert result.record.decided is not None
    assert result.record.decided.source == "prefix_rule"
    assert await started(executor) == 0


FRONT_DOORS: dict[str, Callable[[str], dict[str, Any]]] = {
    "shell": lambda script: {"command": ["bash", "-lc", script]},
    "shell_command": lambda script: {"command": script},
    "exec_command": lambda script: {"cmd": script},
    "run_shell_command": lambda script: {"cmd": script},
}


@ONE_TRANSPORT
@pytest.mark.parametrize("script", ["cat a.txt", "touch q", "rm -rf zz", "ls", "echo $(cat a.txt)"])
async def test_the_tool_makes_no_difference_to_the_decision(make: Make, script: str) -> None:
    rules = RuleSet((rule("cat", "forbidden"), rule("touch", "prompt")))
    tools = make(policy=Policy(rules), approval=UNTRUSTED)

    inspected = [await tools.inspect(name, door(script)) for name, door in FRONT_DOORS.items()]

    assert len({(each.requirement.kind, each.requirement.source) for each in inspected}) == 1


async def test_a_question_shows_the_command_and_a_no_reaches_the_model(
    make: Make, executor: Executor
) -> None:
    user = User(Review("denied", "not today"))

    result = await make(user=user).call(
        "shell_command", {"command": "rm -rf zz", "justification": "tidy up", "login": False}
    )

    (request,) = user.asked
    assert request.argv[1:] == ("-c", "rm -rf zz")
    assert request.reason == "tidy up"
    assert result.content == "not today"
    assert result.failure is not None
    assert result.failure.kind == "rejected"
    assert await started(executor) == 0


@ONE_TRANSPORT
async def test_an_abort_ends_the_turn_with_its_events_complete(make: Make) -> None:
    told: list[ToolEvent] = []
    tools = make(user=User(Review("abort")), events=told.append)

    with pytest.raises(TurnAborted):
        await sh(tools, "rm -rf zz")

    assert [event.type for event in told] == ["begin", "decided", "end"]


async def test_an_escalated_call_leaves_the_sandbox_once_it_is_approved(make: Make, tmp_path: Path) -> None:
    user, outside = User(ACCEPT), tmp_path / "outside"
    tools = make(user=user)

    inside = await sh(tools, f"echo x >{outside}")
    assert inside.failure is not None
    assert inside.failure.kind == "denied"
    assert not outside.exists()

    result = await sh(
        tools, f"echo x >{outside}", sandbox_permissions="require_escalated", justification="need it"
    )

    assert (result.success, outside.read_text()) == (True, "x\n")
    assert user.asked[0].reason == "need it"
    assert result.record.decided is not None
    assert result.record.decided.bypassed


@ONE_TRANSPORT
async def test_an_escalation_is_refused_by_a_policy_without_questions(make: Make) -> None:
    for sandbox in (INSIDE, DangerFullAccess()):
        result = await sh(
            make(approval=NEVER, sandbox=sandbox), "ls", sandbox_permissions="require_escalated"
        )
        assert result.content.startswith("approval policy is Never; reject command")


async def test_a_denied_command_runs_again_only_after_a_question(make: Make, tmp_path: Path) -> None:
    outside, user = tmp_path / "outside", User(ACCEPT)
    script = f"echo x >>{outside}"

    refused = await sh(make(approval=ON_FAILURE, user=User(Review("denied"))), script)
    assert refused.failure is not None
    assert refused.failure.kind == "denied"
    assert "Read-only file system" in refused.content
    assert "Not run again without the sandbox: rejected by user" in refused.content
    assert not outside.exists()

    again = await sh(make(approval=ON_FAILURE, user=user), script)

    assert (again.success, outside.read_text()) == (True, "x\n")
    assert [request.retry for request in user.asked] == [True]
    assert again.record.decided is not None
    assert again.record.decided.attempts == 2


@ONE_TRANSPORT
async def test_files_that_must_not_be_read_stay_so_without_the_sandbox(make: Make, workspace: Path) -> None:
    (workspace / ".env").write_text("WORD=1\n")
    sandbox = WorkspaceWrite(deny_read=("**/.env",))

    result = await sh(
        make(user=User(ACCEPT), sandbox=sandbox), "cat .env a.txt", sandbox_permissions="require_escalated"
    )

    assert "WORD" not in result.aggregated_output
    assert "hello" in result.aggregated_output


@ONE_TRANSPORT
async def test_a_turn_may_have_other_settings_than_its_toolset(make: Make, tmp_path: Path) -> None:
    tools = make(sandbox=ReadOnly(), approval=NEVER)
    (tmp_path / "other").mkdir()
    turn = Turn(cwd=str(tmp_path / "other"), sandbox=INSIDE, approval=UNTRUSTED)

    read_only = await sh(tools, "touch made")
    assert read_only.failure is not None
    assert read_only.failure.kind == "denied"
    asked = await tools.call("shell", {"command": ["touch", "made"]}, turn=turn)
    assert "no reviewer" in asked.content
    made = await tools.call(
        "shell", {"command": ["touch", "made"]}, turn=Turn(cwd=turn.cwd, sandbox=INSIDE, approval=NEVER)
    )

    assert made.success
    assert os.listdir(tmp_path / "other") == ["made"]


# -- the toolset


@ONE_TRANSPORT
async def test_bad_arguments_and_unknown_tools_are_told_to_the_model(tools: Toolset) -> None:
    texts = [
        (await tools.call(name, arguments)).content
        for name, arguments in (("shell", "{"), ("shell", '{"command": [], "x": 1}'), ("nothing", "{}"))
    ]

    assert texts[0].startswith("failed to parse function arguments: EOF while parsing")
    assert "`x`" in texts[1]
    assert texts[2] == "unsupported call: nothing"


@ONE_TRANSPORT
async def test_a_model_is_shown_the_tools_of_its_kind_and_may_call_the_others(make: Make) -> None:
    shown = {
        kind: [spec["name"] for spec in make(config=ToolsConfig(shell_type=kind)).specs()]
        for kind in ("default", "shell_command", "unified_exec", "disabled")
    }

    assert shown == {
        "default": ["shell"],
        "shell_command": ["shell_command"],
        "unified_exec": ["exec_command", "write_stdin"],
        "disabled": [],
    }
    hidden = await make(config=ToolsConfig(shell_type="default")).call("exec_command", {"cmd": "echo hi"})
    disabled = await make(config=ToolsConfig(shell_type="disabled")).call("shell", {"command": ["ls"]})
    assert "hi\n" in hidden.content
    assert disabled.content == "unsupported call: shell"


@ONE_TRANSPORT
async def test_a_call_is_bound_to_the_rules_that_were_inspected(make: Make, executor: Executor) -> None:
    policy = Policy()
    tools = make(policy=policy)
    inspected = await tools.inspect("shell", {"command": ["ls"]})
    assert inspected.requirement.kind == "skip"

    policy.amend(("make",))

    with pytest.raises(PolicyChanged):
        await tools.call("shell", {"command": ["ls"]}, policy_revision=inspected.policy_revision)
    assert await started(executor) == 0
    again = await tools.inspect("shell", {"command": ["ls"]})
    assert (await tools.call("shell", {"command": ["ls"]}, policy_revision=again.policy_revision)).success
    with pytest.raises(RespondToModel):
        await tools.inspect("write_stdin", {"session_id": 1})


async def test_calls_that_read_run_side_by_side_and_others_alone(make: Make, workspace: Path) -> None:
    os.mkfifo(workspace / "meet")
    told: list[ToolEvent] = []
    tools = make(events=told.append)

    def read() -> asyncio.Task[ToolResult]:
        return asyncio.create_task(tools.call("shell", {"command": ["cat", "meet"]}))

    first, second = read(), read()
    while sum(event.type == "decided" for event in told) < 2:
        await asyncio.sleep(0.01)
    writer = asyncio.create_task(sh(tools, "touch made"))
    await asyncio.sleep(0.2)
    assert sum(event.type == "begin" for event in told) == 2

    await asyncio.to_thread(feed, workspace / "meet", (first, second))
    results = await asyncio.gather(first, second, writer)

    assert all(result.success for result in results)
    assert not await tools.is_mutating("shell", {"command": ["ls"]})
    assert await tools.is_mutating("shell", {"command": ["rm", "x"]})
    assert await tools.is_mutating("shell_command", {"command": "$(who knows)"})


def feed(fifo: Path, readers: tuple[asyncio.Task[ToolResult], ...]) -> None:
    """Open a pipe for writing until its reader is gone."""
    end = time.monotonic() + 30
    while not all(reader.done() for reader in readers) and time.monotonic() < end:
        with contextlib.suppress(OSError):
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        time.sleep(0.02)


@ONE_TRANSPORT
async def test_a_call_has_one_begin_and_one_end_whatever_comes_of_it(make: Make) -> None:
    told: list[ToolEvent] = []
    tools = make(events=told.append)

    for name, arguments in (
        ("shell", {"command": ["true"]}),
        ("shell", {"command": ["no-such-program"]}),
        ("shell", {}),
        ("nothing", {}),
        ("shell", {"command": ["rm", "-rf", "x"]}),
    ):
        told.clear()
        await tools.call(name, arguments)
        assert [event.type for event in told if event.type in ("begin", "end")] == ["begin", "end"]
        assert told[0].type == "begin"
        assert told[-1].type == "end"


async def test_the_record_of_a_call_links_decision_sandbox_process_and_result(tools: Toolset) -> None:
    result = await sh(tools, "echo hi")

    record = CallRecord.from_json(json.loads(json.dumps(result.record.to_json())))
    assert ToolResult.from_record(record) == result
    assert record.decided is not None
    assert record.decided.source == "sandbox_mode"
    assert record.decided.sandbox_policy["type"] == "workspace-write"
    assert record.decided.sandbox_type == "linuxSeccomp"
    assert record.phases == ("approval", "sandbox", "run")
    assert record.process_id
    assert result.to_openai()["output"] == result.content


class Echo:
    """A tool of the host's own."""

    kind = "custom"

    def matches_kind(self, payload: object) -> bool:
        return isinstance(payload, CustomPayload)

    async def is_mutating(self, invocation: Any) -> bool:
        return False

    async def handle(self, invocation: Any) -> Any:
        from execclient.tools.payloads import FunctionOutput

        return FunctionOutput(invocation.payload.input.upper(), success=True)


@ONE_TRANSPORT
async def test_a_host_can_add_a_tool_of_its_own(tools: Toolset) -> None:
    tools.registry.register(Echo(), ("echo",))  # type: ignore[arg-type]

    assert (await tools.call("echo", CustomPayload("hi"))).content == "HI"
    assert (await tools.call("echo", "{}")).content.startswith("cannot handle payload")


@ONE_TRANSPORT
async def test_a_bug_in_a_tool_ends_the_call_and_not_the_turn(tools: Toolset) -> None:
    class Broken(Echo):
        async def handle(self, invocation: Any) -> Any:
            raise KeyError("oops")

    tools.registry.register(Broken(), ("broken",))  # type: ignore[arg-type]

    result = await tools.call("broken", CustomPayload(""))

    assert result.content == "broken failed: KeyError"
    assert (await sh(tools, "true")).success
