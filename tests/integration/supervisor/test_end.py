from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.supervisor.conftest import LIMIT_S, Service, Start, Watch, Watched


def begin(
    start: Start, watch: Watch, folder: Path, *more: str, name: str = "a", **options: Any
) -> tuple[Service, list[Watched]]:
    """A service that is ready, with a command and a daemon; returns also [server, command, daemon]."""
    service = start("--listen", f"unix://{folder}/{name}", "--fake-run", "{daemon}", *more, **options)
    watched = [watch(service.event(event)["pid"]) for event in ("hello", "command", "daemon")]
    service.url()
    return service, watched


def all_ended(watched: list[Watched]) -> bool:
    return all(process.ended(LIMIT_S) for process in watched)


def records(folder: Path) -> list[str]:
    """The names of the records. Each has a control socket beside it."""
    names = os.listdir(folder / "state/execserver/instances")
    numbers = [name for name in names if name.isdigit()]
    assert sorted(names) == sorted([*numbers, *(f"{number}.sock" for number in numbers)])
    return numbers


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_when_the_server_is_killed_before_it_was_ready_everything_ends(
    start: Start, watch: Watch, folder: Path, number: signal.Signals
) -> None:
    service = start("--listen", f"unix://{folder}/a", "--fake-run", "{daemon}", "--fake-late")
    watched = [watch(service.event(event)["pid"]) for event in ("hello", "command", "daemon")]
    watched[0].send(number)
    assert all_ended(watched)
    code, out, err = service.end()
    assert (code, out) == (1, "")
    assert f"the server was killed by signal {number.value}" in err
    assert not (folder / "a").exists()
    assert records(folder) == []


def test_when_the_supervisor_is_killed_the_server_ends_everything(
    start: Start, watch: Watch, folder: Path
) -> None:
    service, watched = begin(start, watch, folder)
    service.process.kill()
    assert all_ended(watched)
    assert service.event("orphaned")["survivors"] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_told_to_the_server_and_ends_with_code_0(
    start: Start, watch: Watch, folder: Path, number: signal.Signals
) -> None:
    service, watched = begin(start, watch, folder)
    service.process.send_signal(number)
    service.event("stop")
    assert service.end() == (0, "", "")
    assert all(process.ended() for process in watched)
    assert not (folder / "a").exists()
    assert records(folder) == []


def test_a_second_signal_shortens_the_wait_to_nothing(start: Start, watch: Watch, folder: Path) -> None:
    service, watched = begin(start, watch, folder, "--fake-stuck")
    service.process.terminate()
    service.event("stop")
    assert not watched[0].ended()
    service.process.terminate()
    code, _, err = service.end(timeout=LIMIT_S)
    assert code == 0
    assert "did not stop in time" in err
    assert all(process.ended() for process in watched)


def test_signals_until_the_very_end_do_not_make_a_death_of_it(start: Start, folder: Path) -> None:
    for _ in range(10):
        service = start("--listen", f"unix://{folder}/a")
        service.url()
        while service.process.poll() is None:
            service.process.terminate()
            time.sleep(0.0002)
        assert service.end()[0] == 0


def test_a_server_that_does_not_stop_is_killed_after_its_grace(
    start: Start, watch: Watch, folder: Path
) -> None:
    service, watched = begin(start, watch, folder, "--fake-stuck", grace=2.0)
    service.process.terminate()
    service.event("stop")
    code, _, err = service.end()
    assert code == 0
    assert "did not stop in time" in err
    assert all(process.ended() for process in watched)


@pytest.mark.parametrize(("server_code", "code"), [(0, 0), (1, 1), (2, 1), (77, 1)])
def test_a_server_that_announces_its_end_and_exits(
    start: Start, watch: Watch, folder: Path, server_code: int, code: int
) -> None:
    flags = ("--fake-run", "{daemon}", "--fake-stopping", "--fake-after", str(server_code))
    service = start("--listen", f"unix://{folder}/a", *flags)
    result, out, err = service.end()
    assert (result, out) == (code, f"unix://{folder}/a\n")
    assert bool(err) == bool(code)
    assert service.instance is None
    service.event("hello")
    assert not (folder / "a").exists()


def test_orphans_are_reaped_while_the_service_runs(start: Start, watch: Watch, folder: Path) -> None:
    service, [_, _, daemon] = begin(start, watch, folder)
    children = Path(f"/proc/{service.pid}/task/{service.pid}/children")
    assert str(daemon.pid) in children.read_text().split()
    daemon.send(signal.SIGKILL)
    assert daemon.ended(LIMIT_S)
    while os.path.exists(f"/proc/{daemon.pid}"):
        os.sched_yield()
    assert service.process.poll() is None


def test_children_from_before_the_exec_are_not_killed(start: Start, watch: Watch, folder: Path) -> None:
    launcher = ["sh", "-c", 'sleep 600 & echo $! >"$0"; exec "$@"', str(folder / "pid")]
    service = start("--listen", f"unix://{folder}/a", launcher=launcher, stdout=subprocess.PIPE)
    service.url()
    unrelated = watch(int((folder / "pid").read_text()))
    service.process.terminate()
    assert service.process.wait(20) == 0
    assert not unrelated.ended()
    unrelated.send(signal.SIGKILL)


