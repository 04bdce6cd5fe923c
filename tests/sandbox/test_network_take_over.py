"""The network proxy of a command outlives the server: its connections, its verdicts and its questions."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from execserver.fault_points import VARIABLE
from tests.faults.service import Service
from tests.sandbox.outside import DEADLINE, wait_for
from tests.sandbox.profiles import WORKSPACE, context
from tests.sandbox.test_managed_network import network_programs
from tests.sandbox_user import remove_tree
from tests.support.wire import Client, Json, path_uri

MIB = 1 << 20


class EchoServer:
    """Sends back what it receives, up to the number of bytes that the test permits."""

    def __init__(self) -> None:
        self._permitted, self._more = 0, threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.passed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(MIB // 16):
                with self._more:
                    self._more.wait_for(lambda: self.passed < self._permitted)
                connection.sendall(data)
                self.passed += len(data)

    def permit(self, size: int) -> None:
        with self._more:
            self._permitted = size
            self._more.notify_all()

    def has_passed(self, size: float) -> bool:
        return self.passed >= size

    def end(self) -> None:
        self.permit(sys.maxsize)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Scene:
    """A service, a workspace and a session, which goes on with the next server."""

    def __init__(self, folder: Path, fault_point: str = "") -> None:
        self.ws = folder / "ws"
        self.ws.mkdir()
        self.service = Service("unix", folder, env={VARIABLE: fault_point} if fault_point else {})
        self.client: Client = self.service.connect(handshake=False).handshake(extensions=True)

    def start(
        self, argv: list[str], *, timeout_ms: int | None = None, wait: bool = True, **settings: Json
    ) -> int:
        """Start a confined command with a managed network; the id of the request."""
        proxy: Json = {"proxy": {"enabled": True, **settings}, "policyDecisionTimeoutMs": timeout_ms}
        params = self.client.start_params(
            argv,
            cwd=path_uri(self.ws),
            processId="p",
            sandbox=context(WORKSPACE, cwd=self.ws, roots=[self.ws]),
            enforceManagedNetwork=True,
            networkProxy=proxy,
        )
        number = self.client.request("process/start", params)
        if wait:
            self.client.result(number)
        return number

    def kill_server(self) -> None:
        """SIGKILL, without waiting for the next server."""
        self.service.signal_server(signal.SIGKILL)

    def resume(self) -> None:
        """Connect to the next server."""
        session = self.client.session_id
        self.client.close()
        self.service.wait_for_new_server()
        self.client = self.service.connect(handshake=False).handshake(session, extensions=True)

    def question(self) -> Json:
        """The next question of this connection."""
        self.client.wait_until(self._questions, DEADLINE, "a question")
        return self._questions()[0]

    def _questions(self) -> list[Json]:
        return [each for each in self.client.received if each.get("method") == "network/policyRequest"]

    def decisions(self) -> list[tuple[str, str, str]]:
        """Decision, source and host of all that this connection was told."""
        events = (each for each in self.client.received if each.get("method") == "network/policyDecision")
        return [
            (each["params"]["decision"], each["params"]["source"], each["params"]["host"]) for each in events
        ]

    def wait_for_file(self, name: str) -> str:
        """The content of a file that the command writes by renaming it."""
        wait_for((self.ws / name).exists, name)
        return (self.ws / name).read_text()

    def say(self, name: str) -> None:
        """Make a file that the command waits for."""
        (self.ws / name).touch()


MakeScene = Callable[..., Scene]


@pytest.fixture
def make_scene() -> Iterator[MakeScene]:
    folder = Path(tempfile.mkdtemp(prefix="outlive-")).resolve()  # short, for the path of a Unix socket
    made: list[Scene] = []

    def make(fault_point: str = "") -> Scene:
        made.append(Scene(folder, fault_point))
        return made[-1]

    yield make
    failures = [line for scene in made for line in scene.service.failures()]
    for scene in made:
        scene.client.close()
        scene.service.end()
    remove_tree(folder)
    assert failures == []


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    echo = EchoServer()
    echo.permit(sys.maxsize)
    yield echo
    echo.end()


TUNNEL = """
import hashlib, os, random, socket, sys, threading
proxy = int(os.environ["HTTP_PROXY"].rpartition(":")[2])
tunnel = socket.create_connection(("127.0.0.1", proxy))
tunnel.sendall(b"CONNECT 127.0.0.1:PORT HTTP/1.1\\r\\nHost: 127.0.0.1:PORT\\r\\n\\r\\n")
head = b""
while b"\\r\\n\\r\\n" not in head:
    head += tunnel.recv(1)
