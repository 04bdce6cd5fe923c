"""Sandboxed commands outlive the server, stay confined, and leave the workspace as it was."""

from __future__ import annotations

import base64
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execserver.fault_points import VARIABLE
from tests.faults.resuming_client import EventRow, ResumingClient
from tests.faults.service import Service
from tests.sandbox.other_backends import chosen
from tests.sandbox.profiles import at, context, restricted, special
from tests.sandbox_user import remove_tree
from tests.support.wire import PATIENCE, Json

# Says what it could do with each protected name once it is told to go on.
ACT = """
echo ready; read word
for name in .git .agents .codex .aws; do mkdir $name/x && echo made $name; done
touch kept OUT/outside
exit 7
"""


class Scene:
    """A service, a workspace, and commands in it that wait for a word."""

    def __init__(self, folder: Path, fault_point: str = "") -> None:
        self.ws, self.out = folder / "ws", folder / "out"
        self.ws.mkdir()
        self.out.mkdir()
        env = {VARIABLE: fault_point} if fault_point else {}
        self.service = Service("unix", folder, env=env, launcher=chosen(folder / "environment"))
        self.session = ResumingClient(self.service)
        self._words = 0

    def params(self, script: str) -> Json:
        """The parameters to start a confined script."""
        permissions = restricted(special("root", "read"), at(self.ws, "write"))
        return self.session.start_params(
            ["/bin/sh", "-c", script.replace("OUT", str(self.out))],
            cwd=f"file://{self.ws}",
            sandbox=context(permissions, cwd=self.ws),
            pipeStdin=True,
        )

    def start(self, script: str, output: list[bytes]) -> EventRow:
        """Start a confined script, and wait until it says that it is ready."""
        params = self.params(script)
        self.session.start_with(params)
        process = params["processId"]
        row = self.session.follow(process, lambda data, lost: output.append(data))
        self.session.client.wait_until(lambda: b"ready" in self.session.client.log(process).output)
        return row

    def kill_server(self) -> None:
        """SIGKILL the server; return when the new server has our session."""
        self.service.signal_server(signal.SIGKILL)
        self.session.reconnect()
        self.service.wait_for_new_server()

    def go_on(self, row: EventRow) -> None:
        """Let the commands continue."""
        self._words += 1
        line = {"chunk": base64.b64encode(b"go\n").decode(), "writeId": str(self._words)}
        assert self.session.call("process/write", {"processId": row.process_id, **line}) == {
            "status": "accepted"
        }


@pytest.fixture
def make_scene() -> Iterator[Callable[..., Scene]]:
    """`make_scene()`, or `make_scene(fault_point)`."""
    # A short name: a Unix socket's path has 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="take-over-")).resolve()
    made: list[Scene] = []

    def make(fault_point: str = "") -> Scene:
        made.append(Scene(folder, fault_point))
        return made[-1]

    yield make
    for scene in made:
        scene.service.end()
    remove_tree(folder)


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    return make_scene()


def test_commands_stay_confined_over_two_servers_and_the_workspace_is_left_as_it_was(scene: Scene) -> None:
    outputs: list[list[bytes]] = [[], [], []]
    first = scene.start(ACT, outputs[0])
    second = scene.start(ACT, outputs[1])
    assert len(os.listdir(scene.ws)) == 4
    scene.kill_server()
    third = scene.start(ACT, outputs[2])
    scene.kill_server()
    assert len(os.listdir(scene.ws)) == 4
    scene.go_on(first)
    scene.session.finish(first)
    assert len(os.listdir(scene.ws)) == 5, "others use the mount points still"
    scene.go_on(second)
    scene.go_on(third)
    scene.session.finish(second, third)
    assert os.listdir(scene.ws) == ["kept"]
    assert os.listdir(scene.out) == []
    for row, output in zip((first, second, third), outputs, strict=True):
        assert row.exit_code == 7
        assert b"made" not in b"".join(output)
        read = scene.session.call("process/read", {"processId": row.process_id, "afterSeq": 0})
        assert read["sandboxDenied"]


LATER = "echo ref: refs/heads/x > HEAD; echo ready; read word; mkdir objects refs; echo made; read word"
MEANWHILE = (
    "exec 3<>gate; echo ref: refs/heads/x > HEAD; echo ready; read word <&3; mkdir objects refs; echo > made;"
    "read word"
)