def test_both_killed_at_once_the_next_start_sweeps_and_leaves_the_living(
    start: Start, watch: Watch, folder: Path
) -> None:
    living, living_processes = begin(start, watch, folder, name="living")
    dead, dead_processes = begin(start, watch, folder, name="dead")
    server, *orphans = dead_processes
    server.send(signal.SIGSTOP)  # so that it cannot keep its duty before its own end
    dead.process.kill()
    server.send(signal.SIGKILL)
    assert server.ended(LIMIT_S)
    dead.process.wait()
    assert not any(process.ended() for process in orphans)
    assert len(records(folder)) == 2

    third, third_processes = begin(start, watch, folder, name="third")

    assert all(process.ended() for process in orphans)
    assert not any(process.ended() for process in living_processes + third_processes)
    assert sorted(records(folder)) == sorted([str(living.instance), str(third.instance)])
    for service in (living, third):
        service.process.terminate()
        assert service.end()[0] == 0


@pytest.mark.parametrize("victim", ["supervisor", "none"])
def test_a_service_inside_a_service_ends_with_it(
    start: Start, watch: Watch, folder: Path, victim: str
) -> None:
    outer = start("--listen", f"unix://{folder}/outer", "--fake-run", "{nested}")
    outer.event("hello")
    inner = outer.event("hello")
    inside = [watch(inner["supervisor"]), watch(inner["pid"])]
    inside += [watch(outer.event(event)["pid"]) for event in ("command", "daemon")]
    outer.url()
    outer.process.send_signal(signal.SIGKILL if victim == "supervisor" else signal.SIGTERM)
    assert all_ended(inside)


def test_a_hangup_without_a_terminal_does_not_end_the_service(
    start: Start, watch: Watch, folder: Path
) -> None:
    service, watched = begin(start, watch, folder, start_new_session=True)
    service.process.send_signal(signal.SIGHUP)
    service.event("reload")
    assert not any(process.ended() for process in watched)
    service.process.terminate()
    assert service.end() == (0, "", "")


def test_a_hangup_signal_with_a_terminal_ends_the_service(start: Start, watch: Watch, folder: Path) -> None:
    master, slave = pty.openpty()
    service, watched = begin_in_terminal(start, watch, folder, slave)
    os.close(slave)
    service.process.send_signal(signal.SIGHUP)
    service.event("stop")
    assert service.end()[0] == 0
    assert all(process.ended() for process in watched)
    os.close(master)


def test_a_terminal_s_hangup_ends_the_service(start: Start, watch: Watch, folder: Path) -> None:
    master, slave = pty.openpty()
    service, watched = begin_in_terminal(start, watch, folder, slave)
    os.close(slave)
    os.close(master)
    assert service.end()[0] == 0
    assert all(process.ended() for process in watched)


def test_under_nohup_a_terminal_s_hangup_does_not_end_the_service(
    start: Start, watch: Watch, folder: Path
) -> None:
    master, slave = pty.openpty()
    nohup = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    service, watched = begin_in_terminal(start, watch, folder, slave, *nohup)
    os.close(slave)
    os.close(master)
    service.event("reload")
    assert not any(process.ended() for process in watched)
    service.process.terminate()
    assert service.end()[0] == 0


def begin_in_terminal(
    start: Start, watch: Watch, folder: Path, slave: int, *launcher: str
) -> tuple[Service, list[Watched]]:
    return begin(start, watch, folder, stdin=slave, launcher=["setsid", "--ctty", *launcher])


def stdio_service(start: Start, watch: Watch) -> tuple[Service, list[Watched]]:
    service = start("--listen", "stdio", "--fake-run", "{daemon}", stdin=subprocess.PIPE)
    watched = [watch(service.event(event)["pid"]) for event in ("hello", "command", "daemon")]
    assert service.process.stdin is not None
    service.process.stdin.write(b"hello\n")
    service.process.stdin.flush()
    assert service.url() == "HELLO"  # nothing came before it
    return service, watched


def test_the_end_of_stdin_ends_a_stdio_service(start: Start, watch: Watch) -> None:
    service, watched = stdio_service(start, watch)
    assert os.readlink(f"/proc/{service.pid}/fd/0") == "/dev/null"
    assert os.readlink(f"/proc/{service.pid}/fd/1") == os.readlink(f"/proc/{service.pid}/fd/2")
    assert service.end() == (0, "", "")  # communicate closes stdin
    assert all(process.ended() for process in watched)


def test_the_server_s_death_ends_a_stdio_service(start: Start, watch: Watch) -> None:
    service, watched = stdio_service(start, watch)
    watched[0].send(signal.SIGKILL)
    assert all_ended(watched)
    assert service.end()[0] == 1


def test_with_stdio_the_other_addresses_do_not_go_to_stdout(start: Start) -> None:
    service = start("--listen", "stdio", "--listen", "ws://127.0.0.1:0", stdin=subprocess.PIPE)
    assert service.error_line().startswith("ws://127.0.0.1:")
    assert service.end()[1] == ""
