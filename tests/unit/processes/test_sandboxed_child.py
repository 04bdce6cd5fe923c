"""What is meant for a sandboxed command reaches it, and not the launcher that waits for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from execserver import descendants
from execserver.processes.poller import DescriptorPoller
from execserver.processes.sandboxed_child import SandboxedChild
from execserver.sandbox.bubblewrap import memory_file

SECONDS = 20.0
"""More than anything here takes on the slowest machine."""

NAMESPACES = ("--unshare-user", "--unshare-pid", "--proc", "/proc")


def hear_interrupts() -> None:
    """In a child, as the server does for its own: what runs in the background of a shell ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def begin_as_a_child(tag: int | None) -> None:
    """The same for a launcher, which may bear a tag."""
    hear_interrupts()
    if tag is not None:
        descendants.set_own_tag(tag)


class Launcher:
    """A bubblewrap with a command in it, and what we know of its inside."""

    def __init__(
        self, poller: DescriptorPoller, command: Sequence[str], options: Sequence[str], tag: int | None = None
    ) -> None:
        report = memory_file(b"")
        write = os.dup(report)
        self.kept = os.dup(report)
        self._poller = poller
        self._namespaces = "--unshare-pid" in options
        self.process = subprocess.Popen(
            [
                *("bwrap", "--new-session", "--dev-bind", "/", "/", *options),
                *("--json-status-fd", str(write), "--", *command),
            ],
            pass_fds=(write,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=partial(begin_as_a_child, tag),
        )
        os.close(write)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._said = b""
        self.child = SandboxedChild(self.process.pid, report, self._namespaces, tag, poller)
        self.ended = False

    def hand_over(self) -> None:
        """A new server takes over, with what the previous one kept."""
        self.child = SandboxedChild(self.process.pid, os.dup(self.kept), self._namespaces, None, self._poller)

    async def says(self, word: str) -> None:
        assert self.process.stdout is not None

        def said() -> bool:
            assert self.process.stdout is not None
            self._said += self.process.stdout.read() or b""
            return word.encode() in self._said

        await until(said)

    async def over(self, *, whole: bool = False) -> int:
        """Wait for the launcher, and tell what it left inside that it is gone."""
        await until(lambda: self.process.poll() is not None)
        self.told = self.child.launcher_ended(self._on_ended, whole=whole)
        return self.process.returncode

    def _on_ended(self) -> None:
        self.ended = True


async def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline, "nothing came of it"
        await asyncio.sleep(0.01)


Launch = Callable[..., Launcher]


@pytest.fixture
async def poller() -> DescriptorPoller:
    return DescriptorPoller(asyncio.get_running_loop())


@pytest.fixture
def launch(poller: DescriptorPoller) -> Iterator[Launch]:
    launched: list[Launcher] = []

    def start(script: str | Sequence[str], *options: str, tag: int | None = None) -> Launcher:
        command = ["/bin/sh", "-c", script] if isinstance(script, str) else script
        launched.append(Launcher(poller, command, options, tag))
        return launched[-1]

    yield start
    for launcher in launched:
        launcher.child.kill()
        launcher.process.kill()
        launcher.process.wait()
        assert launcher.process.stdout is not None
        launcher.process.stdout.close()
        os.close(launcher.kept)
    poller.close()


TRAP = "trap 'echo trapped; exit 7' INT; echo ready; while :; do sleep 0.1; done"


@pytest.mark.parametrize("options", [NAMESPACES, ()], ids=["namespaces", "host"])
async def test_an_interrupt_reaches_the_command_and_its_own_exit_code_comes_back(
    launch: Launch, options: Sequence[str]
) -> None:
    launcher = launch(TRAP, *options)
    await launcher.says("ready")
    launcher.child.signal(signal.SIGINT)
    assert await launcher.over() == 7
    await launcher.says("trapped")
    assert launcher.child.set_up


async def test_an_interrupt_that_comes_before_the_command_reaches_it_when_it_is_there(launch: Launch) -> None:
    # Not through a shell: one that has just begun may lose a signal of its own accord.
    launcher = launch(["sleep", "60"], *NAMESPACES)
    launcher.child.signal(signal.SIGINT)
    assert await launcher.over() == 128 + signal.SIGINT


async def test_interrupts_can_be_repeated(launch: Launch) -> None:
    launcher = launch(
        "n=0; trap 'n=$((n+1)); echo got $n; [ $n = 2 ] && exit 3' INT; echo ready; "
        "while :; do sleep 0.1; done",
        *NAMESPACES,
    )
    await launcher.says("ready")
    launcher.child.signal(signal.SIGINT)
    await launcher.says("got 1")
    launcher.child.signal(signal.SIGINT)
    assert await launcher.over() == 3


async def test_a_kill_ends_everything_inside_also_what_left_its_session(launch: Launch) -> None:
    launcher = launch("setsid sleep 61 & echo ready; sleep 60", *NAMESPACES)
    await launcher.says("ready")
    launcher.child.kill()
    assert await launcher.over() == 128 + signal.SIGKILL
    assert launcher.told
    await until(lambda: launcher.ended)


async def test_a_kill_without_namespaces_ends_the_commands_group_and_not_the_launcher(launch: Launch) -> None:
    launcher = launch("sleep 61 & echo ready; sleep 60")
    await launcher.says("ready")
    launcher.child.kill()
    assert await launcher.over() == 128 + signal.SIGKILL


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("tagged", [True, False])
async def test_who_left_the_group_is_left_to_others_where_there_is_a_tag_to_find_him_by(
    launch: Launch, tagged: bool, whole: bool
) -> None:
    tag = descendants.tag_value(descendants.new_instance(), 7) if tagged else None
    seconds = 60 if tagged else 5  # without a tag it ends by itself
    launcher = launch(f"setsid sh -c 'echo ready; exec sleep {seconds}' & sleep 60", tag=tag)
    await launcher.says("ready")
    launcher.child.kill()
    before = len(os.listdir("/proc/self/fd"))
    assert await launcher.over(whole=whole) == 128 + signal.SIGKILL
    assert launcher.told == (not (tagged and whole))
    if launcher.told:
        await until(lambda: launcher.ended)
    # Nor is it looked for any more.
    launcher.child.signal(signal.SIGTERM)
    await asyncio.sleep(0.01)
    assert not launcher.child.waiting
    assert len(os.listdir("/proc/self/fd")) == before - 2, "the report and the first process"
    if tagged:
        instance, _ = descendants.split_tag(tag or 0) or (0, 0)
        assert len(descendants.find_descendants(instance)) == 1
        assert descendants.kill_descendants(instance) == []


async def test_a_kill_without_namespaces_reaches_the_group_before_the_command_can_be_reaped(
    launch: Launch,
) -> None:
    for _ in range(20):
        launcher = launch("sleep 61 & echo ready; exec sleep 60")
        await launcher.says("ready")
        assert launcher.child.setup_pids() is not None
        group = int(Path(f"/proc/{launcher.process.pid}/task/{launcher.process.pid}/children").read_text())
        launcher.child.kill()
        await launcher.over()
        await until(partial(group_is_gone, group))


def group_is_gone(group: int) -> bool:
    """Whether a process group has no living member. A zombie, which init may reap seconds later, is none."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of_group = entry.read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                return False
    return True


async def test_nothing_goes_on_inside_when_the_launcher_is_killed(launch: Launch) -> None:
    launcher = launch("echo ready; exec sleep 60", *NAMESPACES)
    await launcher.says("ready")
    launcher.process.kill()
    assert await launcher.over() == -signal.SIGKILL
    assert launcher.told
    await until(lambda: launcher.ended)


async def test_what_is_left_without_namespaces_is_waited_for_and_not_killed(
    launch: Launch, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")
    launcher = launch(f"exec 3<>{tmp_path}/gate; echo ready; read word <&3")
    await launcher.says("ready")
    launcher.process.kill()
    assert await launcher.over() == -signal.SIGKILL
    assert launcher.told
    await asyncio.sleep(0.1)
    assert not launcher.ended
    (tmp_path / "gate").write_text("go on\n")
    await until(lambda: launcher.ended)


@pytest.mark.parametrize("status", [0, 5])
async def test_the_set_up_has_succeeded_when_the_launcher_tells_an_exit_code(
    launch: Launch, status: int
) -> None:
    launcher = launch(f"exit {status}", *NAMESPACES)
    assert await launcher.over() == status
    assert launcher.child.set_up


async def test_a_set_up_that_fails_is_told_apart_from_a_command_that_fails(launch: Launch) -> None:
    launcher = launch("exit 1", *NAMESPACES, "--bind", "/no/such/folder", "/mnt")
    assert await launcher.over() == 1
    assert not launcher.child.set_up


async def test_what_a_launcher_says_beside_is_passed_over(poller: DescriptorPoller) -> None:
    report = memory_file(b"")
    write = os.dup(report)
    child = subprocess.Popen(["sleep", "60"], start_new_session=True, preexec_fn=hear_interrupts)
    inside = SandboxedChild(0, report, False, None, poller)
    try:
        for line in (b"no json", b"[1]", b'{"child-pid": "x"}', b'{"other": 1}', b"\xff", b'"\xff"'):
            os.write(write, line + b"\n")
        inside.signal(signal.SIGINT)
        assert not inside.set_up
        os.write(write, json.dumps({"child-pid": child.pid}).encode()[:5])
        await asyncio.sleep(0.05)
        os.write(write, json.dumps({"child-pid": child.pid}).encode()[5:] + b"\n")
        await until(lambda: child.poll() is not None)
        assert child.returncode == -signal.SIGINT
    finally:
        child.kill()
        child.wait()
        os.close(write)
        inside.launcher_ended(lambda: None)
        poller.close()


async def test_without_a_report_of_the_launcher_no_process_inside_is_known(poller: DescriptorPoller) -> None:
    inside = SandboxedChild(0, memory_file(b""), True, None, poller)
    inside.signal(signal.SIGINT)
    inside.kill()
    assert not inside.launcher_ended(lambda: None)
    assert not inside.set_up
    poller.close()


async def test_a_launcher_that_says_too_much_is_not_listened_to_any_more(poller: DescriptorPoller) -> None:
    report = memory_file(b"x" * (1 << 20) + b"\n" + b'{"child-pid": %d}\n{"exit-code": 0}\n' % os.getpid())
    inside = SandboxedChild(0, report, True, None, poller)
    assert not inside.launcher_ended(lambda: None)
    assert not inside.set_up
    poller.close()


async def test_a_process_with_another_tag_has_the_number_of_one_that_is_gone(
    poller: DescriptorPoller,
) -> None:
    other = descendants.tag_value(descendants.new_instance(), 7)
    stranger = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    try:
        inside = SandboxedChild(0, memory_file(b'{"child-pid": %d}\n' % stranger.pid), False, other, poller)
        inside.kill()
        inside.signal(signal.SIGINT)
        assert not inside.launcher_ended(lambda: None), "others have to look"
        await asyncio.sleep(0.05)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        poller.close()


async def test_what_has_ended_before_anybody_looked_is_told_afterwards(poller: DescriptorPoller) -> None:
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    told: list[bool] = []
    inside = SandboxedChild(0, memory_file(b'{"child-pid": %d}\n' % child.pid), True, None, poller)
    assert inside.launcher_ended(lambda: told.append(True))
    assert not told, "the caller is still busy with the launcher's end"
    await until(lambda: told == [True])
    poller.close()


# -- other signals


async def test_what_holds_a_sandbox_together_is_known_when_there_is_a_command(
    launch: Launch, poller: DescriptorPoller
) -> None:
    launcher = launch("echo ready; exec sleep 60", *NAMESPACES)
    await launcher.says("ready")
    setup = launcher.child.setup_pids()
    assert setup is not None
    assert launcher.process.pid in setup
    names = sorted(Path(f"/proc/{pid}/comm").read_text() for pid in setup)
    assert names == ["bwrap\n", "bwrap\n"]
    unknown = SandboxedChild(0, memory_file(b""), True, None, poller)
    assert unknown.setup_pids() is None
    unknown.launcher_ended(lambda: None)


async def test_signals_that_wait_for_the_command_come_in_their_order(launch: Launch) -> None:
    launcher = launch(["sleep", "60"], *NAMESPACES)
    launcher.child.signal(signal.SIGSTOP)
    launcher.child.signal(signal.SIGCONT, leader=True)
    launcher.child.signal(signal.SIGTERM, leader=True)
    assert await launcher.over() == 128 + signal.SIGTERM


@pytest.mark.parametrize(("numbers", "state"), [("SCS", "T"), ("CSC", "S")])
async def test_the_last_word_is_whether_a_command_stops_or_goes_on(
    launch: Launch, numbers: str, state: str
) -> None:
    launcher = launch(["sleep", "60"], *NAMESPACES)
    for letter in numbers:
        launcher.child.signal({"S": signal.SIGSTOP, "C": signal.SIGCONT}[letter])
    await until(lambda: launcher.child.setup_pids() is not None and not launcher.child.waiting)
    (init,) = (pid for pid in launcher.child.setup_pids() or () if pid != launcher.process.pid)
    command = Path(f"/proc/{init}/task/{init}/children").read_text().split()[0]
    await until(lambda: Path(f"/proc/{command}/stat").read_text().rpartition(") ")[2][0] == state)
    launcher.child.kill()
    assert await launcher.over() == 128 + signal.SIGKILL


# -- a server that takes over


async def test_a_new_server_interrupts_what_its_predecessor_started(launch: Launch) -> None:
    launcher = launch(TRAP, *NAMESPACES)
    await launcher.says("ready")
    launcher.hand_over()
    launcher.child.signal(signal.SIGINT)
    assert await launcher.over() == 7
    await launcher.says("trapped")
    assert launcher.child.set_up
    await until(lambda: launcher.ended)


async def test_a_new_server_kills_everything_inside(launch: Launch) -> None:
    launcher = launch("setsid sleep 61 & echo ready; sleep 60", *NAMESPACES)
    await launcher.says("ready")
    launcher.hand_over()
    launcher.hand_over()
    launcher.child.kill()
    assert await launcher.over() == 128 + signal.SIGKILL
    assert launcher.told
    await until(lambda: launcher.ended)


async def test_a_new_server_is_told_the_end_of_what_outlives_its_launcher(launch: Launch) -> None:
    launcher = launch("echo ready; exec sleep 60", *NAMESPACES)
    await launcher.says("ready")
    launcher.hand_over()
    launcher.process.kill()
    assert await launcher.over() == -signal.SIGKILL
    assert launcher.told
    await until(lambda: launcher.ended)


@pytest.mark.parametrize("status", [0, 1])
async def test_a_report_that_a_dead_server_has_read_is_there_for_the_new_one(
    launch: Launch, status: int
) -> None:
    launcher = launch(f"exit {status}", *NAMESPACES)
    assert await launcher.over() == status
    assert launcher.child.set_up
    launcher.hand_over()
    assert await launcher.over() == status
    assert launcher.told
    assert launcher.child.set_up, "a command that ran is no sandbox that could not be set up"


async def test_a_new_server_tells_a_set_up_that_failed_too(launch: Launch) -> None:
    launcher = launch("exit 1", *NAMESPACES, "--bind", "/no/such/folder", "/mnt")
    assert await launcher.over() == 1
    launcher.hand_over()
    await launcher.over()
    assert not launcher.child.set_up
