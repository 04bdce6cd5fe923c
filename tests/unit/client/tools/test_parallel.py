"""Calls that change nothing run side by side; one that changes something runs alone."""

from __future__ import annotations

import asyncio

from execclient.tools.parallel import CallGate


class Caller:
    """A call that says when it got in, and stays until it is told to go."""

    def __init__(self, gate: CallGate, *, mutating: bool) -> None:
        self.inside = False
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._call(gate, mutating))

    async def _call(self, gate: CallGate, mutating: bool) -> None:
        async with gate.entered(mutating=mutating):
            self.inside = True
            await self._leave.wait()
        self.inside = False

    async def leave(self) -> None:
        self._leave.set()
        await self._task

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_two_readers_are_inside_at_once() -> None:
    gate = CallGate()
    readers = [Caller(gate, mutating=False) for _ in range(2)]
    await settle()

    assert [reader.inside for reader in readers] == [True, True]

    for reader in readers:
        await reader.leave()


async def test_a_writer_waits_for_the_readers_and_keeps_later_readers_out() -> None:
    gate = CallGate()
    first = Caller(gate, mutating=False)
    await settle()
    writer = Caller(gate, mutating=True)
    late = Caller(gate, mutating=False)
    await settle()
    assert (first.inside, writer.inside, late.inside) == (True, False, False)

    await first.leave()
    await settle()
    assert (writer.inside, late.inside) == (True, False)

    await writer.leave()
    await settle()
    assert late.inside
    await late.leave()


async def test_a_cancelled_writer_lets_the_others_in() -> None:
    gate = CallGate()
    reader = Caller(gate, mutating=False)
    await settle()
    writer = Caller(gate, mutating=True)
    other = Caller(gate, mutating=False)
    await settle()

    await writer.cancel()
    await settle()

    assert other.inside
    await reader.leave()
    await other.leave()


async def test_a_cancelled_reader_is_counted_out() -> None:
    gate = CallGate()
    reader = Caller(gate, mutating=False)
    await settle()
    await reader.cancel()
    writer = Caller(gate, mutating=True)
    await settle()

    assert writer.inside
    await writer.leave()
