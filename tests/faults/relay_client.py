"""A client of its own, to be killed and stopped: follows a writer of numbered lines through a relay.

    python -m tests.faults.relay_client URL CREDIT BLOCKS        # its token in EXECSERVER_TOKEN

Says on stdout, a line each: its session, how far it has got each time something came, and at the end
`over`, the checksum, the exit code and how often it recovered.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from execclient import connect
from tests.faults.counters import CounterCheck, writer

PROCESS_ID = "counter"


async def follow(url: str, credit: Path, blocks: int) -> None:
    """Start the writer, and check every byte."""
    check = CounterCheck()
    async with connect(url) as executor:
        process = await executor.start(writer(credit, blocks), id=PROCESS_ID)
        print(executor.session_id, flush=True)
        async for _, data in process:
            check.take(data)
            print(check.position, flush=True)
        code = await process.wait()
        print("over", check.digest.hexdigest(), code, executor.recoveries, flush=True)


if __name__ == "__main__":
    asyncio.run(follow(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
