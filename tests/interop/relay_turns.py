"""The stock agent against an executor behind our relay, with the scenarios of the shared stock client.

`python -m tests.interop.relay_turns SHARED_FOLDER BASE ENVIRONMENT [--supervisor PID] --scenario NAME …` runs
them with the options of its `run_turn.py`; the client's token is in RELAY_TOKEN. The agent is told of the
relay by the stock variables and comes to it through a recorder on TCP, which alters nothing: what passes is
sealed, so it says which requests and sockets there were, and that nothing of the turn was legible; of a BASE
with https it sees that somebody came. With `--door` the agent is told of the plain door by its
`environments.toml`, and the shared client's own recorder reads along.

Scenarios of our own, beside the shared ones:

- `relay_cut`: the agent's connections are cut while a command runs;
- `relay_kill`: the executor's server process (below `--supervisor`) is killed while a command runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.interop.stock_turns import add_scenarios
from tests.support.servers import server_of

TICKS = 10
LEGIBLE = (b"process/start", b'"argv"', b"sessionId", b"resumeSessionId", b"processId")
"""What would be read by somebody who listens, were it not sealed."""


class Passed:
    """What the recorder saw; written by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.targets: list[str] = []
        """Method and path of each request, without the query."""
        self.upgrades = 0
        self.messages = 0
        self.legible: list[bytes] = []

    def request(self, head: str) -> None:
        """A request began."""
        with self._lock:
            self.targets.append(head.partition("?")[0].removesuffix(" HTTP/1.1"))

    def upgraded(self) -> None:
        """A WebSocket was agreed on."""
        with self._lock:
            self.upgrades += 1

    def message(self, data: bytes) -> None:
        """A WebSocket message passed."""
        with self._lock:
            self.messages += 1
            self.legible += [word for word in LEGIBLE if word in data]


def make_tap(taps: Any, base: str, variables: dict[str, str], passed: list[Passed]) -> Any:
    """The class that takes the place of the shared client's recorder.

    Args:
        taps: the shared module.
        base: of the relay.
        variables: those of the client, completed once the recorder has its port.
        passed: gets what each recorder sees.
    """

    class Quiet:
        """A recorder's file, which is not wanted: only messages are looked at."""

        def __init__(self, seen: Passed) -> None:
            self.seen = seen

        def add(self, **record: Any) -> None:
            if record.get("kind") in ("text", "binary"):
                raw = record.get("raw")
                self.seen.message(taps.base64.b64decode(raw) if raw else b'"argv"')  # JSON is legible

    class Decoder(taps.FrameDecoder):  # type: ignore[misc]
        """Requests by their first line, WebSocket messages by the shared decoder."""

        def feed(self, data: bytes) -> None:
            seen: Passed = self.rec.seen
            if not self.head_done:
                line = data.split(b"\r\n", 1)[0].decode("latin-1")
                if line.startswith(("GET ", "POST ")):
                    seen.request(line)
                if "101" in line.split()[1:2]:
                    seen.upgraded()
                elif not line.startswith("GET "):
                    return
            super().feed(data)

    class Tap(taps.WsTap):  # type: ignore[misc]
        def __init__(self, host: str, port: int, _recorder: object) -> None:
            seen = Passed()
            passed.append(seen)
            super().__init__(host, port, Quiet(seen))
            parts = urlsplit(base)
            variables["CODEX_EXEC_SERVER_NOISE_REGISTRY_URL"] = parts._replace(
                netloc=f"{host}:{self.port}"
            ).geturl()

    taps.FrameDecoder = Decoder
    return Tap


def make_door_tap(taps: Any, base: str, environment: str, variables: dict[str, str]) -> Any:
    """The shared recorder, and the agent's file that leads through it to the plain door."""

    class Tap(taps.WsTap):  # type: ignore[misc]
        def __init__(self, host: str, port: int, recorder: object) -> None:
            super().__init__(host, port, recorder)
            url = f"ws://{host}:{self.port}{urlsplit(base).path}/exec/{environment}"
            (Path(variables["CODEX_HOME"]) / "environments.toml").write_text(
                'default = "remote"\ninclude_local = false\n[[environments]]\nid = "remote"\n'
                f'url = "{url}"\nauth_bearer_token = "{os.environ["RELAY_TOKEN"]}"\n'
            )

    return Tap


def checked(scenario: Any, passed: list[Passed], base: str, environment: str) -> Any:
    """A scenario that also says whether the turn went through the relay."""

    class Relayed(scenario):  # type: ignore[misc]
        def check(self, ctx: Any, c: Any) -> None:
            seen = passed[-1]
            if base.startswith("https:"):
                c("it came for an introduction, and to the rendezvous", ctx.tap.n >= 2, str(ctx.tap.n))
                super().check(ctx, c)
                return
            asked = [
                target for target in seen.targets if target.endswith(f"/environment/{environment}/connect")
            ]
            c("the registry was asked", bool(asked), str(seen.targets))
            c("a socket to the rendezvous was opened", seen.upgrades >= 1, str(seen.targets))
            c("messages passed", seen.messages > 4, str(seen.messages))
            c("nothing legible passed", not seen.legible, str(seen.legible[:3]))
            super().check(ctx, c)

    return Relayed