assert b" 200 " in head, head
data = random.Random(26).randbytes(SIZE)
def send():
    tunnel.sendall(data)
    tunnel.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
echoed = hashlib.sha256()
while piece := tunnel.recv(65536):
    echoed.update(piece)
open("part", "w").write(f"{echoed.hexdigest()} {hashlib.sha256(data).hexdigest()}")
os.rename("part", "digests")
"""


def test_a_tunnel_loses_no_byte_when_the_server_is_killed_twice(
    make_scene: MakeScene, echo: EchoServer
) -> None:
    scene, size = make_scene(), 24 * MIB
    script = TUNNEL.replace("PORT", str(echo.port)).replace("SIZE", str(size))
    echo.permit(size // 4)
    scene.start(["python3", "-c", script], domains={"127.0.0.1": "allow"})
    for permitted in (size // 2, size - 1):
        wait_for(partial(echo.has_passed, permitted // 2), "bytes in the tunnel")
        scene.kill_server()
        echo.permit(permitted)
        scene.resume()
    echo.permit(sys.maxsize)
    echoed, sent = scene.wait_for_file("digests").split()
    assert echoed == sent
    assert echo.passed == size


FETCH = """
fetch() { curl -s -m 15 -o /dev/null -w '%{http_code}' "$1" > part; mv part "$2"; }
await() { while [ ! -e "$1" ]; do sleep 0.02; done; }
"""


def test_verdicts_and_answers_are_the_same_with_and_without_a_server(
    make_scene: MakeScene, echo: EchoServer
) -> None:
    scene = make_scene()
    script = FETCH
    for turn in "abc":
        script += f"""
            await {turn}
            fetch http://asked.test/ {turn}-asked
            fetch http://refused.test/ {turn}-refused
            fetch http://127.0.0.1:{echo.port}/ {turn}-permitted
        """
    permitted = {"127.0.0.1": "allow", "refused.test": "deny"}
    scene.start(["/bin/sh", "-c", script], timeout_ms=30_000, domains=permitted)

    scene.say("a")
    question = scene.question()
    assert question["params"]["request"] == {"protocol": "http", "host": "asked.test", "port": 80}
    answer = {"decision": {"type": "deny", "reason": "no", "scope": "session"}}
    scene.client.send({"id": question["id"], "result": answer})
    first = [scene.wait_for_file(f"a-{name}") for name in ("asked", "refused", "permitted")]

    os.kill(scene.service.process.pid, signal.SIGSTOP)  # so that there is no next server
    scene.kill_server()
    scene.say("b")
    without = scene.wait_for_file("b-refused") if (scene.ws / "b-asked").exists() else ""
    os.kill(scene.service.process.pid, signal.SIGCONT)
    scene.resume()
    second = [scene.wait_for_file(f"b-{name}") for name in ("asked", "refused", "permitted")]
    scene.say("c")
    third = [scene.wait_for_file(f"c-{name}") for name in ("asked", "refused", "permitted")]

    assert first[:2] == ["403", "403"]
    assert without in ("", "403")
    assert first == second == third
    assert not scene._questions(), "an answer for the session was asked for again"


def test_without_a_server_known_verdicts_hold_and_a_question_is_denied_in_time(
    make_scene: MakeScene, echo: EchoServer
) -> None:
    scene = make_scene()
    script = f"""{FETCH}
        touch begun; await go
        fetch http://refused.test/ refused
        fetch http://asked.test/ asked
        fetch http://127.0.0.1:{echo.port}/ permitted
    """
    scene.start(
        ["/bin/sh", "-c", script], timeout_ms=500, domains={"127.0.0.1": "allow", "refused.test": "deny"}
    )
    scene.wait_for_file("begun")
    supervisor = scene.service.process.pid
    os.kill(supervisor, signal.SIGSTOP)
    try:
        scene.kill_server()
        scene.say("go")
        assert scene.wait_for_file("refused") == "403"
        assert scene.wait_for_file("asked") == "403"
        scene.wait_for_file("permitted")
        assert echo.passed, "a permitted host was not reached"
    finally:
        os.kill(supervisor, signal.SIGCONT)
    scene.resume()
    scene.client.wait_until(
        lambda: len(scene.decisions()) >= 3, DEADLINE, "decisions of the time without a server"
    )
    assert [(decision, host) for decision, _, host in scene.decisions()] == [
        ("deny", "refused.test"),
        ("deny", "asked.test"),
        ("allow", "127.0.0.1"),
    ]


def test_a_proxy_outlives_an_upgrade(make_scene: MakeScene, echo: EchoServer) -> None:
    scene = make_scene()
    script = f"{FETCH} fetch http://refused.test/ before; await go; fetch http://refused.test/ after"
    scene.start(["/bin/sh", "-c", script])
    assert scene.wait_for_file("before") == "403"
    os.kill(scene.service.process.pid, signal.SIGHUP)
    scene.resume()
    scene.say("go")
    assert scene.wait_for_file("after") == "403"


def test_a_question_whose_server_is_killed_is_asked_by_the_next_one(
    make_scene: MakeScene, echo: EchoServer
) -> None:
    scene = make_scene()
    script = f"{FETCH} fetch http://asked.test/ asked; fetch http://127.0.0.1:{echo.port}/ permitted"
    scene.start(["/bin/sh", "-c", script], timeout_ms=60_000)
    lost = scene.question()
    scene.kill_server()
    scene.resume()
    question = scene.question()
    assert question["params"]["request"] == lost["params"]["request"]
    scene.client.send({"id": question["id"], "result": {"decision": {"type": "deny", "reason": "no"}}})
    assert scene.wait_for_file("asked") == "403"


@pytest.mark.parametrize("point", ["after-spawn", "after-ledger"])
def test_a_start_that_was_not_recorded_never_begins_and_leaves_no_proxy(
    make_scene: MakeScene, point: str
) -> None:
    scene = make_scene(point)
    scene.start(["/usr/bin/touch", str(scene.ws / "begun")], wait=False)
    stopped(scene)
    scene.kill_server()
    scene.resume()
    wait_for(lambda: not network_programs(scene.service.process.pid), "the end of the proxy and its forker")
    assert not (scene.ws / "begun").exists()


def test_a_start_that_was_recorded_begins_with_its_proxy_under_the_next_server(make_scene: MakeScene) -> None:
    scene = make_scene("after-registration")
    scene.start(["/bin/sh", "-c", f"{FETCH} fetch http://example.com/ answer; await end"], wait=False)
    stopped(scene)
    time.sleep(0.2)
    assert not os.listdir(scene.ws) or not (scene.ws / "answer").exists()
    scene.kill_server()
    scene.resume()
    assert scene.wait_for_file("answer") == "403"
    scene.say("end")
    wait_for(lambda: not network_programs(scene.service.process.pid), "the end of the proxy")


def stopped(scene: Scene) -> None:
    """Wait until the server has stopped itself at the fault point."""
    status = Path(f"/proc/{scene.service.server_pid}/status")
    wait_for(lambda: "\nState:\tT" in status.read_text(), "the fault point")
