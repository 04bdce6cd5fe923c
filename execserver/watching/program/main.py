"""The program of a watch: takes one order from descriptor 0, and sends changes until the daemon closes it.

The first change after a pause is sent at once, further ones every `BATCH_SECONDS`. While the daemon does not
read, events wait in the kernel's queue, which is bounded: what it drops becomes a gap.

Only `sendmsg` and `recv` are used on the socket: the system-call filter of a sandbox forbids most others.
"""

from __future__ import annotations

# The C modules: `socket` and `select` take longer to import than the interpreter to start.
import _socket
import errno
import marshal
import os
import select
import stat
import time

from execserver import inotify
from execserver.watching import frames
from execserver.watching.program.changes import MAX_CHANGES, Batch
from execserver.watching.program.ignore_rules import IgnoreRules, Scope
from execserver.watching.program.polling import PolledTree, TooManyEntries
from execserver.watching.program.tree import Tree

BATCH_SECONDS = 0.05
FIRST_SECONDS = 0.002
"""How long the first change after a pause waits for others: a save is often several system calls."""

FRAME_BYTES = 16 << 10
"""Of the changes in a frame: the daemon's loop processes a frame at once, and refuses too large ones."""

POLL_SECONDS = 2.0
ROOT_CHECK_SECONDS = 1.0
ALIVE_SECONDS = 1.0
RENAME_SECONDS = 0.001
"""How long the second half of a rename is waited for. The kernel queues both in one system call."""

LAST_READS = 1000
"""Of the queue once the root is gone: more than a full queue holds. A renamed tree may go on changing."""


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Ended(Exception):
    """The watch cannot go on.

    Attributes:
        reason: as of `EndReason`.
        number: the system error; None if there is none.
        text: for people.
    """

    def __init__(self, reason: str, number: int | None = None, text: str = "") -> None:
        super().__init__(reason, number, text)
        self.reason = reason
        self.number = number
        self.text = text

    def members(self) -> list[bytes]:
        """The body of its frame."""
        number = "" if self.number is None else str(self.number)
        return [self.reason.encode(), number.encode(), self.text.encode("utf-8", "replace")]


class Output:
    """The frames to the daemon."""

    def __init__(self, connection: _socket.socket) -> None:
        self._connection = connection
        self.began = time.monotonic()
        self.ready = False
        self.batch: Batch | None = None
        self.is_file = False
        """Whether the root is a file: then all changes are its own."""
        self.may_split: Callable[[], bool] = lambda: True
        """Whether the batch may be sent in the middle of a walk."""

    def send(self, kind: int, members: list[bytes]) -> None:
        """Send a frame; waits while the daemon does not read."""
        self.began = time.monotonic()
        view = memoryview(frames.frame(kind, members))
        while view:
            view = view[self._connection.sendmsg([view]) :]

    def send_changes(self) -> None:
        """Send the changes of the batch, if there are any."""
        taken = self.batch.take() if self.batch is not None else []
        members: list[bytes] = []
        size = 0
        for letter, is_directory, path, earlier in taken:
            members.append((letter + ("d" if is_directory else "f")).encode())
            members.append(b"" if self.is_file else os.fsencode(path))
            members.append(os.fsencode(earlier))
            size += sum(map(len, members[-3:]))
            if size > FRAME_BYTES:
                self.send(frames.CHANGES, members)
                members, size = [], 0
        if members:
            self.send(frames.CHANGES, members)

    def send_loss(self) -> None:
        """What a failed walk would have found is lost: send a gap, if the watch has begun."""
        if self.batch is not None:
            self.batch.gap("")
            self.send_changes()

    def alive(self) -> None:
        """A walk goes on: say so before it is ready, and send what has gathered after that."""
        if not self.ready:
            if time.monotonic() - self.began >= ALIVE_SECONDS:
                self.send(frames.ALIVE, [])
        elif self.batch is not None and len(self.batch) >= MAX_CHANGES and self.may_split():
            self.send_changes()


