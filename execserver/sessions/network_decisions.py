"""The client's decisions about hosts that the processes of its session want to reach.

    proxy ──decide──▶ kept? ──no──▶ question ──network/policyRequest──▶ the attached connection
                                        │ ▲                                │
                                        │ └──────── connection lost ───────┘
                                        └─────── answer, or deny at the process's time limit

Rules kept in this file:

1. Every failure denies: no answer in time, no connection, an error, an answer that is not one.
2. A question goes to the session's own connection, never to an observer. If that connection is lost before
   the answer, the question is asked again on the next one.
3. An answer is kept for the session if the client says so; it is recorded before it takes effect, so that a
   new server knows it. `ask` and failures are never kept.
4. Equal questions at a time are one question.

`docs/protocol.md`, "Network proxy".
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from execprotocol.errors import RpcError
from execprotocol.limits import MAX_DECISION_REASON_BYTES, MAX_HOST_BYTES
from execprotocol.model import decode
from execprotocol.network import Decision, NetworkRequest, PolicyDecisionEvent, PolicyRequestResult
from execserver.spool.records import NetworkAnswer, NetworkTarget, keep_decision
from execserver.telemetry.logs import Logger

log = Logger()

MAX_EVENTS = 256
"""Events that wait for a client. A command could make them without end."""

_MAX_WAIT_SECONDS = 10 * 365 * 24 * 3600.0
"""A timer of the loop cannot wait for 2^64 milliseconds."""

_Key = tuple[str | None, NetworkTarget]
"""What makes questions equal; None for the questions of all processes."""


class Client(Protocol):
    """The connection's side."""

    extensions: bool
    """Whether `initialize` asked for extension members."""

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """The client's result for a request of the server.

        Raises:
            RpcError: the client answered with an error.
            ConnectionError: the connection was lost before the answer.
        """

    def may_queue_event(self) -> bool:
        """Whether another event may be queued."""

    def send_event(self, parts: Sequence[bytes]) -> None:
        """Queue a notification."""


class NetworkDecisions:
    """The decisions of one session.

    Args:
        record: called with an answer before it is kept for the session; may raise OSError.
        kept: the answers that an earlier server kept, oldest first.
    """

    def __init__(
        self,
        record: Callable[[NetworkTarget, NetworkAnswer], None],
        kept: Mapping[NetworkTarget, NetworkAnswer],
    ) -> None:
        self._record = record
        self._kept = dict(kept)
        self._questions: dict[_Key, _Question] = {}
        self._client: Client | None = None
        self._connected = asyncio.Event()
        self._events: deque[PolicyDecisionEvent] = deque(maxlen=MAX_EVENTS)

    def set_client(self, client: Client | None) -> None:
        """Ask this connection from now on. With None, questions wait for the next one."""
        self._client = client
        if client is None:
            self._connected.clear()
        else:
            self._connected.set()
            self.send_events()

    def report(self, event: PolicyDecisionEvent) -> None:
        """Report a decision of a proxy, as soon as the client takes it; newer ones may drop it before."""
        self._events.append(event)
        self.send_events()

    def send_events(self) -> None:
        """Send the events that wait, as far as they may be queued."""
        client = self._client
        while client is not None and self._events and client.may_queue_event():
            event = {"method": "network/policyDecision", "params": self._events.popleft()}
            client.send_event((msgspec.json.encode(event),))

    async def decide(self, process_id: str, request: NetworkRequest, timeout_s: float) -> Decision:
        """Whether a process may reach a host.

        Args:
            process_id: the client's name for a process that was started with `policyDecisionTimeoutMs`.
            request: a host without a verdict in the settings of the process's proxy.
            timeout_s: how long to wait for the client, in seconds.

        Returns:
            The client's answer with its `scope`, kept or new; `deny` without a reason if there is none.
        """
        if len(request.host.encode()) > MAX_HOST_BYTES:
            return _deny(f"the name of the host has more than {MAX_HOST_BYTES} bytes")
        try:
            async with asyncio.timeout(min(timeout_s, _MAX_WAIT_SECONDS)):
                return await self._decide(process_id, request)
        except TimeoutError:
            return _deny("no client is connected" if self._client is None else "no answer in time")

    async def _decide(self, process_id: str, request: NetworkRequest) -> Decision:
        target = (request.protocol, request.host, request.port)
        while True:
            kept = self._kept.get(target)
            if kept is not None:
                return Decision(*kept, scope="session")
            # A client without extensions answers for one process: processes do not wait for each other.
            shared = self._client is not None and self._client.extensions
            key = (None if shared else process_id, target)
            question = self._questions.get(key)
            if question is None:
                question = _Question(process_id, self._ask(process_id, target, request))
                self._questions[key] = question
            decision = await self._wait(key, question)
            if question.process_id == process_id or decision.scope == "session":
                return decision
            # The answer was for another process alone.

    async def _wait(self, key: _Key, question: _Question) -> Decision:
        """The answer to a question, which ends with the last call that waits for it."""
        question.waiting += 1
        try:
            return await asyncio.shield(question.task)
        finally:
            question.waiting -= 1
            if not question.waiting:
                question.task.cancel()
                if self._questions.get(key) is question:
                    del self._questions[key]

    async def _ask(self, process_id: str, target: NetworkTarget, request: NetworkRequest) -> Decision:
        params = {"processId": process_id, "request": msgspec.to_builtins(request)}
        extended = {**params, "questionId": str(uuid.uuid4())}
        while True:
            await self._connected.wait()
            client = self._client
            if client is None:
                continue
            try:
                result = await client.request(
                    "network/policyRequest", extended if client.extensions else params
                )
            except ConnectionError:
                if self._client is client:
                    self.set_client(None)
                continue
            except RpcError as error:
                return _deny(f"the client answered with an error: {error.message[:200]}")
            decision = _read_answer(result)
            for_session = decision.scope == "session" or (decision.scope is None and client.extensions)
            kept = for_session and self._keep(target, decision)
            return Decision(decision.type, decision.reason, "session" if kept else "once")

    def _keep(self, target: NetworkTarget, decision: Decision) -> bool:
        if decision.type == "ask":
            return False
        answer = (decision.type, decision.reason)
        try:
            self._record(target, answer)
        except OSError as error:
            log.warning("a network decision holds for one question only", reason=str(error))
            return False
        keep_decision(self._kept, target, answer)
        return True


class _Question:
    """A question that is being asked, for all calls that wait for its answer."""

    def __init__(self, process_id: str, asking: Coroutine[Any, Any, Decision]) -> None:
        self.process_id = process_id
        self.task = asyncio.get_running_loop().create_task(asking)
        self.waiting = 0


def _deny(cause: str) -> Decision:
    """The decision without an answer: as in the reference without a reason."""
    log.debug("network decision without the client", cause=cause)
    return Decision("deny", scope="once")


def _read_answer(result: Any) -> Decision:
    """The decision in a client's result; `deny` if there is none."""
    try:
        decision = decode(PolicyRequestResult, result).decision
    except msgspec.ValidationError as error:
        return _deny(f"the answer is not a decision: {error}")
    if len((decision.reason or "").encode()) > MAX_DECISION_REASON_BYTES:
        return _deny(f"the reason has more than {MAX_DECISION_REASON_BYTES} bytes")
    return decision
