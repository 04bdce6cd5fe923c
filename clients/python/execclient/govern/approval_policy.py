"""When somebody is asked before a command runs: the policies, as rows of one table.

    policy          no rule   dangerous  prompt rule  a patch in the workspace  after a denial  escalation
    never           run       reject     reject       apply                     -               reject
    on-request      run       ask        ask          apply                     -               ask
    on-failure      run       ask        ask          apply                     ask             ask
    untrusted       ask       ask        ask          ask                       ask             ask
    unless-trusted  ask (1)   ask        ask          ask                       ask             ask
    auto-edit       ask (1)   ask        ask          apply                     ask             ask
    granular        run       ask        ask (2)      apply                     ask (3)         ask (3)

    (1) commands known to be safe run.  (2) if `rules`, else reject.  (3) if `sandbox_approval`, else no.

Rules kept in this file:

1. A policy is data. What it means for one command is worked out in `execclient.govern.policy.decision`,
   where no policy is known by its name.
2. "Run" means: within the sandbox of the turn. No row lifts a sandbox.
3. What is not understood is an error that names the field, never the nearest policy.

Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Literal, TypeGuard

from execclient.connection.connection import Json

__all__ = [
    "AUTO_EDIT",
    "DEFAULT_TEMPLATE",
    "NEVER",
    "ON_FAILURE",
    "ON_REQUEST",
    "UNLESS_TRUSTED",
    "UNTRUSTED",
    "ApprovalPolicy",
    "Granular",
    "Verdict",
    "approval_policy",
    "escalation_refused",
    "granular",
    "register_approval_policy",
]

Verdict = Literal["allow", "ask", "reject"]
"""What becomes of a command that no rule is about."""

FIELD = "approval_policy"
"""What errors call it."""

DEFAULT_TEMPLATE = "The model asks to run a command in {cwd}."
"""Of a policy that says nothing else."""

_PLACEHOLDERS = frozenset({"command", "cwd", "reason"})

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Granular:
    """Which kinds of question may be asked; the other kinds are refused in silence."""

    sandbox_approval: bool
    """To run without the sandbox, before or after the sandbox was in the way."""
    rules: bool
    """What a rule with the decision `prompt` is about."""
    mcp_elicitations: bool
    """What a tool server asks of its user."""
    skill_approval: bool = False
    request_permissions: bool = False

    def to_json(self) -> dict[str, Json]:
        """As `approval_policy` reads it."""
        return {name: getattr(self, name) for name in _GRANULAR_FIELDS}


_GRANULAR_REQUIRED = ("sandbox_approval", "rules", "mcp_elicitations")
_GRANULAR_FIELDS = ("sandbox_approval", "rules", "skill_approval", "request_permissions", "mcp_elicitations")
"""In the order in which the reference writes them in its refusals."""


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """One row. Those fields that have defaults are what a policy of a host's own need not say.

    Raises:
        ValueError: the name or the template is not one; the message names the field.
    """

    name: str
    """As configuration and the wire have it: small letters, digits and dashes."""
    shown: str
    """As refusals have it, in the reference's spelling."""
    unmatched: Verdict
    """A command that no rule matches and nothing is known against."""
    dangerous: Verdict
    """A command that no rule matches and that destroys, such as a removal by force."""
    trusts_known_safe: bool = False
    """Whether a command known to be safe runs where `unmatched` would ask."""
    asks_for_rules: bool = True
    """Whether somebody may be asked because a rule says `prompt`; if not, that is a refusal."""
    asks_for_sandbox: bool = True
    """The same for whatever is asked without a rule."""
    may_escalate: bool = True
    """Whether a call may ask to run without the sandbox; if not, it is refused before anything else."""
    retry: Literal["no", "ask"] = "no"
    """Whether a command that its sandbox denied something may be run once more without it."""
    prompt_template: str = DEFAULT_TEMPLATE
    """What an approver shows above the command. `{command}`, `{cwd}` and `{reason}` are replaced."""
    granular: Granular | None = None
    patches: Literal["allow", "ask"] = "ask"
    """A patch whose files may all be written under the sandbox of the turn."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{FIELD}: {self.name!r} is no name: small letters, digits and dashes make one")
        if not self.shown.strip():
            raise ValueError(f"{FIELD} {self.name}: shown is empty: refusals need a name for the policy")
        try:
            names = {field for _, field, _, _ in Formatter().parse(self.prompt_template) if field is not None}
        except ValueError as error:
            raise ValueError(
                f"{FIELD} {self.name}: prompt_template: {error}; write {{{{ for a brace"
            ) from None
        if unknown := sorted(names - _PLACEHOLDERS):
            raise ValueError(
                f"{FIELD} {self.name}: prompt_template has {{{unknown[0]}}}; "
                "there are only {command}, {cwd} and {reason}"
            )

    @property
    def asks(self) -> bool:
        """Whether there is anything at all that somebody is asked about."""
        return (
            "ask" in (self.unmatched, self.dangerous, self.patches, self.retry)
            or self.asks_for_rules
            or self.asks_for_sandbox
            or self.may_escalate
        )

    def prompt(self, *, command: str, cwd: str, reason: str | None) -> str:
        """The template, filled in. Braces in the values stay as they are."""
        return self.prompt_template.format(command=command, cwd=cwd, reason=reason or "").strip()

    def to_json(self) -> Json:
        """As `approval_policy` reads it."""
        return self.name if self.granular is None else {"granular": self.granular.to_json()}


NEVER = ApprovalPolicy(
    name="never",
    shown="Never",
    unmatched="allow",
    dangerous="reject",
    asks_for_rules=False,
    asks_for_sandbox=False,
    may_escalate=False,
    patches="allow",
)
"""Nobody is asked: what would need an answer is refused."""

ON_REQUEST = ApprovalPolicy(
    name="on-request", shown="OnRequest", unmatched="allow", dangerous="ask", patches="allow"
)
"""Asked about what destroys, what a rule says so of, and what is to run without the sandbox."""

ON_FAILURE = ApprovalPolicy(
    name="on-failure",
    shown="OnFailure",
    unmatched="allow",
    dangerous="ask",
    retry="ask",
    patches="allow",
)
"""As `ON_REQUEST`, and asked again when the sandbox was in the way."""

UNTRUSTED = ApprovalPolicy(
    name="untrusted",
    shown="UnlessTrusted",  # so the reference writes it
    unmatched="ask",
    dangerous="ask",
    retry="ask",
    prompt_template="No rule allows this command. It would run in {cwd}.",
)
"""Asked about every command that no rule allows, and every patch."""

UNLESS_TRUSTED = ApprovalPolicy(
    name="unless-trusted",
    shown="UnlessTrusted",
    unmatched="ask",
    dangerous="ask",
    trusts_known_safe=True,
    retry="ask",
    prompt_template="This command is not known to be safe. It would run in {cwd}.",
)
"""As `UNTRUSTED`, but commands that are known to be safe run."""

AUTO_EDIT = ApprovalPolicy(
    name="auto-edit",
    shown="UnlessTrusted",  # to a model it makes no difference
    unmatched="ask",
    dangerous="ask",
    trusts_known_safe=True,
    retry="ask",
    prompt_template="This command is not known to be safe. It would run in {cwd}.",
    patches="allow",
)
"""Of the mode of that name: files of the workspace are edited without a question, commands are not run so."""


def granular(
    *,
    sandbox_approval: bool,
    rules: bool,
    mcp_elicitations: bool,
    skill_approval: bool = False,
    request_permissions: bool = False,
) -> ApprovalPolicy:
    """The policy that says for each kind of question whether it may be asked."""
    flags = Granular(sandbox_approval, rules, mcp_elicitations, skill_approval, request_permissions)
    fields = ", ".join(f"{name}: {str(getattr(flags, name)).lower()}" for name in _GRANULAR_FIELDS)
    return ApprovalPolicy(
        name="granular",
        shown=f"Granular(GranularApprovalConfig {{ {fields} }})",
        unmatched="allow",
        dangerous="ask",
        asks_for_rules=rules,
        asks_for_sandbox=sandbox_approval,
        may_escalate=sandbox_approval,
        retry="ask" if sandbox_approval else "no",
        granular=flags,
        patches="allow",
    )


_POLICIES: dict[str, ApprovalPolicy] = {
    policy.name: policy for policy in (NEVER, ON_REQUEST, ON_FAILURE, UNTRUSTED, UNLESS_TRUSTED, AUTO_EDIT)
}


def register_approval_policy(policy: ApprovalPolicy) -> None:
    """Make a policy of the host's own usable by its name, in this process.

    The same one may be registered again.

    Raises:
        ValueError: another policy has the name; nothing replaces the meaning of one that is in use.
    """
    if policy.name == "granular":
        raise ValueError(
            f"{FIELD}: 'granular' has fields of its own and cannot be registered: take another name"
        )
    known = _POLICIES.setdefault(policy.name, policy)
    if known != policy:
        raise ValueError(f"{FIELD}: {policy.name!r} is another policy already: take another name")


def approval_policy(value: str | Mapping[str, Json] | ApprovalPolicy) -> ApprovalPolicy:
    """The policy that a configuration or a request names.

    Args:
        value: a name, or `{"granular": {"sandbox_approval": …, "rules": …, "mcp_elicitations": …}}`.

    Raises:
        ValueError: it is neither; the message names the field, and what is possible.
    """
    if isinstance(value, ApprovalPolicy):
        return value
    if isinstance(value, str):
        if value in _POLICIES:
            return _POLICIES[value]
        raise ValueError(f"{FIELD}: {value!r} is none of {_possible()}")
    if _is_granular(value):
        return granular(**_granular_flags(value["granular"]))
    raise ValueError(f"{FIELD}: expected one of {_possible()}, not {value!r}")


def escalation_refused(policy: ApprovalPolicy) -> str:
    """What the model is told when it asks to run without the sandbox and may not."""
    return (
        f"approval policy is {policy.shown}; reject command — you cannot ask for escalated permissions "
        f"if the approval policy is {policy.shown}"
    )


# -- inside


def _possible() -> str:
    return ", ".join(sorted(_POLICIES)) + ' and {"granular": {…}}'


def _is_granular(value: object) -> TypeGuard[Mapping[str, Json]]:
    return isinstance(value, Mapping) and set(value) == {"granular"}


def _granular_flags(flags: object) -> dict[str, bool]:
    field = f"{FIELD}.granular"
    if not isinstance(flags, Mapping):
        raise ValueError(f"{field}: expected an object with {', '.join(_GRANULAR_FIELDS)}, not {flags!r}")
    for name in _GRANULAR_REQUIRED:
        if name not in flags:
            raise ValueError(f"{field}.{name} is missing: true or false")
    for name, flag in flags.items():
        if name not in _GRANULAR_FIELDS:
            raise ValueError(f"{field}.{name} is unknown; there are {', '.join(_GRANULAR_FIELDS)}")
        if not isinstance(flag, bool):
            raise ValueError(f"{field}.{name}: {flag!r} is neither true nor false")
    return dict(flags)
