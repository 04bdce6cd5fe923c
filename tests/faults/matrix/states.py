"""What a service is in the middle of when a fault comes, and what must become of it afterwards.

A state is entered by `enter`, which asks for something and waits for nothing; a service with a `point` stops
itself on the way. `finish` is called when the fault is over and the session is whole again: it asks once more
for what was never answered, as a client does, and judges. `marks` are of processes that must not be left.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tests.faults import counters
from tests.faults.matrix.scene import EXITS, STARTS, WRITES, Scene, marked
from tests.faults.resuming_client import EventRow
from tests.faults.service import eventually
from tests.faults.sizes import GONE_SECONDS
from tests.support.wire import ConnectionEndedError, Json, ReplyError, encode, path_uri

KIB = 1024
FLOOD_BLOCKS = 40


class State(ABC):
    """One column of the matrix, in one scene."""

    point = ""
    """Where the server stops; nowhere when empty."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.marks: list[str] = []
        self._asked: list[tuple[str, Json, int]] = []

    @abstractmethod
    def enter(self) -> None:
        """Ask for what the fault is to interrupt."""

    @abstractmethod
    def finish(self) -> None:
        """Ask again for what was not answered, and judge.

        Raises:
            AssertionError: a byte, an exit or a process is not as it should be.
        """

    # -- requests that a fault may swallow

    def ask(self, method: str, params: Json) -> None:
        """Send a request; its answer is looked for later."""
        self._asked.append((method, params, self.scene.session.client.request(method, params)))
        self._connection = self.scene.session.client

    def settle(self) -> list[Json]:
        """The answers; what got none, or was refused for want of room, is asked for again."""
        answers = []
        for method, params, number in self._asked:
            try:
                answers.append(self._connection.result(number))
                continue
            except ConnectionEndedError:
                pass
            except ReplyError as error:
                if "os error" not in error.message:
                    raise
            try:
                answers.append(self.scene.session.call(method, params))
            except ReplyError as error:
                # It happened, and only the answer was lost.
                if method != "process/start" or "already exists" not in error.message:
                    raise
                answers.append(None)
        self._asked.clear()
        return answers


class BeforeStart(State):
    """Everything is quiet; then a command is started and ended."""

    def enter(self) -> None:
        """Nothing to ask for."""

    def finish(self) -> None:
        output = bytearray()
        session = self.scene.session
        params = session.start_params(["/bin/sh", "-c", "echo here; exit 4"])
        row = session.follow(params["processId"], lambda data, lost: output.extend(data))
        session.start_with(params)
        session.finish(row)
        assert (bytes(output), row.exit_code) == (b"here\n", 4)


class Starting(State):
    """A command starts that begins with children in sessions of their own: it must run once, not twice."""

    def enter(self) -> None:
        self.go = self.scene.folder / "go"
        os.mkfifo(self.go)
        mark = f"7{self.scene.mark}"
        self.marks = [mark]
        script = (
            f"echo up; (setsid sleep {mark} &); (env -i /usr/bin/setsid /bin/sh -c '(sleep {mark} &)' &); "
            f"read x <{self.go}; exit 6"
        )
        params = self.scene.session.start_params(["/bin/sh", "-c", script])
        self.output = bytearray()
        self.row: EventRow = self.scene.session.follow(
            params["processId"], lambda data, lost: self.output.extend(data)
        )
        self.ask("process/start", params)

    def finish(self) -> None:
        self.settle()
        (mark,) = self.marks
        assert eventually(lambda: len(marked(mark)) == 2, within=5), marked(mark)
        # Blocks until somebody reads: the command that is known, and no other.
        self.go.write_text("go\n")
        session = self.scene.session
        assert eventually(lambda: self._state()["exited"], within=5)
        assert self._state()["exitCode"] == 6
        session.call("process/terminate", {"processId": self.row.process_id, "scope": "tree"})
        assert eventually(lambda: not marked(mark), GONE_SECONDS)
        session.finish(self.row)
        assert (bytes(self.output), self.row.exit_code) == (b"up\n", 6)

    def _state(self) -> Json:
        params = {"processId": self.row.process_id, "afterSeq": 0}
        return self.scene.session.call("process/read", params)


class BetweenIntentAndSpawn(Starting):
    """The server knows what it is about to start."""

    point = f"before-spawn:{STARTS + 1}"


class BetweenSpawnAndDescriptor(Starting):
    """The command runs, and there is nothing to watch it by."""

    point = f"before-pidfd:{STARTS + 1}"


class BetweenSpawnAndLedger(Starting):
    """The command runs, and only the kernel knows whose it is."""

    point = f"after-spawn:{STARTS + 1}"


class BetweenSpawnAndRegistration(Starting):
    """The command runs and is written down; the supervisor has no descriptor of it."""

    point = f"after-ledger:{STARTS + 1}"


class BeforeTheAnswer(Starting):
    """The command is registered; its client does not know."""

    point = f"after-registration:{STARTS + 1}"


class Flood(State):
    """A command writes as fast as it can."""

    def enter(self) -> None:
        go = self.scene.folder / "flood"
        os.mkfifo(go)
        self.check = counters.CounterCheck()
        session = self.scene.session
        params = session.start_params(counters.writer(go, FLOOD_BLOCKS))
        self.row = session.follow(params["processId"], self.check.take)
        session.client.call("process/start", params)
        self._credit = os.open(go, os.O_RDWR)
        os.write(self._credit, bytes(FLOOD_BLOCKS))

    def finish(self) -> None:
        self.scene.session.finish(self.row)
        os.close(self._credit)
        assert self.check.position == FLOOD_BLOCKS * counters.BLOCK_BYTES
        assert self.row.exit_code == 7
        assert self.scene.may_lose or not self.row.lost_bytes


