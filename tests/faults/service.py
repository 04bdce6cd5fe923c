"""A daemon under fault: started in any way, looked at from outside, ended whatever state it is in."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.framing import Lines
from tests.support.servers import is_spawned, open_files, server_of
from tests.support.wire import (
    PATIENCE,
    Client,
    Json,
    ProcessLog,
    SocketTransport,
    StdioTransport,
    Transport,
    WebSocketTransport,
    _upgrade,
    server_command,
)

MIB = 1 << 20

STANDSTILL_SECONDS = 0.1
"""A sleep of 10 ms that takes longer than this did so because the whole machine stood still."""

BAD_LOG = ("Traceback", "request failed", "never awaited", "never retrieved", "Exception in callback")
"""What a log has only when the daemon failed."""

# The server's own grace on SIGTERM is 10 s.
_STOP_SECONDS = 15.0


class PacedClient(Client):
    """Reads all the time, but only so many bytes a second."""

    def __init__(self, transport: Transport, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._begun: float | None = None
        self._taken = 0
        super().__init__(transport)

    def _file(self, message: bytes) -> None:
        super()._file(message)
        if self._begun is None:
            self._begun = time.monotonic()
        self._taken += len(message)
        time.sleep(max(0.0, self._begun + self._taken / self._rate - time.monotonic()))


class Service:
    """One daemon on one transport: `stdio`, `unix` or `ws`.

    Args:
        transport: what it listens on.
        folder: short, of the test's own; also home and state folder.
        flags: more of the command line.
        launcher: a command in front, to start it under other circumstances.
        stderr: a descriptor for its log instead of a file that `log` reads.
        cwd: its working directory, instead of `folder`.
        env: variables besides those that it always has.
    """

    def __init__(
        self,
        transport: str,
        folder: Path,
        *flags: str,
        launcher: Sequence[str] = (),
        stderr: int | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.transport = transport
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        self.path = folder / f"s{len(os.listdir(folder))}"
        listen = {"stdio": "stdio", "unix": f"unix://{self.path}", "ws": "ws://127.0.0.1:0"}[transport]
        self.process = subprocess.Popen(
            [*launcher, *server_command(), "--listen", listen, *flags],
            stdin=subprocess.PIPE if transport == "stdio" else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log if stderr is None else stderr,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "XDG_STATE_HOME": str(folder / "state"),
                **(env or {}),
            },
            cwd=cwd or folder,
        )
        self.pid = self.process.pid
        self.url = ""
        self._clients: list[Client] = []
        try:
            self._wait_until_ready()
            self.server_pid = server_of(self.pid, PATIENCE)
        except BaseException:
            self.process.kill()
            self.process.communicate()
            raise
        self._server = os.pidfd_open(self.server_pid)

    def _wait_until_ready(self) -> None:
        if self.transport == "stdio":
            self._clients.append(Client(StdioTransport(self.process, Lines())).handshake())
        else:
            assert self.process.stdout is not None
            self.url = self.process.stdout.readline().decode().strip()
            assert self.url, self.log

    def wait_for_new_server(self, within: float = PATIENCE) -> int:
        """Wait until another server than the last known one is there, and mean that one from now on; its pid.

        Raises:
            TimeoutError: there is none.
        """
        assert self.server_ended(within), f"server {self.server_pid} lives"
        deadline = time.monotonic() + within
        while True:
            for pid in children(self.pid):
                with contextlib.suppress(OSError):
                    # Not before it is a program of its own: until then it looks like its supervisor.
                    if pid != self.server_pid and is_spawned(pid):
                        descriptor = os.pidfd_open(pid)
                        os.close(self._server)
                        self._server, self.server_pid = descriptor, pid
                        return pid
            if time.monotonic() > deadline:
                raise TimeoutError(f"no new server after {self.server_pid} in {within:g} s: {self.log}")
            time.sleep(0.002)

    # -- connections

    def socket(self) -> socket.socket:
        """A connected socket, nothing said yet."""
        if self.transport == "unix":
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(self.path))
            return connection
        address = urlsplit(self.url)
        connection = socket.create_connection((address.hostname or "", address.port or 0), PATIENCE)
        # Else a request behind a notification waits 40 ms for an acknowledgement.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def open(self) -> Transport:
        """A connection on which nothing of JSON-RPC was said yet."""
        connection = self.socket()
        if self.transport == "unix":
            return SocketTransport(connection, Lines())
        status, _, left_over = _upgrade(connection, urlsplit(self.url).netloc, "/", None)
        assert status == 101
        connection.settimeout(None)
        return WebSocketTransport(connection, left_over)

    def connect(
        self, resume: str | None = None, *, handshake: bool = True, rate: float | None = None
    ) -> Client:
        """A connection that is ready; on stdio the one that there is.

        Args:
            resume: the session to resume.
            handshake: False for a connection that has said nothing.
            rate: bytes a second that are read at most (not on stdio).
        """
        if self.transport == "stdio":
            assert rate is None
            return self._clients[0]
        transport = self.open()
        client = Client(transport) if rate is None else PacedClient(transport, rate)
        self._clients.append(client)
        return client.handshake(resume) if handshake else client

    # -- facts

    @property
    def log(self) -> str:
        """What it has logged so far."""
        with open(f"/proc/self/fd/{self._log.fileno()}", "rb") as log:
            return log.read().decode(errors="replace")

    def failures(self) -> list[str]:
        """Lines of the log that no peer should be able to cause."""
        return [line for line in self.log.splitlines() if any(text in line for text in BAD_LOG)]

    @property
    def resident(self) -> float:
        """MiB of memory of the server process."""
        return self._status("VmRSS")

    def settle(self, *, probed: bool = True) -> None:
        """Wait until it has loaded and opened what it leaves for the first moments after its start, which
        takes processor time and memory once.

        Args:
            probed: False not to wait for its try of a sandbox, two seconds after the start.

        Raises:
            AssertionError: it has not, or is busy with something else.
        """
        maps = Path(f"/proc/{self.server_pid}/maps")
        # What structlog brings with rich; behind it picows, where there are sockets.
        late = "/unicodedata." if self.transport == "stdio" else "/picows."
        assert eventually(lambda: late in maps.read_text(), within=PATIENCE), self.log
        last = {f"/proc/{self.server_pid}/mountinfo"}
        last |= {"/memfd:bwrap (deleted)"} if probed and shutil.which("bwrap") is not None else set()
        assert eventually(lambda: last <= set(open_files(self.server_pid)), PATIENCE), self.log
        spent = -1.0
        deadline = time.monotonic() + PATIENCE
        while spent != (spent := self.cpu_seconds) or self._is_busy():
            assert time.monotonic() < deadline, "it is never idle"
            time.sleep(0.3)

    def _is_busy(self) -> bool:
        """Whether it runs, or would if it had a processor, or waits for what tries a sandbox."""
        for task in Path(f"/proc/{self.server_pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has ended
                if (task / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                    return True
        return "/memfd:errors (deleted)" in open_files(self.server_pid)

    def reset_peak(self) -> float:
        """Measure `peak` from now on; what is resident now."""
        self.settle(probed=False)  # that takes less than 1 MiB
        Path(f"/proc/{self.server_pid}/clear_refs").write_text("5")
        return self.resident

    @property
    def peak(self) -> float:
        """The most MiB that were resident since `reset_peak`."""
        return self._status("VmHWM")

    def _status(self, name: str) -> float:
        for line in Path(f"/proc/{self.server_pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
        raise AssertionError("the server is gone")

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the server process so far."""
        fields = Path(f"/proc/{self.server_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def held_up_seconds(self) -> float:
        """For how long the server's main thread has waited for a processor."""
        # Documentation/scheduler/sched-stats.rst: on a processor, waiting for one, how often.
        return int(Path(f"/proc/{self.server_pid}/schedstat").read_text().split()[1]) / 1e9

    @property
    def descriptors(self) -> int:
        """Open descriptors of the server process."""
        return len(os.listdir(f"/proc/{self.server_pid}/fd"))

    @property
    def server_lives(self) -> bool:
        """Whether the server process has not ended."""
        return not select.select([self._server], [], [], 0)[0]

    def server_ended(self, within: float) -> bool:
        """Wait for the end of the server process."""
        return eventually(lambda: bool(select.select([self._server], [], [], 0)[0]), within)

    def signal_server(self, number: signal.Signals) -> None:
        """A signal to the server process."""
        signal.pidfd_send_signal(self._server, number)

    # -- the end

    def end(self) -> int:
        """Stop it; its exit status. One that does not stop is killed, and that is a failure."""
        stuck = False
        try:
            if self.process.poll() is None:
                self.process.terminate()
            try:
                return self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                stuck = True
                raise
        finally:
            if self.server_lives and (stuck or self.process.poll() is not None):
                self.signal_server(signal.SIGKILL)
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            for client in self._clients:
                client.close()
            if self.process.stdout is not None and self.transport != "stdio":
                self.process.stdout.close()
            os.close(self._server)
            self._log.close()


Serve = Callable[..., Service]


# ------------------------------------------------------------------ launchers


def with_descriptors(limit: int) -> list[str]:
    """Start it with a hard limit on descriptors."""
    return ["prlimit", f"--nofile={limit}:{limit}"]


def with_address_space(mib: int) -> list[str]:
    """Start it so that a blow-up costs the daemon its life and not the machine its memory."""
    return ["prlimit", f"--as={mib * MIB}"]


# ------------------------------------------------------------------ processes


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def a_child_is_stopped(service: Service) -> bool:
    """Whether a child of the supervisor stands still, as a server does at a fault point."""
    for pid in children(service.pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return True
    return False


def descriptors(pid: int) -> Counter[str]:
    """How many descriptors of each kind a process has open: `pipe`, `anon_inode`, a path, ..."""
    return Counter(link.partition(":")[0] for link in open_files(pid))


class Watched:
    """Some process, seen through a pidfd: no pid is looked up later."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def ended(self, within: float = 0) -> bool:
        """Whether it ends in that time."""
        return bool(select.select([self._pidfd], [], [], max(0.0, within))[0])

    def kill(self) -> None:
        """Kill it, if it lives."""
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def close(self) -> None:
        """Forget it."""
        os.close(self._pidfd)


class Fifo:
    """A line from a command that does not come by way of the daemon."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # Open for both, so that there is no end of file when a writer leaves.
        self._fd = os.open(path, os.O_RDWR)
        self._unread = b""

    def line(self, within: float = PATIENCE) -> str:
        """The next line."""
        deadline = time.monotonic() + within
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if not select.select([self._fd], [], [], max(0.0, left))[0]:
                raise TimeoutError(f"no line in {self.path} in {within:g} s")
            self._unread += os.read(self._fd, 4096)
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        """Close our end."""
        os.close(self._fd)


# ------------------------------------------------------------------ judging what came


def gaps(log: ProcessLog) -> list[Json]:
    """Numbers that are missing among the events of a process without a statement of the loss."""
    found = []
    expected = 1
    for _, params in log.events:
        seq = params["seq"]
        stated = params.get("lostBytes", 0) > 0 and params.get("firstSeq") == seq
        if seq < expected or (seq > expected and not stated):
            found.append((expected, params))
        expected = seq + 1
    return found


def lost(log: ProcessLog) -> int:
    """Bytes that were said to be lost, on whatever event."""
    return sum(int(params.get("lostBytes", 0)) for _, params in log.events)


def percentile(values: Iterable[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def latency(service: Service, work: Callable[[], object]) -> float:
    """Seconds that something took, without those in which the server was ready to go on and others had the
    processors.
    """
    begin = time.monotonic() - service.held_up_seconds
    work()
    return time.monotonic() - service.held_up_seconds - begin


def latencies(
    service: Service,
    client: Client,
    calls: Sequence[tuple[str, Json]],
    while_: Callable[[], bool],
    pause: float,
) -> list[float]:
    """The latency of each call, made in turn for as long as a condition holds."""
    taken = []
    while while_():
        for call in calls:
            taken.append(latency(service, partial(client.call, *call)))
        time.sleep(pause)
    return taken


def state_files(folder: Path) -> list[Path]:
    """Everything below the state of a service with this folder, without those in which its servers try out
    sandboxes: they come and go, and a killed server leaves its own for a minute.
    """
    walk = os.walk(folder / "state")
    found = sorted(Path(at, name) for at, folders, files in walk for name in (*folders, *files))
    return [path for path in found if "/probe-" not in str(path)]


def eventually(condition: Callable[[], bool], within: float) -> bool:
    """Whether a fact about another process, of which nobody tells, becomes true in time. A pause between two
    looks counts for no more than `STANDSTILL_SECONDS`: then nothing else has run either.
    """
    left = within
    while True:
        begin = time.monotonic()
        if condition():
            return True
        left -= time.monotonic() - begin
        if left <= 0:
            return False
        begin = time.monotonic()
        time.sleep(0.01)
        left -= min(time.monotonic() - begin, STANDSTILL_SECONDS)
