"""Functions in threads that end before a cancelled call does."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from execclient.session.session import to_end


class Work:
    """A function that takes a while, and what was done in which order."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.done: list[str] = []

    def __call__(self) -> None:
        self.begun.set()
        time.sleep(0.2)
        self.done.append("ended")

    async def call(self) -> None:
        """Call it, and close what it uses."""
        try:
            await to_end(self, stop=lambda: self.done.append("stopped"))
        finally:
            self.done.append("closed")


async def test_a_result_and_an_error_are_those_of_the_function() -> None:
    assert await to_end(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await to_end(int, "seven")


async def test_a_call_that_is_cancelled_again_and_again_ends_after_the_function() -> None:
    work = Work()
    task = asyncio.create_task(work.call())
    await asyncio.to_thread(work.begun.wait)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0.01)
    assert work.done == ["stopped", "ended", "closed"]
    assert task.cancelled()


def test_a_call_that_the_end_of_the_loop_cancels_ends_after_the_function() -> None:
    work = Work()

    async def main() -> None:
        main.task = asyncio.create_task(work.call())  # type: ignore[attr-defined]
        await asyncio.to_thread(work.begun.wait)

    asyncio.run(main())
    assert work.done == ["stopped", "ended", "closed"]
