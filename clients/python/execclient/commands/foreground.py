"""A remote process in the foreground: our standard streams are its own, and we end when it does."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from signal import Signals as SignalNumber

from execclient import (
    ExecServerError,
    Executor,
    NoSuchProcess,
    OutputGap,
    Process,
    Refused,
    StdinUnavailable,
    Unsupported,
)
from execclient.commands.failures import FAILED, OUTPUT_CLOSED, TIMED_OUT, Failure, complain
from execclient.commands.signals import Signalled, Signals
from execclient.commands.streams import Output, StandardInput
from execclient.session.session import cancel

LINGER_SECONDS = 0.5
"""How long the output may be silent after the exit: a child in the background may hold it open for
hours. As `Executor.run`."""

END_OF_FILE = b"\x04"
"""What a terminal makes an end of file of, at the beginning of a line."""

_WORTH_SAYING = {
    "idleTimeout": "it was silent for longer than its limit",
    "sessionExpired": "its session ended",
    "serviceStop": "the daemon was stopped",
    "outOfMemory": "the machine ran out of memory",
    "limit": "it ran into a resource limit",
}
"""Causes of death that an exit code does not tell (`docs/protocol.md`, X8)."""

Work = Coroutine[None, None, None]
AtEnd = Callable[[bool], Awaitable[None]]


DEFAULT_DETACH_KEYS = "ctrl-p,ctrl-q"
"""As docker."""

_CONTROL = "@abcdefghijklmnopqrstuvwxyz[\\]^_"
"""The characters that Ctrl makes 0 to 31 of, in that order."""


def parse_detach_keys(text: str) -> bytes:
    """The bytes of keys like `ctrl-p,ctrl-q`: single characters, or `ctrl-` and one of them. Empty for none.

    Raises:
        ValueError: there is no such key.
    """
    return b"".join(_key(name) for name in text.split(",")) if text else b""


def _key(name: str) -> bytes:
    modifier, dash, key = name.rpartition("ctrl-")
    if not modifier and dash and len(key) == 1 and key.lower() in _CONTROL:
        return bytes([_CONTROL.index(key.lower())])
    if len(name) == 1 and name.isascii():
        return name.encode()
    raise ValueError(f"no key: {name!r}; a key is a character, or ctrl- and a letter or one of @[\\]^_")


class Detached(Exception):
    """The keys were typed."""


class DetachKeys:
    """Looks for them in what is typed.

    The first of them is held back until the next key tells whether it was meant.
    """

    def __init__(self, keys: bytes) -> None:
        self._keys = keys
        self._held = b""

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """What is to be passed on, and whether the keys came, after which nothing is passed on."""
        if not self._keys:
            return typed, False
        passed = bytearray()
        for key in typed:
            self._held += bytes([key])
            while not self._keys.startswith(self._held):
                passed += self._held[:1]
                self._held = self._held[1:]
            if self._held == self._keys:
                return bytes(passed), True
        return bytes(passed), False


class Foreground:
    """A process whose output is ours.

    Args:
        executor: where it runs.
        process: the process.
        ours: whether we started it: then it gets our signals, and does not outlive our output.
        as_json: output as a line of JSON for each chunk.
    """

    def __init__(self, executor: Executor, process: Process, *, ours: bool, as_json: bool = False) -> None:
        self._executor = executor
        self._process = process
        self._ours = ours
        self._as_json = as_json
        self._output = Output()
        self._chunks = 0
        self._has_gap = False

    async def until_over(self, signals: Signals, *beside: Work) -> int:
        """Show its output until it has ended; what to exit with.

        Args:
            signals: what becomes of signals.
            beside: what else is to be done meanwhile. The first exception out of it ends everything.

        Raises:
            Failure: a signal ended us, or our output cannot be written.
            ExecServerError: the process is out of reach.
        """
        over = asyncio.create_task(self._copy_output())
        failed = asyncio.create_task(self._output.failed.wait())
        others = {asyncio.create_task(signals.forward(self._signal)), *map(asyncio.create_task, beside)}
        try:
            await _first(over, failed, others)
            if not self._output.failed.is_set():
                await self._output.settled()
        finally:
            await cancel({over, failed, *others})
        if self._output.failure is not None:
            return await self._give_up(self._output.failure)
        return self._status()

    async def say(self, **members: object) -> None:
        """A line of JSON among the output."""
        self._output.put(1, json.dumps(members).encode() + b"\n")
        await self._output.settled()

    async def resize(self, rows: int, columns: int) -> None:
        """Give its terminal the size of ours."""
        # Refused to all but the latest who attached: that the window is theirs now is no failure of ours.
        with suppress(Refused, NoSuchProcess):
            await self._process.resize(rows, columns)

    async def forward_input(self, at_end: AtEnd, keys: DetachKeys | None = None) -> None:
        """Hand on our standard input, no faster than it is accepted, until the process takes no more.

        Args:
            at_end: what to do at its end; told whether that is at the beginning of a line.
            keys: those that end everything.

        Raises:
            Detached: they were typed.
        """
        source = StandardInput()
        last = b"\n"
        with suppress(StdinUnavailable, NoSuchProcess):  # as a pipe whose reader is gone
            while data := await source.read():
                last = data[-1:]
                passed, is_detached = keys.feed(data) if keys else (data, False)
                await self._process.write(passed)
                if is_detached:
                    raise Detached
            await at_end(last == b"\n")

    async def close_input(self, _: bool) -> None:
        """Let it see the end of its standard input."""
        try:
            await self._process.close_stdin()
        except Unsupported as error:
            complain(f"standard input has ended, but the process cannot be told: {error}")

    async def type_end_of_file(self, at_line_start: bool) -> None:
        """Let the reader of a terminal see the end: amid a line the first only hands over what is there."""
        await self._process.write(END_OF_FILE if at_line_start else 2 * END_OF_FILE)

    async def leave_input_open(self, _: bool) -> None:
        """Others may go on writing to it."""

    # -- inside

    async def _copy_output(self) -> None:
        copying = asyncio.create_task(self._copy_until_closed())
        exited = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({copying, exited}, return_when=asyncio.FIRST_COMPLETED)
            while not copying.done() and await self._more_came(copying):
                pass
            if copying.done():
                await copying
            await exited
        finally:
            await cancel({copying, exited})

    async def _copy_until_closed(self) -> None:
        while True:
            try:
                async for stream, data in self._process:
                    self._show(stream, data)
            except OutputGap as gap:
                self._has_gap = True
                complain(str(gap))
            else:
                return

    async def _more_came(self, copying: asyncio.Task[None]) -> bool:
        before = self._chunks
        await asyncio.wait({copying}, timeout=LINGER_SECONDS)
        if self._chunks == before and not copying.done():
            # The connection may be slow, or lost for now: what was sent before an answer is here with it.
            await self._executor.call("environment/status", {})
            await asyncio.sleep(0)
        return self._chunks != before

    def _show(self, stream: str, data: bytes) -> None:
        self._chunks += 1
        if self._as_json:
            line = json.dumps({"stream": stream, "chunk": base64.b64encode(data).decode()})
            self._output.put(1, line.encode() + b"\n")
        else:
            self._output.put(2 if stream == "stderr" else 1, data)

    async def _signal(self, number: SignalNumber) -> None:
        if not self._ours or self._process.exit_code is not None:
            raise Signalled(number)
        try:
            if not await self._process.signal(number):
                raise Signalled(number)
        except Unsupported as error:
            complain(f"{number.name} cannot be forwarded, so the process is killed: {error}")
            await self._process.terminate()

    async def _give_up(self, failure: OSError) -> int:
        if self._ours:
            with suppress(ExecServerError):
                await self._process.terminate(scope="tree")
        if self._output.is_closed:
            return OUTPUT_CLOSED
        raise Failure(f"output cannot be written: {failure.strerror}")

    def _status(self) -> int:
        assert self._process.exit_code is not None
        cause = self._process.cause
        if cause in _WORTH_SAYING:
            complain(f"{self._process.id} was killed: {_WORTH_SAYING[cause]}")
        if self._has_gap:
            return FAILED
        return TIMED_OUT if cause == "timeout" else self._process.exit_code


async def _first(
    over: asyncio.Task[None], failed: asyncio.Task[bool], others: set[asyncio.Task[None]]
) -> None:
    """Until it is over or has failed; the first exception out of anything is raised."""
    running: set[asyncio.Task[None]] = set(others)
    while not over.done() and not failed.done():
        done, _ = await asyncio.wait({over, failed, *running}, return_when=asyncio.FIRST_COMPLETED)
        for task in done & running:
            running.discard(task)
            task.result()
    if over.done():
        over.result()
