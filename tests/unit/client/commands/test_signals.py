from __future__ import annotations

import asyncio
import os
import signal

from execclient.commands.signals import FORWARDED, Signals


async def test_a_signal_that_comes_together_with_a_result_is_not_lost() -> None:
    before = {number: signal.getsignal(number) for number in FORWARDED}
    try:
        with Signals() as signals:
            start = asyncio.get_running_loop().create_future()
            start.set_result("started")
            os.kill(os.getpid(), signal.SIGTERM)
            while signals._came.empty():
                await asyncio.sleep(0)

            assert await signals.unless_signalled(start) == "started"
            assert await asyncio.wait_for(signals.next(), 5) == signal.SIGTERM
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
