"""Approvals by the user of the host."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult

from tests.third_party.mcp.conftest import Hosts, output_of, text

pytestmark = pytest.mark.without_chaos  # the user is asked before anything is sent to the daemon

Action = Literal["accept", "decline", "cancel"]


class User:
    """Gives one answer to all questions, and keeps them."""

    def __init__(self, action: Action, **content: str) -> None:
        self.asked: list[str] = []
        self._answer = ElicitResult(action=action, content=dict(content) if action == "accept" else None)

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        self.asked.append(params.message)
        return self._answer


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that no sandbox of these tests may write to: below neither /tmp nor the workspace."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".outside-") as folder:
        yield Path(folder)


def escalated(outside: Path) -> dict[str, object]:
    """A command that asks to run without the sandbox."""
    return {
        "cmd": f"echo written >> {outside}/file && echo done",
        "login": False,
        "sandbox_permissions": "require_escalated",
        "justification": "May I write to that folder?",
    }


async def test_the_sandbox_holds_until_the_user_lifts_it(hosts: Hosts, outside: Path) -> None:
    user = User("accept")
    async with hosts.start(asked=user) as client:
        command = f"echo written >> {outside}/file"
        denied = await client.call_tool("exec_command", {"cmd": command, "login": False})
        assert denied.is_error
        assert not (outside / "file").exists()
        assert user.asked == []

        result = await client.call_tool("exec_command", escalated(outside))

    assert output_of(result) == "done\n"
    assert (outside / "file").read_text() == "written\n"
    (asked,) = user.asked
    assert "May I write to that folder?" in asked
    assert f"echo written >> {outside}/file" in asked
    assert "- run without a sandbox" in asked


async def test_no_text_of_the_model_looks_like_a_part_of_the_question(hosts: Hosts, outside: Path) -> None:
    user = User("decline")
    forged = escalated(outside)
    forged["cmd"] = "echo 1\n\nThis permits:\n- nothing\n\x1b[2Kecho 2"
    forged["justification"] = "It is harmless.\n\nThis permits:\n- nothing\u202e"
    async with hosts.start(asked=user) as client:
        await client.call_tool("exec_command", forged)

    (asked,) = user.asked
    assert asked.splitlines().count("This permits:") == 1
    assert "- nothing" not in asked.splitlines()
    assert not {"\x1b", "\u202e"} & set(asked)
    assert f"Folder: {hosts.workspace}" in asked


async def test_an_approval_for_the_session_is_asked_for_once(hosts: Hosts, outside: Path) -> None:
    user = User("accept", remember="in this session")
    async with hosts.start(asked=user) as client:
        for _ in range(2):
            result = await client.call_tool("exec_command", escalated(outside))
            assert output_of(result) == "done\n"

    assert len(user.asked) == 1


@pytest.mark.parametrize(
    ("action", "reason"), [("decline", "rejected by user"), ("cancel", "the user dismissed the question")]
)
async def test_a_refusal_runs_nothing(hosts: Hosts, outside: Path, action: Action, reason: str) -> None:
    async with hosts.start(asked=User(action)) as client:
        result = await client.call_tool("exec_command", escalated(outside))

    assert result.is_error
    assert reason in text(result)
    assert not (outside / "file").exists()


async def test_a_host_that_cannot_ask_gets_the_reason_and_the_ways_out(hosts: Hosts, outside: Path) -> None:
    async with hosts.start() as client:
        result = await client.call_tool("exec_command", escalated(outside))

    assert result.is_error
    assert "this host cannot ask its user" in text(result)
    assert "--sandbox danger-full-access" in text(result)
    assert f"{hosts.state}/.config/execserver/rules" in text(result)
    assert not (outside / "file").exists()


@pytest.mark.parametrize("mode", ["legacy"], indirect=True)
async def test_options_and_rules_decide_without_a_question(hosts: Hosts, outside: Path) -> None:
    rules = hosts.state / "test.rules"
    rules.write_text('prefix_rule(["cat"], "forbidden", justification = "use read_file")\n')
    command = f"echo written >> {outside}/file && echo done"
    async with hosts.start("--writable", str(outside), "--rules", str(rules)) as client:
        written = await client.call_tool("exec_command", {"cmd": command, "login": False})
        forbidden = await client.call_tool("exec_command", {"cmd": "cat /etc/hostname", "login": False})

    assert output_of(written) == "done\n"
    assert forbidden.is_error
    assert "use read_file" in text(forbidden)
    async with hosts.start("--sandbox", "danger-full-access") as client:
        written = await client.call_tool("exec_command", {"cmd": command, "login": False})
    assert (outside / "file").read_text() == "written\n" * 2


async def test_other_calls_are_answered_while_the_user_thinks(hosts: Hosts, outside: Path) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slowly(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.set()
        await answer.wait()
        return ElicitResult(action="decline")

    async with hosts.start(asked=slowly) as client:
        asking = asyncio.create_task(client.call_tool("exec_command", escalated(outside)))
        await asked.wait()
        assert not (await client.call_tool("list_sessions", {})).is_error
        answer.set()
        assert (await asking).is_error


async def test_a_cancelled_question_runs_nothing(hosts: Hosts, outside: Path) -> None:
    asked = asyncio.Event()

    async def never(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with hosts.start(asked=never) as client:
        asking = asyncio.create_task(client.call_tool("exec_command", escalated(outside)))
        await asked.wait()
        asking.cancel()
        await asyncio.wait({asking})
        result = await client.call_tool("exec_command", {"cmd": "echo next", "login": False})

    assert output_of(result) == "next\n"
    assert not (outside / "file").exists()


CURL = {"cmd": "curl -s -m 1 http://1.0.0.1:9/", "login": False}
"""The host is never reached: its address is asked about, and nothing listens there."""


@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_the_user_is_asked_about_a_host_while_its_command_runs(hosts: Hosts, action: Action) -> None:
    user = User(action)
    async with hosts.start("--network-ask", asked=user) as client:
        result = await client.call_tool("exec_command", CURL)

    if hosts.mode != "legacy":  # such a host can be asked between calls only
        assert user.asked == []
        assert "this host can be asked only before a command runs" in text(result)
        return
    (asked,) = user.asked
    assert "  host:     1.0.0.1\n  port:     9\n  protocol: http\n" in asked
    assert "curl -s -m 1 http://1.0.0.1:9/" in asked
    assert "- connect to 1.0.0.1:9 (http)" in asked
    denied = "the command was not allowed to reach 1.0.0.1:9 (http): rejected by user" in text(result)
    assert denied is (action == "decline")


async def test_a_host_is_denied_that_a_command_asks_for_after_its_call(hosts: Hosts) -> None:
    user = User("accept")
    waiting = {"cmd": f"read line; {CURL['cmd']}", "login": False, "tty": True, "yield_time_ms": 250}
    async with hosts.start("--network-ask", asked=user) as client:
        started = await client.call_tool("exec_command", waiting)
        session = int(started.structured_content["processId"])
        typed = {"session_id": session, "chars": "\n", "yield_time_ms": 10_000}
        result = await client.call_tool("write_stdin", typed)

    assert user.asked == []
    assert "the call that started the command has ended" in text(result)


async def test_listed_hosts_are_reached_without_a_question(hosts: Hosts) -> None:
    user = User("decline")
    async with hosts.start("--network-ask", "--network-allow", "1.0.0.1", asked=user) as client:
        result = await client.call_tool("exec_command", CURL)

    assert user.asked == []
    assert "was not allowed to reach" not in text(result)
