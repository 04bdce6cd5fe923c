"""A service with a session at work, which can be brought into a state and looked at from outside.

What is there before anything goes wrong, in every cell of the matrix:

- a *counter*, which writes numbered blocks, one for each credit, and exits with 7;
- an *echo*, which gives back what is written to it and ends, with 0, after `ECHO` bytes;
- a *tree*: a leader, and a child in a session of its own, one forked twice, one with an empty environment.

Every program of a scene that lives on has a `mark` of the scene as its argument: that finds it, whoever its
parent is, whatever its session and its environment are.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.faults import counters
from tests.faults.resuming_client import EventRow, ResumingClient
from tests.faults.service import Serve, Service, children, eventually, state_files
from tests.faults.sizes import GONE_SECONDS
from tests.support.servers import open_files
from tests.support.wire import Client, Json, connect_unix, encode

TREE_SIZE = 4
DISK_KIB = 8192
RING_BYTES = 4 << 20

BLOCKS_BEFORE, BLOCKS_MEANWHILE, BLOCKS_AFTER = 2, 2, 4
BLOCKS = BLOCKS_BEFORE + BLOCKS_MEANWHILE + BLOCKS_AFTER

_TREE = """
(setsid sleep MARK &)
(setsid sh -c '(sleep MARK &)' &)
(env -i /usr/bin/setsid /bin/sleep MARK &)
exec sleep MARK
"""

STARTS = 4
"""How many processes `Scene` starts: the next one is a test's."""
WRITES = 1
"""How many writes to a standard input it makes."""
EXITS = 1
"""How many processes end."""

_ECHO_PARTS = [bytes([65 + number]) * 3000 + b"\n" for number in range(3)]

_marks = itertools.count(os.getpid() * 1000)


