"""Approvals of commands, patches and hosts: requests, reviewers, and the answers that hold for the session.

    ask ──> covered by the session? ──yes──> approved_for_session, by "cache"
             │ no
             └──> hooks, in order ──> guardian ──> user ──> none of them: denied
                  the first reviewer with an opinion decides

Rules kept in this file:

1. Only an answer approves. A reviewer that fails, an answer that was not offered, and the lack of a reviewer
   are refusals. A cancelled question stays cancelled.
2. An approval covers what was shown, and no more: a prefix other than the proposed one is refused, and only
   `approved_for_session` is remembered.
3. Equal requests are asked one after the other, so that an answer for the session is given once.
4. With a policy that never asks, no reviewer is called.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

from execclient.connection.connection import Json
from execclient.govern.approval_policy import ApprovalPolicy

if TYPE_CHECKING:
    from execclient.govern.network import NetworkProtocol, NetworkTarget
    from execclient.govern.policy.rules import NetworkRule

__all__ = [
    "ACCEPT",
    "ACCEPT_FOR_SESSION",
    "ANSWERS",
    "CANCEL",
    "COUNTED_TOOLS",
    "DECLINE",
    "Answer",
    "ApprovalCache",
    "ApprovalRequest",
    "Approvals",
    "DecidedBy",
    "Review",
    "Reviewed",
    "Reviewer",
]

log = logging.getLogger(__name__)

Argv = tuple[str, ...]

Answer = Literal["approved", "approved_for_session", "approved_with_amendment", "denied", "abort"]
"""`denied` ends the call, `abort` the whole turn."""

DecidedBy = Literal["cache", "hook", "guardian", "user", "nobody"]
"""The origin of an answer. `cache` is an earlier answer for the session; `nobody` means that no reviewer
answered."""

ANSWERS: Final[tuple[Answer, ...]] = get_args(Answer)
"""All possible answers."""

COUNTED_TOOLS: Final[tuple[str, ...]] = (
    "exec_command",
    "write_stdin",
    "shell",
    "shell_command",
    "run_shell_command",
    "container.exec",
    "local_shell",
    "apply_patch",
    "other",
)
"""The tools by which answers are counted. Any other name counts as `other`, since a metric needs a fixed
number of series."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """One question, with everything that the answer covers."""

    call_id: str
    kind: Literal["command", "patch", "network"]
    """`network`: a running command wants to reach a host."""
    command: str
    """Quoted for a shell; empty for a patch."""
    argv: Argv
    cwd: str
    reason: str | None
    """The justification of a rule, else that of the model."""
    amendment: Argv | None
    """The prefix of a rule that would allow such commands from now on, if that is offered."""
    permits: tuple[str, ...]
    """Sentences: what exactly will be permitted."""
    retry: bool
    """Whether it is for a second attempt, after a denial by the sandbox."""
    tool: str
    paths: tuple[str, ...] = ()
    """The files of a patch."""
    diff: str | None = None
    prompt: str = ""
    """The text above the command. If it is empty, `Approvals` uses the policy's template."""
    network: NetworkTarget | None = None
    """The host that the command wants to reach."""
    rule: NetworkRule | None = None
    """The rule that would allow the host from now on, if that is offered."""

    @property
    def available_decisions(self) -> list[Json]:
        """The answers to show, in the reference's form. `acceptForSession` and `decline` are valid, too."""
        decisions: list[Json] = ["accept"]
        if self.amendment is not None:
            decisions.append(
                {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": list(self.amendment)}}
            )
        if self.rule is not None:
            allowed = {"host": self.rule.host, "action": "allow"}
            decisions.append({_WITH_RULE: {"network_policy_amendment": allowed}})
        return [*decisions, "cancel"]

    def to_json(self) -> dict[str, Json]:
        """The request in the form that the reference sends to its user interface."""
        shown: dict[str, Json] = {"kind": self.kind}
        if self.reason is not None:
            shown["reason"] = self.reason
        shown["command"] = self.command
        if self.network is not None:
            network = self.network
            shown["networkApprovalContext"] = {
                "host": network.host,
                "protocol": _REFERENCE_PROTOCOLS[network.protocol],
                "port": network.port,
            }
        if self.amendment is not None:
            shown["proposedExecpolicyAmendment"] = list(self.amendment)
        shown["availableDecisions"] = self.available_decisions
        return shown


@dataclass(frozen=True, slots=True)
class Review:
    """An answer.

    Raises:
        ValueError: `amendment`, `rule` or `any_cwd` does not belong to the answer, or is missing.
    """

    answer: Answer
    reason: str | None = None
    """The reason of a refusal, for the model."""
    amendment: Argv | None = None
    """The prefix of the rule: exactly the proposed one."""
    rule: NetworkRule | None = None
    """The rule on a host: exactly the proposed one."""
    any_cwd: bool = False
    """With `approved_for_session`: approve the command in every directory, under the same sandbox and for the
    same workspace."""

    def __post_init__(self) -> None:
        if self.answer not in ANSWERS:
            raise ValueError(f"answer: {self.answer!r} is none of {', '.join(ANSWERS)}")
        amendments = sum(each is not None for each in (self.amendment, self.rule))
        if amendments != (self.answer == "approved_with_amendment"):
            raise ValueError(
                "amendment: it, or rule, belongs to the answer approved_with_amendment, and to no other"
            )
        if self.any_cwd and self.answer != "approved_for_session":
            raise ValueError("any_cwd: it belongs to the answer approved_for_session, and to no other")

    @property
    def approves(self) -> bool:
        """Whether the call may continue."""
        return self.answer.startswith("approved")

    @classmethod
    def parse(cls, value: Json, rule: NetworkRule | None = None) -> Review:
        """Parse an answer in the reference's form.

        Args:
            value: `accept`, `acceptForSession`, `decline`, `cancel`,
                `{"acceptWithExecpolicyAmendment": {"execpolicy_amendment": [WORD, …]}}`, or
                `{"applyNetworkPolicyAmendment": {"network_policy_amendment": {"host": HOST, "action":
                "allow"}}}`.
            rule: the rule on a host that the request proposed; the last form is about it.

        Raises:
            ValueError: it is none of these.
        """
        if isinstance(value, str) and value in _REFERENCE_WORDS:
            return cls(_REFERENCE_WORDS[value])
        if isinstance(value, Mapping) and set(value) == {_WITH_AMENDMENT}:
            return cls("approved_with_amendment", amendment=_amendment(value[_WITH_AMENDMENT]))
        if rule is not None and value == {
            _WITH_RULE: {"network_policy_amendment": {"host": rule.host, "action": "allow"}}
        }:
            return cls("approved_with_amendment", rule=rule)
        raise ValueError(
            f"decision: {value!r} is none of {', '.join(_REFERENCE_WORDS)}, {_WITH_AMENDMENT} and the "
            f"proposed {_WITH_RULE}"
        )


_REFERENCE_WORDS: Mapping[str, Answer] = {
    "accept": "approved",
    "acceptForSession": "approved_for_session",
    "decline": "denied",
    "cancel": "abort",
}
_WITH_AMENDMENT = "acceptWithExecpolicyAmendment"
_WITH_RULE = "applyNetworkPolicyAmendment"
_REFERENCE_PROTOCOLS: Mapping[NetworkProtocol, str] = {
    "http": "http",
    "https": "https",
    "socks5_tcp": "socks5Tcp",
    "socks5_udp": "socks5Udp",
}


def _amendment(value: Json) -> Argv:
    words = value.get("execpolicy_amendment") if isinstance(value, Mapping) else None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError(
            f"decision: {_WITH_AMENDMENT}.execpolicy_amendment must be a list of words, not empty"
        )
    return tuple(words)


ACCEPT = Review("approved")
"""Approve once."""
ACCEPT_FOR_SESSION = Review("approved_for_session")
"""Approve, and do not ask again in this session."""
DECLINE = Review("denied")
"""Refuse the call; the turn continues."""
CANCEL = Review("abort")
"""Refuse the call and end the turn."""


class Reviewer(Protocol):
    """A person or a program that answers requests."""

    async def review(self, request: ApprovalRequest) -> Review | None:
        """The answer; None for no opinion: then the next reviewer is asked. An exception is a refusal."""
        ...


@dataclass(frozen=True, slots=True)
class Reviewed:
    """An answer and its origin."""

    review: Review
    decided_by: DecidedBy


class Approvals:
    """Asks for the approvals of one session.

    Args:
        hooks: the reviewers that are asked first, in order; usually programs.
        guardian: the reviewer that is asked if no hook has an opinion.
        user: the reviewer that is asked last.
        policy: decides which questions may be asked, and has their template.
    """

    def __init__(
        self,
        hooks: Sequence[Reviewer] = (),
        guardian: Reviewer | None = None,
        user: Reviewer | None = None,
        *,
        policy: ApprovalPolicy,
    ) -> None:
        self.policy = policy
        self.cache = ApprovalCache()
        self.counts: dict[tuple[str, Answer], int] = {
            (tool, answer): 0 for tool in COUNTED_TOOLS for answer in ANSWERS
        }
        """The number of answers by tool and answer, without those from the cache."""
        self._reviewers: list[tuple[DecidedBy, Reviewer]] = [("hook", hook) for hook in hooks]
        if guardian is not None:
            self._reviewers.append(("guardian", guardian))
        if user is not None:
            self._reviewers.append(("user", user))
        self._waiting: dict[str, _Turns] = {}

    async def ask(self, request: ApprovalRequest, keys: Sequence[str]) -> Reviewed:
        """Get an answer.

        Args:
            request: the question.
            keys: the keys that an answer for the session covers (`ApprovalCache`). If all of them are
                covered, no reviewer is asked. Without keys, a reviewer is asked every time, and nothing is
                remembered.

        Raises:
            CancelledError: the caller was cancelled; no answer counts.
        """
        if not self.policy.asks:
            refusal = Review("denied", f"the approval policy {self.policy.name} allows no questions")
            return self._counted(request, Reviewed(refusal, "nobody"))
        if self.cache.covers(keys):
            return _COVERED
        async with self._turn(keys):
            # An equal request may have been approved for the session meanwhile.
            if self.cache.covers(keys):
                return _COVERED
            reviewed = await self._decide(self._worded(request))
            if reviewed.review.answer == "approved_for_session":
                self.cache.remember(keys, any_cwd=reviewed.review.any_cwd)
        return self._counted(request, reviewed)

    # -- inside

    def _worded(self, request: ApprovalRequest) -> ApprovalRequest:
        if request.prompt or request.kind != "command":
            return request
        prompt = self.policy.prompt(command=request.command, cwd=request.cwd, reason=request.reason)
        return replace(request, prompt=prompt)

    async def _decide(self, request: ApprovalRequest) -> Reviewed:
        for role, reviewer in self._reviewers:
            name = type(reviewer).__name__
            try:
                review = await reviewer.review(request)
            except Exception as error:  # a bug in a reviewer must neither approve nor end the turn
                log.exception("%s could not review call %s", name, request.call_id)
                reason = f"{name} could not decide: {type(error).__name__}"
                return Reviewed(Review("denied", reason), role)
            if review is not None:
                return Reviewed(_within_offer(review, request, name), role)
        return Reviewed(Review("denied", "it needs an approval, and there is no reviewer"), "nobody")

    def _counted(self, request: ApprovalRequest, reviewed: Reviewed) -> Reviewed:
        tool = request.tool if request.tool in COUNTED_TOOLS else "other"
        self.counts[tool, reviewed.review.answer] += 1
        return reviewed

    @asynccontextmanager
    async def _turn(self, keys: Sequence[str]) -> AsyncIterator[None]:
        """Wait for equal requests that came before."""
        async with AsyncExitStack() as stack:
            # Always in the same order, so that two patches that share files cannot deadlock.
            for key in sorted(set(keys)):
                turns = self._waiting.setdefault(key, _Turns())
                turns.users += 1
                stack.callback(self._leave, key, turns)
                await stack.enter_async_context(turns.lock)
            yield

    def _leave(self, key: str, turns: _Turns) -> None:
        turns.users -= 1
        if not turns.users:
            del self._waiting[key]


@dataclass(slots=True)
class _Turns:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


_COVERED = Reviewed(ACCEPT_FOR_SESSION, "cache")


def _within_offer(review: object, request: ApprovalRequest, name: str) -> Review:
    """The answer, or a refusal if it exceeds the offer."""
    if not isinstance(review, Review):
        return Review("denied", f"{name} gave no answer but a {type(review).__name__}")
    if review.amendment is not None and review.amendment != request.amendment:
        offered = "none was proposed" if request.amendment is None else f"{request.amendment!r} was"
        return Review("denied", f"{name} approved with the rule {review.amendment!r}, but {offered}")
    if review.rule is not None and review.rule != request.rule:
        return Review("denied", f"{name} approved with a rule on a host that was not proposed")
    return review


class ApprovalCache:
    """The approvals for the rest of a session, by key.

    The key of a command is the JSON array `[ARGV, CWD, TTY, SANDBOX_PERMISSIONS, ADDITIONAL]`: the arguments
    with the shell around them, the working directory, whether there is a terminal, `use_default`,
    `require_escalated` or `with_additional_permissions`, and the additional permissions or null. A grant for
    any directory has null for CWD. The key of a file of a patch is the object `{"file": PATH}`.

    The tools add a scope, as a sixth member or as the member `scope` of the object: the executor, the
    sandbox, the folders of the workspace, the environment policy, and for a patch `escalated`. An approval
    under one sandbox or at one executor does not hold for another. With parity, keys have no scope.
    """

    def __init__(self) -> None:
        self._granted: set[str] = set()

    @staticmethod
    def key_of(
        argv: Sequence[str],
        cwd: str,
        tty: bool,
        escalated: bool,
        additional: Mapping[str, Json] | None = None,
        *,
        scope: Mapping[str, Json] | None = None,
    ) -> str:
        """The key of a command."""
        permissions = "require_escalated" if escalated else "use_default"
        if additional is not None:
            permissions = "with_additional_permissions"
        members = [list(argv), cwd, tty, permissions, additional]
        return _canonical(members if scope is None else [*members, scope])

    @staticmethod
    def key_of_file(path: str, *, scope: Mapping[str, Json] | None = None) -> str:
        """The key of one file of a patch."""
        return _canonical({"file": path} if scope is None else {"file": path, "scope": scope})

    @staticmethod
    def key_of_input(process_id: str, *, scope: Mapping[str, Json]) -> str:
        """The key of input for a process."""
        return _canonical({"input": process_id, "scope": scope})

    @staticmethod
    def key_of_host(target: NetworkTarget, *, scope: Mapping[str, Json] | None = None) -> str:
        """The key of a host, with its port and protocol."""
        members: dict[str, Json] = {"network": [target.protocol, target.host, target.port]}
        return _canonical(members if scope is None else {**members, "scope": scope})

    def covers(self, keys: Sequence[str]) -> bool:
        """Whether all of these keys were granted; False without keys."""
        return bool(keys) and all(key in self._granted or _anywhere(key) in self._granted for key in keys)

    def remember(self, keys: Iterable[str], *, any_cwd: bool = False) -> None:
        """Grant keys; with `any_cwd`, for every directory."""
        self._granted.update(_anywhere(key) if any_cwd else key for key in keys)


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _anywhere(key: str) -> str:
    members = json.loads(key)
    if isinstance(members, list):
        members[1] = None
    return _canonical(members)
