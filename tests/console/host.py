"""A host with a queue of approvals and a console: prints its link, then a line with each answer.

`python -m tests.console.host URL`, with a JSON array of questions on stdin: `[command, reason]` each.
"""

from __future__ import annotations

import asyncio
import json
import sys

from execclient.console import Console
from execclient.govern.approvals import ApprovalRequest
from execclient.govern.queue_approver import QueueApprover


async def main() -> None:
    approver = QueueApprover()
    async with Console(sys.argv[1], approver=approver) as console:
        print(console.url, flush=True)
        for command, reason in json.load(sys.stdin):
            request = ApprovalRequest(
                call_id="call",
                kind="command",
                command=command,
                argv=tuple(command.split()),
                cwd="/srv/work",
                reason=reason,
                amendment=tuple(command.split()[:2]),
                permits=("run without a sandbox", "use the network"),
                retry=True,
                tool="exec_command",
            )
            review = await approver.review(request)
            assert review is not None
            amendment = list(review.amendment or ())
            print(json.dumps([review.answer, review.reason, amendment]), flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