def marked(mark: str) -> list[int]:
    """Processes with that first argument, so not yet what becomes one of them; a zombie has none."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")[1:2]:
                    found.append(int(entry))
    return found


class Scene:
    """One service in one cell.

    Args:
        serve: starts it.
        folder: of the test.
        point: where its first server stops, with the times that it passes; empty for nowhere.
        transport: of the client.
        launcher: a command in front of the daemon's.
        spool: the folder for its spool, instead of the one by default.
    """

    def __init__(
        self,
        serve: Serve,
        folder: Path,
        point: str = "",
        *,
        transport: str = "unix",
        launcher: Sequence[str] = (),
        spool: Path | None = None,
    ) -> None:
        self.folder = folder
        self.mark = f"8{next(_marks)}"
        self.point = point
        flags = ["--retained-output-bytes", str(RING_BYTES)]
        if spool is not None:
            flags += ["--spool-dir", str(spool)]
        env = {"EXECSERVER_FAULT_POINT": point} if point else {}
        self._serve, self._flags = serve, flags
        self._in_state = spool is None
        self.service: Service = serve(transport, *flags, may_fail=True, launcher=launcher, env=env)
        self.session = ResumingClient(self.service, self._dial)
        self._relay: subprocess.Popen[bytes] | None = None
        self._warm_up()
        self.listing = state_files(self.folder)
        self.held = [held(pid) for pid in (self.service.pid, self.service.server_pid)]
        self.may_lose = False
        """Whether output may be missing, if that is stated."""
        self._credit = self._open_credit()
        self.check = counters.CounterCheck()
        self.echoed = bytearray()
        self.counter = self._follow(counters.writer(self._credit_path, BLOCKS), self.check.take)
        size = sum(map(len, _ECHO_PARTS))
        self.echo = self._follow(
            ["/usr/bin/head", "-c", str(size)], lambda data, lost: self.echoed.extend(data), pipeStdin=True
        )
        self.tree = self.session.start("/bin/sh", "-c", _TREE.replace("MARK", self.mark))
        assert eventually(lambda: len(marked(self.mark)) == TREE_SIZE, within=10)
        self._give(BLOCKS_BEFORE)
        self._write_echo(0)

    # -- making it

    def _warm_up(self) -> None:
        """One process of each life, so that what is made once is made; the last of it after ready."""
        self.session.client.start("/bin/echo", "warm").wait_closed()
        if self._in_state:
            lock = self.folder / "state" / "execserver" / "mount-points" / "lock"
            assert eventually(lock.exists, within=10)
        self.session.client.received.clear()

    def _open_credit(self) -> int:
        self._credit_path = self.folder / f"credit{self.mark}"
        os.mkfifo(self._credit_path)
        return os.open(self._credit_path, os.O_RDWR)

    def _follow(self, argv: list[str], take: Callable[[bytes, int], None], **members: Json) -> EventRow:
        params = self.session.start_params(argv, **members)
        row = self.session.follow(params["processId"], take)
        self.session.client.call("process/start", params)
        return row

    def _give(self, blocks: int) -> None:
        os.write(self._credit, bytes(blocks))

    def _write_echo(self, part: int) -> None:
        params = {
            "processId": self.echo.process_id,
            "chunk": encode(_ECHO_PARTS[part]),
            "writeId": f"part {part}",
        }
        assert self.session.call("process/write", params) == {"status": "accepted"}

    # -- the client as a process of its own

    def _dial(self) -> Client:
        return self.service.connect(handshake=False)

    def move_client_out(self) -> None:
        """From now on the connection belongs to another process, which `kill_client` kills."""
        path = self.folder / f"relay{self.mark}"
        relay = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _RELAY, str(path), str(self.service.path)],
            stdout=subprocess.PIPE,
        )
        self._relay = relay
        assert relay.stdout is not None
        relay.stdout.read(1)
        self.session.cut()
        ordinary, self.session.dial = self.session.dial, lambda: connect_unix(path)
        self.session.resume()
        self.session.dial = ordinary

    def kill_client(self) -> None:
        """End the process that has the connection."""
        if self._relay is not None:
            self._relay.kill()
            self._relay.communicate()
            self._relay = None

    # -- state

    def wait_stopped(self, within: float = 10) -> None:
        """Wait until a server of this service has stopped itself.

        Raises:
            AssertionError: the point was not reached.
        """
        assert eventually(lambda: self.stopped() is not None, within), f"{self.point} is not reached"

    def stopped(self) -> int | None:
        """The server that is stopped."""
        with contextlib.suppress(OSError):
            for pid in children(self.service.pid):
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                    return pid
        return None

    def go_on(self) -> None:
        """Let a stopped server run, if there is one."""
        self._give(BLOCKS_MEANWHILE)
        with contextlib.suppress(ProcessLookupError):
            self.service.signal_server(signal.SIGCONT)
        if (pid := self.stopped()) is not None:
            os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def table_full(self) -> Iterator[None]:
        """No descriptor for the server meanwhile."""
        pid = self.service.server_pid
        taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        free = next(number for number in itertools.count() if number not in taken)
        old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, old[1]))
        yield
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, old)
        except ProcessLookupError:  # it could not even take over, and the next one has room
            self.service.wait_for_new_server()

    # -- judging

    def serves_on(self) -> None:
        """The witnesses ended as they should have, the tree lives until it is killed, nothing is left.

        Raises:
            AssertionError: something is not so.
        """
        self._give(BLOCKS_AFTER)
        for part in (0, 1, 1, 0, 2):  # a write that comes twice is written once
            self._write_echo(part)
        self.session.finish(self.counter, self.echo)
        assert self.check.position == BLOCKS * counters.BLOCK_BYTES
        assert self.counter.exit_code == 7
        assert self.may_lose or not self.counter.lost_bytes
        assert bytes(self.echoed) == b"".join(_ECHO_PARTS)
        assert self.echo.exit_code == 0
        assert len(marked(self.mark)) == TREE_SIZE
        self.session.call("process/terminate", {"processId": self.tree, "scope": "tree"})
        assert eventually(lambda: not marked(self.mark), GONE_SECONDS), marked(self.mark)
        assert state_files(self.folder) == self.listing, (state_files(self.folder), self.listing)
        supervisor, server = self.service.pid, self.service.server_pid
        for pid, before in zip((supervisor, server), self.held, strict=True):
            assert eventually(lambda: not held(pid) - before, 2), held(pid) - before  # noqa: B023

    def is_gone(self, status: int | None, *, marks: Sequence[str] = ()) -> None:
        """The service ended with that status, and nothing of it lives or lies about.

        Raises:
            AssertionError: something is not so.
        """
        assert self.service.process.wait(GONE_SECONDS * 2) == status
        assert self.service.server_ended(GONE_SECONDS)
        left = [mark for mark in (self.mark, *marks) if not _gone(mark)]
        assert left == []

    def is_swept(self, *, marks: Sequence[str] = ()) -> None:
        """The next start ends what two kills at once left behind."""
        self._serve("unix", *self._flags)
        assert len(state_files(self.folder)) == len(self.listing)
        left = [mark for mark in (self.mark, *marks) if not _gone(mark)]
        assert left == []

    def end(self) -> None:
        """Close what the scene itself has open."""
        os.close(self._credit)
        self.session.client.close()
        self.kill_client()


def _gone(mark: str) -> bool:
    return eventually(lambda: not marked(mark), GONE_SECONDS)


def held(pid: int) -> Counter[str]:
    """The descriptors of a process that a living command has, by kind; files may be kept for readers."""
    kinds: Counter[str] = Counter()
    for target in open_files(pid):
        kind = "pipe" if target.startswith("pipe:") else target
        if kind in ("pipe", "anon_inode:[pidfd]", "/dev/ptmx", "/dev/pts/ptmx"):
            kinds[kind] += 1
    return kinds


_RELAY = """
import selectors, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print(end="+", flush=True)
near = listener.accept()[0]
far = socket.socket(socket.AF_UNIX)
far.connect(sys.argv[2])
selector = selectors.DefaultSelector()
selector.register(near, selectors.EVENT_READ, far)
selector.register(far, selectors.EVENT_READ, near)
while True:
    for key, _ in selector.select():
        data = key.fileobj.recv(1 << 18)
        if not data:
            sys.exit()
        key.data.sendall(data)
"""