def serve() -> None:
    """Watch until the daemon is gone or the watch ends."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fileno=0)
    output = Output(connection)
    try:
        try:
            size = int.from_bytes(_receive(connection, 4), "little")
            _Watcher(marshal.loads(_receive(connection, size)), output).run()  # noqa: S302
        except Ended as ended:
            output.send(frames.ENDED if output.ready else frames.REFUSED, ended.members())
    except (EOFError, ConnectionError):
        return


class _Watcher:
    """The one watch of this program."""

    def __init__(self, order: frames.Order, output: Output) -> None:
        root, recursive, ignore, excluded, devices, self._max_polled = order
        self._output = output
        self._foreign = frozenset(devices)
        try:
            # Links of the path itself are followed, as those of a read are.
            real = os.path.realpath(os.fsdecode(root), strict=True)
            only = None
            folder = real
            if not stat.S_ISDIR(os.stat(real).st_mode):
                folder, _, only = real.rpartition("/")
                output.is_file = True
            self._real, self._folder = real, folder or "/"
            self._root_fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._identity = _identity(os.fstat(self._root_fd))
        except OSError as error:
            raise _refused(error) from None
        rules = IgnoreRules(ignore, excluded)
        rules.read_above(self._folder)
        self._scope = Scope(self._root_fd, only, recursive, rules, output.alive)

    def run(self) -> None:
        """Watch.

        Raises:
            Ended: the watch is over, or could not begin.
            EOFError, ConnectionError: the daemon is gone.
        """
        polled = os.fstat(self._root_fd).st_dev in self._foreign
        try:
            if polled:
                self._poll()
            else:
                self._follow()
        except TooManyEntries:
            self._output.send_loss()
            text = f"the tree has more than {self._max_polled} entries"
            raise Ended("tooManyEntries", None, text) from None
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            self._output.send_loss()
            raise _refused(error) from None

    def _ready(self, mode: bytes, batch: Batch) -> None:
        self._output.send(frames.READY, [mode, os.fsencode(self._real)])
        self._output.ready, self._output.batch = True, batch
        self._output.send_changes()

    def _follow(self) -> None:
        tree = Tree(self._scope, self._foreign)
        self._output.may_split = lambda: not tree.unsettled
        tree.start()
        self._ready(b"inotify", tree.batch)
        waiting = select.poll()
        waiting.register(tree.fd, select.POLLIN)
        waiting.register(0, select.POLLIN)
        sent = first = 0.0
        while True:
            seconds = ROOT_CHECK_SECONDS
            had = tree.has_work
            if had:
                seconds = max(first + FIRST_SECONDS, sent + BATCH_SECONDS) - time.monotonic()
            readable = [fd for fd, _ in waiting.poll(max(0.0, seconds) * 1000)] if seconds > 0 else []
            if 0 in readable:
                return  # the daemon says nothing: it is gone
            self._apply(tree)
            now = time.monotonic()
            if not had:
                first = now
            due = max(first + FIRST_SECONDS, sent + BATCH_SECONDS)
            if tree.has_work and (now >= due or len(tree.batch) >= MAX_CHANGES):
                self._settle(tree)
                self._output.send_changes()
                sent = time.monotonic()
            if tree.root_left or self._root_is_gone():
                self._apply_last(tree)
                self._settle(tree)
                raise self._root_removed()

    def _apply(self, tree: Tree) -> bool:
        """Process pending events; return whether there were any."""
        events = inotify.read_events(tree.fd)
        for event in events:
            tree.apply(event)
        return bool(events)

    def _apply_last(self, tree: Tree) -> None:
        """Process what the kernel had queued when the root was found to be gone."""
        for _ in range(LAST_READS):
            if tree.root_left or not self._apply(tree):
                return

    def _settle(self, tree: Tree) -> None:
        if tree.unsettled:
            time.sleep(RENAME_SECONDS)
            self._apply(tree)
        tree.settle()

    def _poll(self) -> None:
        tree = PolledTree(self._scope, self._max_polled)
        tree.start()
        self._ready(b"polling", tree.batch)
        waiting = select.poll()
        waiting.register(0, select.POLLIN)
        while not waiting.poll(POLL_SECONDS * 1000):
            if self._root_is_gone():
                raise self._root_removed()
            tree.poll()
            self._output.send_changes()

    def _root_is_gone(self) -> bool:
        """Whether the root is not what its path leads to any more."""
        try:
            gone = os.fstat(self._root_fd).st_nlink == 0
            return gone or _identity(os.stat(self._folder)) != self._identity
        except OSError:
            return True

    def _root_removed(self) -> Ended:
        """The end of the watch, after its last changes."""
        self._output.send_changes()
        return Ended("rootRemoved", None, "the root of the watch was removed, renamed or unmounted")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _refused(error: OSError) -> Ended:
    reason = "watchLimit" if error.errno in (errno.ENOSPC, errno.EMFILE) else "failed"
    return Ended(reason, error.errno, error.strerror or "")


def _receive(connection: _socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