def interrupted_scenarios(scenarios: Any, passed: list[Passed], supervisor: int) -> dict[str, Any]:
    """Those of our own."""

    class Interrupted(scenarios.Scenario):  # type: ignore[misc]
        timeout = 80

        def script(self, ctx: Any) -> Any:
            ticks = f"for i in $(seq 1 {TICKS}); do echo tick-$i; echo $i > reached; sleep 0.4; done"
            return [
                [scenarios.run("c1", f"{ticks}; echo the-end; exit 5", yield_time_ms=30_000)],
                [scenarios.run("c2", "echo after-it")],
                scenarios.DONE,
            ]

        def during(self, ctx: Any) -> None:
            reached = ctx.ws / "reached"
            deadline = time.monotonic() + 30
            while not (reached.exists() and reached.read_text().strip() in ("3", "4", "5")):
                if time.monotonic() > deadline:
                    return
                time.sleep(0.02)
            self.interrupt(ctx)

        def interrupt(self, ctx: Any) -> None:
            raise NotImplementedError

        def check(self, ctx: Any, c: Any) -> None:
            text = ctx.mock.text("c1")
            seen = [len(re.findall(rf"tick-{number}\b", text)) for number in range(1, TICKS + 1)]
            c("every tick exactly once", seen == [1] * TICKS, text)
            c("end and exit code survive", "the-end" in text and scenarios.exit_of(text) == 5, text)
            c("the next command works", "after-it" in ctx.mock.text("c2"), ctx.mock.text("c2"))

    class RelayCut(Interrupted):
        name = "relay_cut"
        doc = "the agent's connections to the relay are cut while a command runs: nothing is lost or doubled"

        def interrupt(self, ctx: Any) -> None:
            # New connections are let through at once: the stock agent asks a registry that cannot be reached
            # at all a single time, other than one that answers 409 or 5xx.
            ctx.tap.cut()

        def check(self, ctx: Any, c: Any) -> None:
            super().check(ctx, c)
            c("there was a second socket", passed[-1].upgrades >= 2, str(passed[-1].targets))

    class RelayKill(Interrupted):
        name = "relay_kill"
        doc = "the executor's server is killed while a command runs: the turn is kept"

        def setup(self, ctx: Any) -> None:
            self.killed = 0

        def interrupt(self, ctx: Any) -> None:
            self.killed = server_of(supervisor, 10)
            os.kill(self.killed, signal.SIGKILL)

        def check(self, ctx: Any, c: Any) -> None:
            super().check(ctx, c)
            c("another server runs now", self.killed not in (0, server_of(supervisor, 10)), str(self.killed))

    return {"relay_cut": RelayCut, "relay_kill": RelayKill}


def main(argv: list[str]) -> int:
    """Run scenarios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shared", type=Path)
    parser.add_argument("base")
    parser.add_argument("environment")
    parser.add_argument("--supervisor", type=int, default=0)
    parser.add_argument("--door", action="store_true")
    options, rest = parser.parse_known_args(argv)
    folder = options.shared.resolve() / "stock_client"
    if not folder.is_dir():
        parser.error(f"{folder} is missing: set SHARED to the shared folder")
    sys.path.insert(0, str(folder))
    run_turn: Any = importlib.import_module("run_turn")
    scenarios: Any = importlib.import_module("scenarios")
    add_scenarios()
    taps: Any = importlib.import_module("taps")

    variables: dict[str, str] = {}
    passed: list[Passed] = []
    base_env = run_turn.base_env

    def client_environment(home: Path) -> dict[str, str]:
        variables.clear()
        variables.update(base_env(home))
        if not options.door:
            variables["CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID"] = options.environment
            variables["CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN"] = os.environ["RELAY_TOKEN"]
        return variables

    run_turn.base_env = client_environment
    if options.door:
        run_turn.WsTap = make_door_tap(taps, options.base, options.environment, variables)
    else:
        run_turn.WsTap = make_tap(taps, options.base, variables, passed)
        run_turn.Recorder = lambda _path: None  # its records are messages in the clear, and there are none
        scenarios.ALL |= interrupted_scenarios(scenarios, passed, options.supervisor)
        for name, scenario in scenarios.ALL.items():
            scenarios.ALL[name] = checked(scenario, passed, options.base, options.environment)
    parts = urlsplit(options.base)
    sys.argv = [str(folder / "run_turn.py"), "--server-url", f"ws://{parts.hostname}:{parts.port}", *rest]
    return int(run_turn.main() or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
