"""The client's answers to the daemon's questions about hosts, and the daemon's decisions.

    network/policyRequest ──> the handler of the process, or of the session ──> allow, deny or ask
    network/policyDecision ──> the same, in order, one at a time

Rules kept in this file:

1. Every failure denies: no handler, one that raises, one that returns something else. Such an answer holds
   for one question.
2. A question whose connection is lost is asked again on the next one, and gets the answer of the same call
   of the handler. It may have been lost with its answer: so answers are kept by the names of questions.

`docs/protocol.md`, "Network proxy".
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from execclient.connection.connection import Json
from execclient.results import NetworkDecision, NetworkRequest
from execprotocol.limits import MAX_DECISION_REASON_BYTES

if TYPE_CHECKING:
    from execclient.session.draining import DrainNotices
    from execprotocol.network import Decision

    NetworkAnswer = bool | Decision

OnNetworkRequest = Callable[[NetworkRequest], "NetworkAnswer | Awaitable[NetworkAnswer]"]
OnNetworkDecision = Callable[[NetworkDecision], object]

log = logging.getLogger(__name__)

MAX_KEPT = 256
"""Answers that are kept for questions that may be asked again, and handlers' results that were not sent."""

MAX_WAITING_DECISIONS = 1000
"""Decisions that wait for a slow handler; beyond this the oldest are dropped."""

RELEASED = "the client no longer decides for this process"

NO_HANDLER = "the client decides on no hosts: give `connect` an on_network_request"


class NetworkHandlers(NamedTuple):
    """The handlers of a session, or of one process."""

    on_request: OnNetworkRequest | None = None
    on_decision: OnNetworkDecision | None = None


class NetworkAnswers:
    """The answers of one session.

    Args:
        handlers: for processes without handlers of their own.
        drains: gets the other events of the session.
    """

    def __init__(self, handlers: NetworkHandlers, drains: DrainNotices | None = None) -> None:
        self._handlers = handlers
        self._drains = drains
        self._of_process: dict[str, NetworkHandlers] = {}
        self._asking: dict[NetworkRequest, asyncio.Task[Decision]] = {}
        self._answered: dict[str, Json] = {}
        """Results by the name of the question, oldest first."""
        self._decisions: deque[tuple[OnNetworkDecision, NetworkDecision]] = deque(
            maxlen=MAX_WAITING_DECISIONS
        )
        self._reporting: asyncio.Task[None] | None = None
        self._closed = False

    def serve(self, process_id: str, handlers: NetworkHandlers) -> None:
        """Use these handlers for a process, in place of those of the session. Call it before the start."""
        self._of_process[process_id] = handlers

    def serve_own(self, process_id: str, network: object) -> None:
        """Use the handlers of the `network` of a process, `decide` and `report`, if it has them."""
        if hasattr(network, "decide") and hasattr(network, "report"):
            self.serve(process_id, NetworkHandlers(network.decide, network.report))

    def release(self, process_id: str) -> None:
        """Forget the handlers of a process that is over, and cancel those that still decide for it."""
        self._of_process.pop(process_id, None)
        for asked in [asked for asked in self._asking if asked.process_id == process_id]:
            self._asking.pop(asked).cancel()

    def answer(self, method: str, params: Json) -> Awaitable[Json] | None:
        """The result of a request of the daemon; None for an unknown method."""
        return self._answer(params) if method == "network/policyRequest" else None

    def report(self, method: str, params: Json) -> None:
        """Process an event that belongs to no output."""
        if method != "network/policyDecision":
            if self._drains is not None:
                self._drains.received(method, params)
            return
        decision = NetworkDecision.decode(params)
        on_decision = self._handlers_of(decision.process_id).on_decision
        if on_decision is None:
            return
        # With its handler, which is forgotten with the process.
        self._decisions.append((on_decision, decision))
        if self._reporting is None:
            self._reporting = asyncio.create_task(self._report_all())

    def close(self) -> None:
        """Cancel the handlers: the session has ended for this client."""
        self._closed = True
        if self._drains is not None:
            self._drains.close()
        for task in self._asking.values():
            task.cancel()
        self._decisions.clear()
        if self._reporting is not None:
            self._reporting.cancel()

    def _handlers_of(self, process_id: str) -> NetworkHandlers:
        return self._of_process.get(process_id, self._handlers)

    async def _answer(self, params: Json) -> Json:
        # Here, because few clients are asked.
        from execprotocol.network import Decision

        asked, question_id = NetworkRequest.decode(params), params.get("questionId")
        if question_id in self._answered:
            return self._answered[question_id]
        task = self._asking.get(asked)
        if task is None:
            self._drop_undelivered()
            task = self._asking[asked] = asyncio.create_task(self._decide(asked))
        try:
            # If the connection is lost, this is cancelled, and the handler goes on.
            decision = await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._closed or not task.cancelled():
                raise  # the next client of the session is asked
            decision = Decision("deny", RELEASED, "once")
        self._asking.pop(asked, None)
        members = {"type": decision.type, "reason": decision.reason, "scope": decision.scope}
        result = {"decision": {name: value for name, value in members.items() if value is not None}}
        if question_id is not None:
            self._answered[question_id] = result
            if len(self._answered) > MAX_KEPT:
                del self._answered[next(iter(self._answered))]
        return result

    def _drop_undelivered(self) -> None:
        done = [asked for asked, task in self._asking.items() if task.done()]
        for asked in done[: len(done) - MAX_KEPT + 1]:
            del self._asking[asked]

    async def _decide(self, asked: NetworkRequest) -> Decision:
        from execprotocol.network import Decision

        on_request = self._handlers_of(asked.process_id).on_request
        if on_request is None:
            return Decision("deny", NO_HANDLER, "once")
        try:
            answer = on_request(asked)
            if inspect.isawaitable(answer):
                answer = await answer
            if isinstance(answer, bool):
                return Decision("allow" if answer else "deny")
            if not isinstance(answer, Decision):
                raise TypeError(
                    f"the handler returned {type(answer).__name__}, neither a bool nor a Decision"
                )
            reason = None if answer.reason is None else _bounded(answer.reason)
            return Decision(answer.type, reason, answer.scope)
        except Exception:
            log.exception("the handler of network requests failed, and the host is denied")
            return Decision("deny", "the client failed to decide", "once")

    async def _report_all(self) -> None:
        while self._decisions:
            on_decision, decision = self._decisions.popleft()
            try:
                reported = on_decision(decision)
                if inspect.isawaitable(reported):
                    await reported
            except Exception:
                log.exception("the handler of network decisions failed")
        self._reporting = None


def _bounded(reason: str) -> str:
    """A reason that the daemon takes."""
    return reason.encode()[:MAX_DECISION_REASON_BYTES].decode(errors="ignore")
