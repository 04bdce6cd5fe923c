from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from execserver.descendants import tag_value
from tests.integration.supervisor.conftest import Start
from tests.support.servers import open_files


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def test_on_ready_the_bound_addresses_are_printed(start: Start, folder: Path) -> None:
    service = start("--listen", f"unix://{folder}/a", "--listen=ws://127.0.0.1:0")
    hello = service.event("hello")
    assert [service.url(), service.url()] == hello["urls"]
    assert hello["urls"][0] == f"unix://{folder}/a"
    port = int(hello["urls"][1].removeprefix("ws://127.0.0.1:"))
    socket.create_connection(("127.0.0.1", port)).close()
    assert connects(folder / "a")


def test_without_a_flag_the_private_socket_is_used(start: Start, folder: Path) -> None:
    service = start()
    assert service.url() == f"unix://{folder}/runtime/execserver/execserver.sock"


def test_the_server_gets_what_it_needs_and_nothing_else(start: Start, folder: Path) -> None:
    leaked = os.open("/dev/zero", os.O_RDONLY)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2

    service = start(
        "--listen",
        f"unix://{folder}/a",
        env={"LC_CTYPE": "weird", "X": "1"},
        cwd=folder / "state",
        pass_fds=[leaked],
        launcher=["prlimit", f"--nofile={soft}:"],
    )
    hello = service.event("hello")
    service.url()
    os.close(leaked)

    assert hello["supervisor"] == service.pid
    assert hello["session"] == hello["pid"]
    assert hello["cwd"] == str(folder / "state")
    assert hello["tag"] == tag_value(hello["instance"])
    assert hello["nofile"] == [soft, hello["nofile"][2], hello["nofile"][2]]
    assert hello["stdin"] == "/dev/null"
    assert hello["same_output"]
    # 0 to 2, the channel, the registration channel and its nudge pipe, the supervisor's pidfd, listener and
    # record; and the listing itself.
    assert len(hello["descriptors"]) == 10
    assert hello["environment"] == [
        "EXECSERVER_CONFIG",
        "LC_CTYPE",
        "PATH",
        "X",
        "XDG_RUNTIME_DIR",
        "XDG_STATE_HOME",
    ]
    assert os.readlink(f"/proc/{service.pid}/cwd") == "/"
    assert "/dev/zero" not in open_files(service.pid)


def test_a_deleted_launch_folder_becomes_the_root(start: Start, folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    service = start(
        "--listen", f"unix://{folder}/a", cwd=gone, launcher=["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh"]
    )
    assert service.event("hello")["cwd"] == "/"


# The C library's own (32 and 33): a process started by its posix_spawn, as make does, has
# them ignored, and no program can change that.
_THREAD_SIGNALS = 1 << 31 | 1 << 32


def test_ignored_and_blocked_signals_are_undone(start: Start, folder: Path) -> None:
    ignoring = ["sh", "-c", 'trap "" INT QUIT USR1 CHLD TERM; exec "$@"', "sh"]
    service = start("--listen", f"unix://{folder}/a", launcher=ignoring)
    service.event("hello")
    service.url()
    status = Path(f"/proc/{service.pid}/status").read_text()
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16) & ~_THREAD_SIGNALS
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    assert ignored == 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert blocked == 0
    service.process.send_signal(signal.SIGINT)
    assert service.end()[0] == 0


@pytest.mark.parametrize("code", [1, 2])
def test_a_server_that_refuses_before_ready_gives_its_code_and_no_output(
    start: Start, folder: Path, code: int
) -> None:
    service = start("--listen", f"unix://{folder}/a", "--fake-exit", str(code))
    assert service.end()[:2] == (code, "")
    assert not (folder / "a").exists()
    assert os.listdir(folder / "state/execserver/instances") == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--listen", "off"], 1, "unsupported --listen value 'off'; accepted: unix:///"),
        (["--listen"], 2, "argument --listen: expected one argument"),
        (["--listen", "unix:///proc/none/x"], 1, "cannot listen on unix:///proc/none/x"),
    ],
)
def test_a_listener_that_is_not_possible_is_said_on_stderr(
    start: Start, arguments: list[str], code: int, text: str
) -> None:
    result, out, err = start(*arguments).end()
    assert (result, out) == (code, "")
    assert text in err


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(start: Start, folder: Path) -> None:
    first = start("--listen", f"unix://{folder}/a")
    server = first.event("hello")["pid"]
    first.url()
    os.kill(server, signal.SIGSTOP)
    first.process.kill()
    os.kill(server, signal.SIGKILL)
    first.process.wait()

    second = start("--listen", f"unix://{folder}/a")
    assert second.url() == f"unix://{folder}/a"
    code, out, err = start("--listen", f"unix://{folder}/a").end()
    assert (code, out) == (1, "")
    assert f"in use by process {second.pid}" in err
    assert connects(folder / "a")


def test_of_two_simultaneous_starts_exactly_one_wins(start: Start, folder: Path) -> None:
    for turn in range(5):
        place = folder / str(turn)
        place.mkdir(mode=0o700)
        lock = os.open(place, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        rivals = [start("--listen", f"unix://{place}/s") for _ in range(2)]
        os.close(lock)
        # The loser's stdout ends without a line; the winner's has one.
        winner, loser = sorted(rivals, key=lambda rival: rival.url(), reverse=True)
        code, out, err = loser.end()
        assert (code, out) == (1, "")
        assert f"in use by process {winner.pid}" in err
        assert connects(place / "s")
        winner.process.terminate()
        assert winner.end()[0] == 0


def test_an_unusable_record_folder_is_said_and_the_service_runs(start: Start, folder: Path) -> None:
    (folder / "state/execserver").mkdir()
    (folder / "state/execserver").chmod(0o777)
    service = start("--listen", f"unix://{folder}/a")
    assert service.event("hello")["record"] is None
    assert service.url() == f"unix://{folder}/a"
    assert "no record of this instance" in service.error_line()


def test_a_server_program_that_is_missing_is_said(folder: Path) -> None:
    program = (
        "import sys; from execserver.supervisor.start import run; "
        f"sys.exit(run(['--listen', 'unix://{folder}/a'], ['/no/such/program']))"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-c", program],
        env={"XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert "cannot start the server /no/such/program" in result.stderr
    assert not (folder / "a").exists()


def test_a_service_that_cannot_bind_leaves_nothing_of_the_server_that_was_spawned_meanwhile(
    start: Start, folder: Path
) -> None:
    service = start("--listen", "unix:///dev/null/a")
    code, out, err = service.end()
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1  # the server finds nothing wrong with the options
    journal = os.fsencode(service.journal_path)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        assert journal not in command


def test_a_server_that_ends_before_its_hello_is_told_like_any_other(start: Start, folder: Path) -> None:
    # A claimed record needs the folder's lock: as long as it is held the supervisor has nothing to say.
    instances = folder / "state/execserver/instances"
    instances.mkdir(mode=0o700, parents=True)
    held = os.open(instances, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    service = start("--listen", f"unix://{folder}/a")
    while not (children := Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()):
        time.sleep(0.005)
    pidfd = os.pidfd_open(int(children[0]))
    os.kill(int(children[0]), signal.SIGKILL)
    select.select([pidfd], [], [])
    os.close(pidfd)
    os.close(held)
    code, out, err = service.end()
    assert (code, out) == (1, "")
    assert "the server was killed by signal 9" in err
    assert not (folder / "a").exists()
