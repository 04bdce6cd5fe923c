"""A server with sandboxes is killed; the new one adopts them, and nothing is left behind."""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from execserver.launch_spec import LaunchSpec
from execserver.sandbox.confinement import Confinement
from execserver.sandbox.denial import evidence
from execserver.sandbox.mount_points.adopted import AdoptedSandbox, UnknownSandbox
from execserver.sandbox.mount_points.registry import MountPoints
from execserver.sandbox.options import DaemonPaths, SandboxOptions
from execserver.sandbox.policy import Glob, Policy
from execserver.sandbox.sandboxes import Sandboxes
from tests.unit.sandbox.mount_point_daemons import NAMES, Daemon, descriptors, entries
from tests.unit.sandbox.rig import DENY, PATH, READ, WRITE, policy, workspace

# A server that makes the sandboxes it is told to on its standard input, and hands over what is to be kept.
_SERVER = """
import json, os, socket, subprocess, sys
from execserver.launch_spec import LaunchSpec
from execserver.sandbox.options import SandboxOptions
from execserver.sandbox.sandboxes import Sandboxes
from execserver.sandbox.options import DaemonPaths
from tests.unit.sandbox.rig import PATH, workspace

supervisor = socket.socket(fileno=int(sys.argv[1]))
boxes = Sandboxes(SandboxOptions(None, False, sys.argv[2]), DaemonPaths(), {"PATH": PATH})
made = []
for line in sys.stdin:
    verb, *rest = json.loads(line)
    if verb == "adopt":
        description, count = rest
        _, fds, _, _ = socket.recv_fds(supervisor, 1, count)
        made.append(boxes.adopt(description, fds))
    elif verb == "release":
        boxes.release(made.pop(0))
    else:
        command = LaunchSpec("/bin/sh", ("sh", "-c", rest[1]), "/", {"PATH": PATH}, False)
        made.append(boxes.prepare(workspace(rest[0]), command))
        if rest[1]:
            wrapped = made[-1].wrap(command)
            subprocess.Popen(
                wrapped.arguments,
                executable=wrapped.program.replace("/proc/self/", f"/proc/{os.getpid()}/"),
                env={},
                pass_fds=wrapped.passed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
    if verb != "release":
        description, fds = made[-1].recovery_state()
        socket.send_fds(supervisor, [json.dumps(description).encode()], fds)
    else:
        supervisor.send(b"released")
"""

RecoveryState = tuple[Any, list[int]]


