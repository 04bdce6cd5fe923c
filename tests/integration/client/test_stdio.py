"""`stdio:`: a daemon as a child of the client, and other commands in its place."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from execclient import ConnectionFailed, ProtocolFault, SessionLost, connect
from tests.support.wire import alive, wait_gone

PATIENCE = 10.0
OURS = [sys.executable, "-P", "-m", "execserver", "serve", "--listen", "stdio"]


def children() -> set[int]:
    mine = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in mine.read_text().split()}


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


async def test_a_command_may_stand_before_the_daemon_as_ssh_does() -> None:
    async with connect("stdio:", command=["env", "PLACE=remote", *OURS]) as executor:
        assert (await executor.run(shell("echo $PLACE"))).text == "remote\n"


async def test_leaving_ends_the_daemon_and_its_processes() -> None:
    before = children()
    async with connect("stdio:") as executor:
        process = await executor.start(["sleep", "60"])
        (daemon,) = children() - before
        assert process.pid is not None

    assert not alive(daemon)
    assert await asyncio.to_thread(wait_gone, process.pid, PATIENCE)


async def test_an_interrupt_of_our_process_group_does_not_reach_it() -> None:
    before = children()
    async with connect("stdio:", command=OURS) as executor:
        (daemon,) = children() - before
        assert os.getpgid(daemon) == os.getpgid(0)
        ignored = next(
            line for line in Path(f"/proc/{daemon}/status").read_text().splitlines() if "SigIgn" in line
        )
        assert executor.session_id
    async with connect("stdio:"):
        (daemon,) = children() - before
        assert os.getsid(daemon) != os.getsid(0)

    # The daemon itself would take it up again; `ssh`, which leaves ignored what is ignored, does not.
    assert ignored


async def test_the_shell_before_a_command_ignores_what_a_terminal_sends() -> None:
    script = "import signal, sys; sys.exit(10 * signal.getsignal(2) + signal.getsignal(3))"
    with pytest.raises(ConnectionFailed, match="exit status 11"):
        async with connect("stdio:", command=[sys.executable, "-c", script]):
            pass


async def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConnectionFailed, match="no such program: no-such-program"):
        async with connect("stdio:", command=["no-such-program", "x"]):
            pass


async def test_one_that_fails_is_quoted_with_its_status() -> None:
    script = "echo first >&2; echo 'ssh: Could not resolve hostname nowhere' >&2; exit 255"
    with pytest.raises(ConnectionFailed, match="exit status 255: ssh: Could not resolve hostname nowhere"):
        async with connect("stdio:", command=shell(script)):
            pass


async def test_its_end_is_a_lost_session_at_once_that_says_how_it_ended() -> None:
    before = children()
    async with connect(
        "stdio:", command=["sh", "-c", 'echo "dying soon" >&2; exec "$@"', "sh", *OURS]
    ) as executor:
        process = await executor.start(["sleep", "60"])
        (daemon,) = children() - before
        begin = time.monotonic()
        os.kill(daemon, signal.SIGKILL)

        with pytest.raises(SessionLost, match="killed by SIGKILL"):
            await process.wait()
        with pytest.raises(SessionLost):
            await executor.run(["true"])
        assert executor.recoveries == 0
        assert time.monotonic() - begin < 20
        assert process.pid is not None
        assert await asyncio.to_thread(wait_gone, process.pid, PATIENCE)


async def test_what_it_says_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "execclient.connection.stdio")
    command = ["sh", "-c", 'printf "one\\ntwo" >&2; exec "$@"', "sh", *OURS]
    async with connect("stdio:", command=command):
        pass

    messages = [
        record.getMessage() for record in caplog.records if record.name == "execclient.connection.stdio"
    ]
    assert "sh: one" in messages
    assert any(message.startswith("sh: two") for message in messages)


async def test_a_flood_of_error_texts_stops_nothing_and_its_end_is_kept() -> None:
    script = "yes complaint | head -c 3000000 >&2; echo 'the last' >&2; exit 1"
    with pytest.raises(ConnectionFailed, match="exit status 1: the last"):
        async with connect("stdio:", command=shell(script)):
            pass


async def test_one_that_does_not_end_with_its_input_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("execclient.connection.stdio.END_SECONDS", 0.3)
    before = children()
    script = f'{" ".join(OURS)}; trap "" TERM HUP; while :; do sleep 0.1; done'
    begin = time.monotonic()
    async with connect("stdio:", command=shell(script)) as executor:
        (stubborn,) = children() - before
        assert executor.session_id

    assert not alive(stubborn)
    assert time.monotonic() - begin < 20


async def test_a_stranger_who_keeps_its_streams_open_delays_nothing(tmp_path: Path) -> None:
    # As `ssh` with ControlPersist leaves one.
    script = f'sleep 60 & echo $! >{tmp_path}/stranger; exec "$@"'
    begin = time.monotonic()
    async with connect("stdio:", command=["sh", "-c", script, "sh", *OURS]) as executor:
        assert executor.session_id
    stranger = int((tmp_path / "stranger").read_text())

    assert time.monotonic() - begin < 20
    assert alive(stranger)
    os.kill(stranger, signal.SIGKILL)


async def test_nothing_is_imported_from_the_folder_that_we_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "execserver.py").write_text("raise SystemExit('imported from here')")
    monkeypatch.chdir(tmp_path)

    async with connect("stdio:") as executor:
        assert executor.cwd == str(tmp_path)


@pytest.mark.parametrize("noise", ["Welcome to host!", "{}", "\\xff"])
async def test_what_is_not_of_the_protocol_is_shown(noise: str) -> None:
    with pytest.raises(ProtocolFault, match="not of the protocol"):
        async with connect("stdio:", command=shell(f"printf '{noise}\\n'; cat >/dev/null")):
            pass


async def test_one_that_dies_of_a_real_time_signal_ends_in_time_too() -> None:
    with pytest.raises(ConnectionFailed, match=r"killed by signal 40"):
        async with asyncio.timeout(PATIENCE), connect("stdio:", command=shell("kill -40 $$")):
            pass
