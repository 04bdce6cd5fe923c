"""A session whose program was killed is resumed by another one, with its running commands."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from agents.sandbox.errors import PtySessionNotFoundError

from execclient.integrations.openai_agents import ExecServerSandboxClient
from tests.third_party.openai_agents.test_session import root_of, started, text_of

BEGIN = """
import asyncio, json, os, sys
from execclient.integrations.openai_agents import ExecServerSandboxClient

async def main():
    client = ExecServerSandboxClient(sys.argv[1], ttl=600)
    session = await client.create()
    await session.start()
    early = client.serialize_session_state(session.state)
    terminal = await session.pty_exec_start(
        "echo ready; while read line; do echo got $line; done", tty=True, yield_time_s=0.5
    )
    counting = await session.pty_exec_start("seq 1000; sleep 2; seq 1001 2000", yield_time_s=1)
    await session.exec("echo made > file")
    saved = client.serialize_session_state(session.state)
    numbers = [terminal.process_id, counting.process_id]
    print(json.dumps([early, saved, numbers, counting.output.decode()]), flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.fixture
def killed(url: str) -> tuple[dict[str, object], dict[str, object], list[int], str]:
    """The states that a killed program has saved, before and after it started two commands."""
    done = subprocess.run([sys.executable, "-c", BEGIN, url], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -9
    early, saved, numbers, output = json.loads(done.stdout)
    return early, saved, numbers, output


async def all_of(session: Any, number: int) -> tuple[str, int | None]:
    """The rest of the output of a command, and its exit code."""
    output = b""
    while True:
        update = await session.pty_write_stdin(session_id=number, chars="")
        output += update.output
        if update.process_id is None:
            return output.decode(), update.exit_code


async def test_running_commands_are_found_and_read_on_from_the_saved_place(
    url: str, killed: tuple[dict[str, object], dict[str, object], list[int], str]
) -> None:
    _, saved, (terminal, counting), before = killed
    client = ExecServerSandboxClient(url)
    session = await client.resume(client.deserialize_session_state(saved))
    try:
        async with session:
            assert await text_of(session, "file") == "made\n"
            typed = await session.pty_write_stdin(session_id=terminal, chars="hello\n", yield_time_s=2)
            assert typed.output.replace(b"\r", b"") == b"hello\ngot hello\n"
            after, code = await all_of(session, counting)
            assert (before + after, code) == ("".join(f"{n}\n" for n in range(1, 2001)), 0)
            with pytest.raises(PtySessionNotFoundError):
                await session.pty_write_stdin(session_id=counting, chars="")
    finally:
        await client.delete(session)
    assert not root_of(session).parent.exists()


async def test_a_state_from_before_the_commands_finds_them_with_all_their_output(
    url: str, killed: tuple[dict[str, object], dict[str, object], list[int], str]
) -> None:
    early, _, (_, counting), _ = killed
    client = ExecServerSandboxClient(url)
    session = await client.resume(client.deserialize_session_state(early))
    try:
        async with session:
            assert await all_of(session, counting) == ("".join(f"{n}\n" for n in range(1, 2001)), 0)
    finally:
        await client.delete(session)


@pytest.mark.without_chaos
async def test_two_sessions_of_one_client_may_share_a_state(url: str) -> None:
    client = ExecServerSandboxClient(url)
    async with started(client) as session:
        again = await client.resume(session.state)
        update = await session.pty_exec_start("echo one; sleep 60", yield_time_s=0.25)
        assert update.process_id is not None
        assert (await again.pty_write_stdin(session_id=update.process_id, chars="")).output == b""
        await again._inner.shutdown()
        assert (await session.exec("echo still here")).stdout == b"still here\n"


async def test_a_session_that_has_ended_is_resumed_with_its_files_alone(url: str) -> None:
    client = ExecServerSandboxClient(url)
    session = await client.create()
    async with session:
        await session.exec("echo one > file")
    saved = client.serialize_session_state(session.state)
    resumed = await client.resume(client.deserialize_session_state(saved))
    async with resumed:
        assert await text_of(resumed, "file") == "one\n"
    await client.delete(resumed)
    assert not root_of(resumed).parent.exists()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1