class Server:
    """A server in a separate process; the test is the supervisor and keeps the descriptors."""

    def __init__(self, state: Path) -> None:
        self._supervisor, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(theirs.fileno()), str(state)],
                stdin=subprocess.PIPE,
                text=True,
                pass_fds=[theirs.fileno()],
            )

    def __call__(self, *words: object, pass_on: list[int] | None = None) -> RecoveryState:
        assert self._process.stdin is not None
        if pass_on is not None:
            socket.send_fds(self._supervisor, [b"x"], pass_on)
        print(json.dumps(words), file=self._process.stdin, flush=True)
        size = socket.CMSG_SPACE(253 * array.array("i").itemsize)
        message, ancillary, _, _ = self._supervisor.recvmsg(1 << 16, size, socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for _level, _type, data in ancillary:
            fds.frombytes(data)
        return (message, []) if message == b"released" else (json.loads(message), list(fds))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._supervisor.close()


@pytest.fixture
def ws(base: Path) -> Path:
    folder = base / "ws"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    return folder


@pytest.fixture
def start(state: Path) -> Iterator[Callable[[], Server]]:
    started: list[Server] = []

    def do_start() -> Server:
        started.append(Server(state))
        return started[-1]

    yield do_start
    for server in started:
        server.kill()


@pytest.fixture
def boxes(state: Path) -> Iterator[Sandboxes]:
    """The new server."""
    boxes = Sandboxes(SandboxOptions(None, False, str(state)), DaemonPaths(), {"PATH": PATH})
    yield boxes
    boxes.close()


def handed_back(kept: RecoveryState) -> RecoveryState:
    """The supervisor sends duplicates and keeps its own."""
    description, fds = kept
    return description, [os.dup(fd) for fd in fds]


def close(*kept: RecoveryState) -> None:
    for _, fds in kept:
        for fd in fds:
            os.close(fd)


def test_a_sweep_leaves_alone_what_the_supervisor_keeps(
    start: Callable[[], Server], boxes: Sandboxes, ws: Path, state: Path
) -> None:
    server = start()
    kept = server("prepare", str(ws), "")
    server.kill()
    boxes.sweep()
    assert sorted(os.listdir(ws)) == sorted([*NAMES, "a.txt"])
    confinement = boxes.adopt(*handed_back(kept))
    boxes.sweep()
    assert sorted(os.listdir(ws)) == sorted([*NAMES, "a.txt"])
    boxes.release(confinement)
    assert os.listdir(ws) == ["a.txt"], "although the supervisor has its copies still"
    assert entries(state) == []
    close(kept)


def test_an_adopted_sandbox_has_the_same_attributes(
    start: Callable[[], Server], boxes: Sandboxes, ws: Path
) -> None:
    server = start()
    kept = server("prepare", str(ws), "")
    server.kill()
    adopted = boxes.adopt(*handed_back(kept))
    assert isinstance(adopted, AdoptedSandbox)
    assert adopted.policy == workspace(ws)
    assert (adopted.backend, adopted.namespaces, adopted.cwd) == ("bubblewrap", True, "/")
    assert not adopted.releases_at_once
    assert adopted.shows
    assert adopted.recovery_state()[0] == kept[0]
    boxes.release(adopted)
    boxes.release(adopted)
    close(kept)


def test_a_command_stays_confined_while_servers_come_and_go(
    start: Callable[[], Server], boxes: Sandboxes, ws: Path
) -> None:
    os.mkfifo(ws / "gate")
    script = f"cd {ws}; read word < gate; for n in {' '.join(NAMES)}; do mkdir $n/x; done; echo $? > done"
    first = start()
    kept = first("prepare", str(ws), script)
    first.kill()
    second = start()
    second("adopt", kept[0], len(kept[1]), pass_on=kept[1])
    second.kill()
    confinement = boxes.adopt(*handed_back(kept))
    boxes.sweep()
    (ws / "gate").write_text("go on\n")
    deadline = time.monotonic() + 20
    while not (ws / "done").exists() or not (ws / "done").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (ws / "done").read_text() != "0\n"
    assert all(os.listdir(ws / name) == [] for name in NAMES)
    boxes.release(confinement)
    assert sorted(os.listdir(ws)) == ["a.txt", "done", "gate"]
    close(kept)


def test_a_mount_point_of_two_commands_goes_with_the_second(
    start: Callable[[], Server], boxes: Sandboxes, ws: Path, state: Path
) -> None:
    server = start()
    both = [server("prepare", str(ws), ""), server("prepare", str(ws), "")]
    server.kill()
    open_before = len(descriptors())
    one, other = (boxes.adopt(*handed_back(kept)) for kept in both)
    boxes.release(one)
    boxes.sweep()
    assert sorted(os.listdir(ws)) == sorted([*NAMES, "a.txt"])
    boxes.release(other)
    assert os.listdir(ws) == ["a.txt"]
    assert entries(state) == []
    close(*both)
    boxes.close()
    assert len(descriptors()) == open_before - sum(len(fds) for _, fds in both)


def test_a_command_that_had_ended_is_let_go_by_its_own_server_and_the_other_by_the_next(
    start: Callable[[], Server], boxes: Sandboxes, ws: Path
) -> None:
    server = start()
    both = [server("prepare", str(ws), ""), server("prepare", str(ws), "")]
    server("release")
    server.kill()
    boxes.sweep()
    assert len(os.listdir(ws)) == len(NAMES) + 1
    boxes.release(boxes.adopt(*handed_back(both[1])))
    assert os.listdir(ws) == ["a.txt"]
    close(*both)


def test_new_commands_share_what_was_adopted(
    start: Callable[[], Server], boxes: Sandboxes, ws: Path, state: Path
) -> None:
    server = start()
    kept = server("prepare", str(ws), "")
    server.kill()
    inodes = {name: (ws / name).stat().st_ino for name in NAMES}
    points = MountPoints(str(state))
    second = start()
    second("adopt", kept[0], len(kept[1]), pass_on=kept[1])
    fresh = second("prepare", str(ws), "")
    assert len(fresh[1]) == len(kept[1])
    second("release")
    assert {name: (ws / name).stat().st_ino for name in NAMES} == inodes
    second.kill()
    assert points.sweep() == [], "the supervisor has the locks of the second command"
    close(kept)
    boxes.release(boxes.adopt(*handed_back(fresh)))
    assert os.listdir(ws) == ["a.txt"]
    close(fresh)
    points.close()


def test_another_daemon_keeps_what_a_new_server_lets_go(
    start: Callable[[], Server], boxes: Sandboxes, ws: Path, daemons: list[Daemon], state: Path
) -> None:
    server = start()
    kept = server("prepare", str(ws), "")
    daemons[0]("acquire", f"{ws}/.git")
    server.kill()
    boxes.release(boxes.adopt(*handed_back(kept)))
    assert sorted(os.listdir(ws)) == [".git", "a.txt"]
    daemons[0]("release")
    assert os.listdir(ws) == ["a.txt"], "no copy of the supervisor's holds a lock any more"
    assert entries(state) == []
    close(kept)


def test_the_locks_on_what_a_guest_keeps_are_given_back_and_not_only_closed(
    start: Callable[[], Server], boxes: Sandboxes, ws: Path, state: Path, tmp_path: Path
) -> None:
    server = start()
    kept = server("prepare", str(ws), "")
    other_daemon = Daemon(tmp_path / "other")
    assert other_daemon("acquire", f"{ws}/.git") == [[], [f"{ws}/.git"]]
    server.kill()
    boxes.release(boxes.adopt(*handed_back(kept)))
    assert sorted(os.listdir(ws)) == [".git", "a.txt"]
    other_daemon.kill()
    boxes.sweep()
    assert os.listdir(ws) == ["a.txt"], "although the supervisor has its copies still"
    assert entries(state) == []
    close(kept)


def test_a_server_that_is_killed_while_it_lets_go_leaves_the_rest_to_the_next(
    start: Callable[[], Server], boxes: Sandboxes, ws: Path, state: Path
) -> None:
    server = start()
    kept = server("prepare", str(ws), "")
    server.kill()
    # As far as it may have come with two of them.
    (ws / ".git").rmdir()
    (ws / ".aws").rmdir()
    (ws / ".aws").mkdir()
    (ws / ".aws" / "mine").touch()
    boxes.release(boxes.adopt(*handed_back(kept)))
    assert sorted(os.listdir(ws)) == [".aws", "a.txt"]
    assert entries(state) == []
    close(kept)


@pytest.mark.parametrize("change", ["version", "backend", "mount_points", "policy", "nothing", "list"])
def test_an_unknown_sandbox_is_swept_at_its_end_and_proves_no_denial(
    start: Callable[[], Server], boxes: Sandboxes, ws: Path, state: Path, change: str
) -> None:
    server = start()
    understood, kept = server("prepare", str(ws), ""), server("prepare", str(ws), "")
    server.kill()
    description, fds = handed_back(kept)
    strange: object
    match change:
        case "version":
            strange = {**description, "version": 3}
        case "backend":
            strange = {**description, "backend": 1}
        case "mount_points":
            strange = {**description, "mount_points": description["mount_points"][1:]}
        case "policy":
            strange = {**description, "policy": {"rules": 1}}
        case "list":
            strange = [1, 2]
        case _:
            strange = None
    beside = boxes.adopt(*handed_back(understood))
    confinement = boxes.adopt(strange, fds)
    assert isinstance(confinement, UnknownSandbox)
    assert not confinement.releases_at_once
    assert not evidence(confinement.policy, 1, b"touch: x: Read-only file system", confinement.cwd).evidence
    assert confinement.recovery_state() == (strange, fds)
    boxes.release(confinement)
    boxes.sweep()
    assert len(os.listdir(ws)) == len(NAMES) + 1, "another command has the same folders"
    boxes.release(beside)
    assert os.listdir(ws) == ["a.txt"]
    assert entries(state) == []
    close(understood, kept)


def test_the_last_that_cannot_be_understood_takes_its_folders_with_it(
    start: Callable[[], Server], boxes: Sandboxes, ws: Path, state: Path
) -> None:
    server = start()
    kept = server("prepare", str(ws), "")
    server.kill()
    confinement = boxes.adopt(None, handed_back(kept)[1])
    boxes.sweep()
    assert len(os.listdir(ws)) == len(NAMES) + 1
    boxes.release(confinement)
    boxes.release(confinement)
    assert os.listdir(ws) == ["a.txt"]
    assert entries(state) == []
    close(kept)


def test_without_a_state_folder_the_descriptors_are_closed(ws: Path, base: Path) -> None:
    (base / "file").touch()
    boxes = Sandboxes(SandboxOptions(None, False, str(base / "file")), DaemonPaths(), {"PATH": PATH})
    before = descriptors()
    confinement: Confinement = boxes.adopt({"version": 1}, [os.open(ws, os.O_RDONLY)])
    boxes.release(confinement)
    assert descriptors() == before
    boxes.close()


def test_a_description_goes_through_json_whatever_the_paths_are(boxes: Sandboxes, base: Path) -> None:
    odd = os.fsdecode(os.fsencode(base) + b"/\xff\xfe \xc3\xa4\n")
    os.mkdir(odd)
    limits = policy(
        ("/", READ),
        (odd, WRITE),
        (f"{odd}/.git", DENY),
        globs=[Glob(f"{odd}/**/*.key", DENY)],
        glob_depth=3,
    )
    confinement = boxes.prepare(limits, _command(odd))
    description, fds = confinement.recovery_state()
    text = json.dumps(description, ensure_ascii=False).encode()
    adopted = boxes.adopt(json.loads(text), [os.dup(fd) for fd in fds])
    assert (adopted.policy, adopted.cwd) == (limits, odd)
    boxes.release(adopted)
    assert os.listdir(odd)
    boxes.release(confinement)
    assert os.listdir(odd) == []


def test_a_sandbox_that_needs_nothing_on_the_host_is_released_at_once(boxes: Sandboxes) -> None:
    limits = policy(("/", READ))
    confinement = boxes.prepare(limits, _command("/"))
    description, fds = confinement.recovery_state()
    assert fds == []
    adopted = boxes.adopt(description, fds)
    assert isinstance(adopted, AdoptedSandbox)
    assert adopted.releases_at_once
    assert not adopted.shows
    assert adopted.policy == limits
    with pytest.raises(ValueError, match="has been started"):
        adopted.wrap(_command("/"))
    boxes.release(adopted)
    boxes.release(confinement)


def test_a_limit_on_the_network_alone_is_adopted_too(boxes: Sandboxes) -> None:
    limits = Policy(unrestricted=True, network=False)
    confinement = boxes.prepare(limits, _command("/"))
    adopted = boxes.adopt(*confinement.recovery_state())
    assert (adopted.policy, adopted.backend, adopted.namespaces) == (limits, confinement.backend, False)
    boxes.release(adopted)
    boxes.release(confinement)


def _command(cwd: str) -> LaunchSpec:
    return LaunchSpec("/bin/sh", ("sh",), cwd, {"PATH": PATH}, tty=False)
