"""The network of a model's commands: the hosts of the setting and of rules, and the reviewers' answers."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from execclient import connect
from execclient.govern.approval_policy import NEVER, ON_REQUEST
from execclient.govern.approvals import (
    ACCEPT,
    ACCEPT_FOR_SESSION,
    CANCEL,
    DECLINE,
    ApprovalRequest,
    Approvals,
    Review,
)
from execclient.govern.network import NetworkAccess
from execclient.govern.policy import Policy
from execclient.govern.policy.rule_files import parse_rules
from execclient.govern.policy.rules import NetworkRule
from execclient.govern.queue_approver import QueueApprover
from execclient.govern.sandbox import DangerFullAccess, ReadOnly
from execclient.tools import ToolsConfig, Toolset
from execclient.tools.errors import TurnAborted
from execclient.tools.events import NetworkDecided, ToolEvent
from tests.support.fs_workers import bubblewrap_works
from tests.support.hosts import web_host
from tests.support.toolsets import ONE_TRANSPORT, Make, User

pytestmark = [
    ONE_TRANSPORT,
    pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap and user namespaces"),
]

ASKING = ToolsConfig(network=NetworkAccess(ask=True, allow_local=True))
"""The host of the tests is on loopback."""


@pytest.fixture
def port() -> Iterator[int]:
    with web_host() as one:
        yield one


def curl(port: int, *urls: str) -> dict[str, Any]:
    # With local addresses, the variables would except loopback, which a sandbox has for itself.
    options = ["-sS", "--max-time", "20", "--noproxy", ""]
    return {"command": ["curl", *options, *(urls or (f"http://127.0.0.1:{port}/",))]}


async def test_the_user_is_asked_once_for_a_command_and_again_for_the_next(make: Make, port: int) -> None:
    user = User(ACCEPT)
    events: list[ToolEvent] = []
    toolset = make(user=user, config=ASKING, events=events.append)
    url = f"http://127.0.0.1:{port}/"

    for _ in range(2):
        result = await toolset.call("shell", curl(port, url, url))
        assert result.aggregated_output == "reachedreached"
        assert result.record.warnings == ()

    first, second = user.asked
    assert first.kind == "network"
    assert first.command == f"curl -sS --max-time 20 --noproxy '' {url} {url}"
    assert str(first.network) == f"127.0.0.1:{port} (http)"
    assert second.call_id != first.call_id
    decided = [event for event in events if isinstance(event, NetworkDecided)]
    assert [(event.decision, event.decided_by, event.port) for event in decided] == [
        ("allow", "user", port)
    ] * 2


async def test_a_refusal_reaches_the_command_and_the_model_with_its_reason(make: Make, port: int) -> None:
    toolset = make(user=User(Review("denied", "use the mirror")), config=ASKING)

    result = await toolset.call("shell", curl(port))

    assert "reached" not in result.aggregated_output
    (warning,) = result.record.warnings
    assert warning.startswith(
        f"Warning: the command was not allowed to reach 127.0.0.1:{port} (http): use the mirror. If this"
    )
    assert warning in result.content


async def test_an_answer_for_the_session_holds_for_later_commands(make: Make, port: int) -> None:
    user = User(ACCEPT_FOR_SESSION)
    toolset = make(user=user, config=ASKING)

    for _ in range(2):
        assert (await toolset.call("shell", curl(port))).aggregated_output == "reached"
    assert len(user.asked) == 1

    await toolset.call("shell", {"command": [*curl(port)["command"], "-x", "socks5h://127.0.0.1:61080"]})
    assert [str(request.network) for request in user.asked[1:]] == [f"127.0.0.1:{port} (socks5_tcp)"]


async def test_an_answer_with_a_rule_is_a_line_of_the_amendments(
    make: Make, port: int, tmp_path: Path
) -> None:
    class Always:
        async def review(self, request: ApprovalRequest) -> Review:
            return Review("approved_with_amendment", rule=request.rule)

    policy = Policy.load(tmp_path)
    asking = make(user=Always(), config=ASKING, policy=policy)
    assert (await asking.call("shell", curl(port))).aggregated_output == "reached"

    lines = (tmp_path / "rules/default.rules").read_text()
    assert lines == f'network_rule(host="127.0.0.1:{port}", protocol="http", decision="allow")\n'
    unasked = ToolsConfig(network=NetworkAccess(allow_local=True))
    later = make(user=None, config=unasked, policy=Policy.load(tmp_path))
    assert (await later.call("shell", curl(port))).aggregated_output == "reached"


async def test_a_rule_that_forbids_a_host_wins_over_an_allowance_and_no_one_is_asked(
    make: Make, port: int
) -> None:
    policy = Policy(parse_rules(f'network_rule("127.0.0.1:{port}", "http", "deny", "known to leak")', "f"))
    user = User(ACCEPT)
    access = NetworkAccess(allow=("*",), allow_local=True)

    result = await make(user=user, policy=policy, config=ToolsConfig(network=access)).call(
        "shell", curl(port)
    )
    assert "known to leak" in result.content
    assert user.asked == []

    free = make(user=user, config=ToolsConfig(network=access))
    assert (await free.call("shell", curl(port))).aggregated_output == "reached"


@pytest.mark.parametrize("sandbox", [ReadOnly(), ReadOnly(network=True)], ids=["offline", "online"])
async def test_rules_take_effect_without_a_setting(make: Make, port: int, sandbox: ReadOnly) -> None:
    with web_host() as other:
        rules = [
            NetworkRule("127.0.0.1", "http", "forbidden", port=port),
            NetworkRule("127.0.0.1", "https", "allow", port=other),
        ]
        policy = Policy()
        for rule in rules:
            policy.amend_network(rule)
        toolset = make(user=None, policy=policy, sandbox=sandbox)

        denied = await toolset.call("shell", curl(port))
        tunnel = await toolset.call("shell", {"command": [*curl(other)["command"], "--proxytunnel"]})

    assert "reached" not in denied.aggregated_output
    assert "the command was not allowed to reach" in denied.content
    # Without the network of the sandbox, a local address has to be allowed by the setting itself.
    assert ("reached" in tunnel.aggregated_output) is sandbox.network


async def test_a_command_without_its_sandbox_has_no_proxy(make: Make, port: int) -> None:
    toolset = make(user=User(ACCEPT), config=ASKING, sandbox=DangerFullAccess())

    result = await toolset.call(
        "shell", {"command": ["sh", "-c", f"echo $CODEX_NETWORK_PROXY_ACTIVE; curl -s 127.0.0.1:{port}"]}
    )

    assert result.aggregated_output == "\nreached"


async def test_a_policy_that_never_asks_denies(make: Make, port: int) -> None:
    user = User(ACCEPT)

    result = await make(user=user, approval=NEVER, config=ASKING).call("shell", curl(port))

    assert "reached" not in result.aggregated_output
    assert "the approval policy never allows no question about this host" in result.content
    assert user.asked == []


@pytest.mark.parametrize("tool", ["shell", "exec_command"])
async def test_a_reviewer_who_ends_the_turn_ends_the_running_command(
    make: Make, port: int, tool: str
) -> None:
    script = f"curl -s --noproxy '' http://127.0.0.1:{port}/; sleep 60"
    arguments: dict[str, Any] = (
        {"command": ["sh", "-c", script]} if tool == "shell" else {"cmd": script, "login": False}
    )
    toolset = make(user=User(CANCEL), config=ASKING)
    if tool == "shell":
        arguments["timeout_ms"] = 60_000

    async with asyncio.timeout(20):
        with pytest.raises(TurnAborted):
            await toolset.call(tool, arguments)


async def test_a_command_that_runs_on_is_asked_about_and_a_later_answer_has_the_note(
    make: Make, port: int
) -> None:
    toolset = make(user=User(DECLINE), config=ASKING)
    script = f"read line; curl -s --noproxy '' http://127.0.0.1:{port}/; echo done; read line"
    start = {"cmd": script, "login": False, "tty": True, "yield_time_ms": 250}
    started = await toolset.call("exec_command", start)

    session = {"session_id": int(started.process_id or 0)}
    note = f"the command was not allowed to reach 127.0.0.1:{port} (http)"
    answer = await toolset.call("write_stdin", {**session, "chars": "\n", "yield_time_ms": 1500})
    for _ in range(5):
        if note in answer.content:
            break
        answer = await toolset.call("write_stdin", {**session, "yield_time_ms": 5_000})

    assert note in answer.content


async def test_an_open_question_is_withdrawn_when_its_command_ends(make: Make, port: int) -> None:
    approver = QueueApprover()
    toolset = make(user=approver, config=ASKING)
    asking = asyncio.create_task(toolset.call("shell", {**curl(port), "timeout_ms": 3_000}))

    async with asyncio.timeout(20):
        pending = await anext(approver)
        assert (await asking).exit_code == 124
        await pending.settled()

    assert not pending.open
    await approver.close()


async def test_an_approval_of_the_command_says_which_hosts_it_permits(make: Make) -> None:
    user = User(DECLINE)
    config = ToolsConfig(network=NetworkAccess(allow=("pypi.org",)))
    toolset = make(user=user, config=config)

    await toolset.call("shell", {"command": ["rm", "-rf", "x"]})

    assert "reach pypi.org on the network" in user.asked[0].permits
    assert "no network" not in user.asked[0].permits


async def test_a_resumed_command_is_asked_about_by_the_toolset_that_resumed_it(
    url: str, workspace: Path, port: int
) -> None:
    executor = await connect(url)
    first = Toolset(executor, cwd=str(workspace), config=ASKING)
    script = f"read line; curl -s --noproxy '' http://127.0.0.1:{port}/"
    await first.call("exec_command", {"cmd": script, "login": False, "tty": True, "yield_time_ms": 250})
    (saved,) = first.sessions
    await executor.detach()

    user = User(ACCEPT)
    approvals = Approvals(user=user, policy=ON_REQUEST)
    async with (
        connect(url, session_id=executor.session_id) as again,
        Toolset(again, cwd=str(workspace), config=ASKING, approvals=approvals) as second,
    ):
        await second.resume(saved)
        typed = {"session_id": saved.number, "chars": "\n", "yield_time_ms": 20_000}
        result = await second.call("write_stdin", typed)

    assert result.aggregated_output.endswith("reached")
    assert [request.command for request in user.asked] == [shlex.join(saved.command)]