class FloodSpliced(Flood):
    """Bytes are in the data file, and no record tells of them."""

    point = "after-splice:16"


class FloodIndexed(Flood):
    """A chunk has its number, and nobody was told."""

    point = "after-index:16"


class Ending(State):
    """A command ends."""

    def enter(self) -> None:
        self.output = bytearray()
        params = self.scene.session.start_params(["/bin/sh", "-c", "printf last; exit 5"])
        self.row = self.scene.session.follow(params["processId"], lambda data, lost: self.output.extend(data))
        self.ask("process/start", params)

    def finish(self) -> None:
        self.settle()
        self.scene.session.finish(self.row)
        assert (bytes(self.output), self.row.exit_code) == (b"last", 5)


class BeforeExitIsJournalled(Ending):
    """It is dead, and the server has just seen it."""

    point = f"before-exit-journal:{EXITS + 1}"


class BeforeReap(Ending):
    """Its exit is written down, and it is a zombie."""

    point = f"after-exit-journal:{EXITS + 1}"


class AfterReap(Ending):
    """It is reaped, and no event tells of it."""

    point = f"after-reap:{EXITS + 1}"


class BetweenExitAndClose(Ending):
    """`exited` has its number, `closed` has none."""

    point = f"after-exited:{EXITS + 1}"


class Writing(State):
    """Three writes are on their way to a standard input."""

    PARTS = [bytes([97 + number]) * 100_000 for number in range(3)]

    def enter(self) -> None:
        self.output = bytearray()
        session, size = self.scene.session, sum(map(len, self.PARTS))
        params = session.start_params(["/usr/bin/head", "-c", str(size)], pipeStdin=True)
        self.row = session.follow(params["processId"], lambda data, lost: self.output.extend(data))
        session.client.call("process/start", params)
        for number, part in enumerate(self.PARTS):
            write = {
                "processId": params["processId"],
                "chunk": encode(part),
                "writeId": f"during {number}",
            }
            self.ask("process/write", write)

    def finish(self) -> None:
        assert self.settle() == [{"status": "accepted"}] * len(self.PARTS)
        self.scene.session.finish(self.row)
        assert bytes(self.output) == b"".join(self.PARTS)
        assert self.row.exit_code == 0


class WriteAppended(Writing):
    """The bytes are in the file of the standard input; their id is not written down."""

    point = f"after-stdin-append:{WRITES + 2}"


class WriteJournalled(Writing):
    """The id is written down; neither the client nor the command has heard of it."""

    point = f"after-stdin-journal:{WRITES + 2}"


class BlockWrite(State):
    """The second block of a file is being written, by a handle of the connection."""

    point = "during-block-write:2"
    BLOCKS = (b"a" * 256 * KIB, b"b" * 256 * KIB)

    def enter(self) -> None:
        self.path = self.scene.folder / "file"
        self._open()
        self.scene.session.client.call("fs/writeBlock", self._block(0))
        self.ask("fs/writeBlock", self._block(1))

    def _open(self) -> None:
        params = {"handleId": "handle", "path": path_uri(self.path), "mode": "replace"}
        self.scene.session.call("fs/open", params)

    def _block(self, number: int) -> Json:
        offset = number * len(self.BLOCKS[0])
        return {"handleId": "handle", "offset": offset, "chunk": encode(self.BLOCKS[number])}

    def finish(self) -> None:
        content, whole = self.path.read_bytes(), b"".join(self.BLOCKS)
        assert len(content) >= len(self.BLOCKS[0]), "a block that was answered is not there"
        assert whole.startswith(content)
        session = self.scene.session
        if session.client is self._connection:
            self.settle()
        else:
            # A handle is the connection's: who comes back opens the file again, and begins again.
            self._asked.clear()
            assert "handle" in session.client.refused("fs/writeBlock", self._block(1)).message
            self._open()
            for number in range(len(self.BLOCKS)):
                session.call("fs/writeBlock", self._block(number))
        assert self.path.read_bytes() == whole


class Detached(State):
    """The session has no connection."""

    def enter(self) -> None:
        self.scene.session.cut()

    def finish(self) -> None:
        """The witnesses are all that there is."""


class TakingOver(State):
    """The server was killed, and the new one restores its state."""

    point = "take-over-begun"

    def enter(self) -> None:
        self.scene.service.signal_server(signal.SIGKILL)
        self.scene.service.wait_for_new_server()

    def finish(self) -> None:
        """The witnesses are all that there is."""


class TakenOver(TakingOver):
    """The new server has restored the state, and has not reported that it is ready."""

    point = "take-over-restored"


STATES: Sequence[type[State]] = (
    BeforeStart,
    BetweenIntentAndSpawn,
    BetweenSpawnAndDescriptor,
    BetweenSpawnAndLedger,
    BetweenSpawnAndRegistration,
    BeforeTheAnswer,
    FloodSpliced,
    FloodIndexed,
    BeforeExitIsJournalled,
    BeforeReap,
    AfterReap,
    BetweenExitAndClose,
    WriteAppended,
    WriteJournalled,
    BlockWrite,
    Detached,
    TakingOver,
    TakenOver,
)