@pytest.mark.statement("C18")
def test_a_new_server_undoes_a_repository_whose_head_was_there_before(scene: Scene) -> None:
    output: list[bytes] = []
    row = scene.start(LATER, output)
    for _ in range(2):
        scene.kill_server()
    assert (scene.ws / "HEAD").exists(), "it is no repository yet"
    scene.go_on(row)
    scene.session.client.wait_until(lambda: b"made" in scene.session.client.log(row.process_id).output)
    wait_until(lambda: not (scene.ws / "HEAD").exists())
    scene.go_on(row)
    scene.session.finish(row)


@pytest.mark.statement("C18")
def test_a_repository_that_was_made_while_there_was_no_server_is_undone_by_the_next(scene: Scene) -> None:
    os.mkfifo(scene.ws / "gate")
    row = scene.start(MEANWHILE, [])
    os.kill(scene.service.pid, signal.SIGSTOP)
    try:
        scene.service.signal_server(signal.SIGKILL)
        assert scene.service.server_ended(PATIENCE)
        (scene.ws / "gate").write_text("go\n")
        wait_until(lambda: (scene.ws / "made").exists())
        assert (scene.ws / "HEAD").exists()
    finally:
        os.kill(scene.service.pid, signal.SIGCONT)
    scene.session.reconnect()
    scene.service.wait_for_new_server()
    wait_until(lambda: not (scene.ws / "HEAD").exists())
    scene.go_on(row)
    scene.session.finish(row)


def test_an_interrupt_reaches_a_command_whose_server_is_gone(scene: Scene) -> None:
    output: list[bytes] = []
    row = scene.start("trap 'echo trapped; exit 9' INT; echo ready; while :; do sleep 0.1; done", output)
    scene.kill_server()
    scene.session.call("process/signal", {"processId": row.process_id, "signal": "interrupt"})
    scene.session.finish(row)
    assert row.exit_code == 9
    assert b"trapped" in b"".join(output)
    assert os.listdir(scene.ws) == []


def test_a_terminate_ends_everything_in_a_sandbox_whose_server_is_gone(scene: Scene) -> None:
    row = scene.start("setsid sleep 600 & echo ready; exec sleep 600", [])
    scene.kill_server()
    scene.session.call("process/terminate", {"processId": row.process_id})
    scene.session.finish(row)
    assert row.exit_code == 128 + signal.SIGKILL
    assert os.listdir(scene.ws) == []


def test_a_sandbox_that_ends_without_a_server_is_cleaned_up_by_the_next(scene: Scene) -> None:
    os.mkfifo(scene.ws / "gate")
    row = scene.start("exec 3<>gate; echo ready; read word <&3; exit 4", [])
    scene.service.signal_server(signal.SIGKILL)
    (scene.ws / "gate").write_text("go\n")
    scene.session.reconnect()
    scene.service.wait_for_new_server()
    scene.session.finish(row)
    assert row.exit_code == 4
    assert os.listdir(scene.ws) == ["gate"]


@pytest.mark.parametrize(
    "point",
    [
        "before-spawn",
        "before-pidfd",
        "after-spawn",
        "after-ledger",
        "after-registration",
        "after-exit-journal",
    ],
)
def test_a_server_that_is_killed_over_a_start_or_an_end_leaves_no_mount_point(
    make_scene: Callable[..., Scene], point: str
) -> None:
    scene = make_scene(point)
    scene.session.client.request("process/start", scene.params("exit 3"))
    wait_until(lambda: _is_stopped(scene.service.server_pid))
    scene.kill_server()
    wait_until(lambda: os.listdir(scene.ws) == [])


@pytest.mark.statement("H45")
@pytest.mark.parametrize(
    "point", ["before-pidfd", "after-spawn", "after-ledger", "after-locks", "after-registration"]
)
def test_a_command_whose_start_is_sent_again_to_the_next_server_runs_once(
    make_scene: Callable[..., Scene], point: str
) -> None:
    scene = make_scene(point)
    params = {**scene.params("echo ran >> runs"), "ifExists": "attach", "pipeStdin": False}
    scene.session.client.request("process/start", params)
    wait_until(lambda: _is_stopped(scene.service.server_pid))
    time.sleep(0.5)  # the command would run now, if it did not wait
    assert not (scene.ws / "runs").exists()
    scene.kill_server()
    scene.session.start_with(params)
    scene.session.finish(scene.session.follow(params["processId"], lambda data, lost: None))
    assert (scene.ws / "runs").read_text() == "ran\n"


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wait_until(done: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.01)
