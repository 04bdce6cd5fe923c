"""One policy in the pool of fs workers: its worker, and the requests that wait for it.

Requests wait by connection, and the connections take turns.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict, deque

import msgspec

from execserver.filesystem.worker_link import Adopt, Answer, WorkerLink
from execserver.sandbox.policy import Policy

Identity = tuple[tuple[int, int] | None, ...]
"""Device and inode of each rule's path; None where nothing is."""


class Request(msgspec.Struct, eq=False):
    """What a worker is to be asked."""

    payload: bytes
    adopt: Adopt | None
    answer: asyncio.Future[Answer]
    newest: bool
    """Whether it takes a worker that was started after the request was made, if there are patterns."""

    made_at: float


class Crew:
    """One policy. Only the pool changes the attributes."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.waiting: OrderedDict[object, deque[Request]] = OrderedDict()
        self.worker: WorkerLink | None = None
        self.preparing: asyncio.Task[None] | None = None
        """Starts a worker, or looks in a thread whether it may be used; nothing else happens then."""
        self.has_place = False
        self.identity: Identity = ()
        self.started_at = 0.0
        """When the making of its worker's sandbox began."""
        self.turn_began = 0.0
        self.used_at = 0.0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether it has a worker that does nothing."""
        return self.worker is not None and not self.worker.busy and self.preparing is None

    def add(self, owner: object, request: Request) -> None:
        """Put a request behind the others of its connection."""
        self.waiting.setdefault(owner, deque()).append(request)

    def first(self) -> Request | None:
        """The request whose turn it is; those that nobody wants any more are forgotten."""
        while self.waiting:
            owner, requests = next(iter(self.waiting.items()))
            while requests and requests[0].answer.done():
                requests.popleft()
            if requests:
                return requests[0]
            del self.waiting[owner]
        return None

    def take(self) -> Request:
        """Remove the first request; its connection goes behind the others."""
        owner, requests = next(iter(self.waiting.items()))
        request = requests.popleft()
        self.waiting.move_to_end(owner)
        if not requests:
            del self.waiting[owner]
        return request

    def fail_all(self, error: Exception) -> None:
        """Answer everything that waits with an error."""
        waiting, self.waiting = self.waiting, OrderedDict()
        for requests in waiting.values():
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)
                    request.answer.exception()


def identity_of(policy: Policy) -> Identity:
    """Which files and folders the rules' paths lead to now."""
    found: list[tuple[int, int] | None] = []
    for rule in policy.rules:
        try:
            status = os.stat(rule.path)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return tuple(found)
