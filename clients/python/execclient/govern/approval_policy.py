"""Approval policies: when a command needs an approval. Each policy is a row of one table.

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

1. A policy is data. `execclient.govern.policy.decision` applies it to a command, and refers to no policy by
   its name.
2. "Run" means: within the sandbox of the turn. No row lifts a sandbox.
3. An unknown value is an error that names the field; no other policy is used instead.

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
"""The decision on a command that no rule matches."""

FIELD = "approval_policy"
"""The name of the field in errors."""

DEFAULT_TEMPLATE = "The model asks to run a command in {cwd}."
"""The template of a policy without its own."""

_PLACEHOLDERS = frozenset({"command", "cwd", "reason"})

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Granular:
    """The kinds of question that may be asked; other questions are refused without asking."""

    sandbox_approval: bool
    """Whether to run without the sandbox, before the first attempt or after a denial."""
    rules: bool
    """Whether to run a command that a rule with the decision `prompt` matches."""
    mcp_elicitations: bool
    """Questions of a tool server to its user."""
    skill_approval: bool = False
    request_permissions: bool = False

    def to_json(self) -> dict[str, Json]:
        """The policy as JSON, for `approval_policy`."""
        return {name: getattr(self, name) for name in _GRANULAR_FIELDS}


_GRANULAR_REQUIRED = ("sandbox_approval", "rules", "mcp_elicitations")
_GRANULAR_FIELDS = ("sandbox_approval", "rules", "skill_approval", "request_permissions", "mcp_elicitations")
"""In the order of the reference's refusals."""


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """One row of the table. A host's own policy may leave out the fields with defaults.

    Raises:
        ValueError: the name or the template is not valid; the message names the field.
    """

    name: str
    """The name in configuration and on the wire: small letters, digits and dashes."""
    shown: str
    """The name in refusals, in the reference's spelling."""
    unmatched: Verdict
    """The decision on a command that no rule matches and that is not dangerous."""
    dangerous: Verdict
    """The decision on a command that no rule matches and that destroys data, such as `rm -f`."""
    trusts_known_safe: bool = False
    """Whether a command that is known to be safe runs where `unmatched` would ask."""
    asks_for_rules: bool = True
    """Whether a rule with the decision `prompt` asks for an approval; else it refuses."""
    asks_for_sandbox: bool = True
    """Whether other questions may be asked; else they are refusals."""
    may_escalate: bool = True
    """Whether a call may ask to run without the sandbox; if not, it is refused before anything else."""
    retry: Literal["no", "ask"] = "no"
    """Whether to ask for a second attempt without the sandbox after the sandbox denied something."""
    prompt_template: str = DEFAULT_TEMPLATE
    """The text above the command in a question. `{command}`, `{cwd}` and `{reason}` are replaced."""
    granular: Granular | None = None
    patches: Literal["allow", "ask"] = "ask"
    """The decision on a patch whose files may all be written under the sandbox of the turn."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{FIELD}: {self.name!r} is no name: use small letters, digits and dashes")
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
        """Whether the policy asks at all."""
        return (
            "ask" in (self.unmatched, self.dangerous, self.patches, self.retry)
            or self.asks_for_rules
            or self.asks_for_sandbox
            or self.may_escalate
        )

    def prompt(self, *, command: str, cwd: str, reason: str | None) -> str:
        """The template with its placeholders replaced. Braces in the values are kept."""
        return self.prompt_template.format(command=command, cwd=cwd, reason=reason or "").strip()

    def to_json(self) -> Json:
        """The policy as JSON, for `approval_policy`."""
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
"""Asks for no approval: a command that would need one is refused."""

ON_REQUEST = ApprovalPolicy(
    name="on-request", shown="OnRequest", unmatched="allow", dangerous="ask", patches="allow"
)
"""Asks about dangerous commands, commands with a `prompt` rule, and calls without the sandbox."""

ON_FAILURE = ApprovalPolicy(
    name="on-failure",
    shown="OnFailure",
    unmatched="allow",
    dangerous="ask",
    retry="ask",
    patches="allow",
)
"""Like `ON_REQUEST`, and asks for a second attempt after a denial by the sandbox."""

UNTRUSTED = ApprovalPolicy(
    name="untrusted",
    shown="UnlessTrusted",  # the reference's spelling
    unmatched="ask",
    dangerous="ask",
    retry="ask",
    prompt_template="No rule allows this command. It would run in {cwd}.",
)
"""Asks about every command that no rule allows, and about every patch."""

UNLESS_TRUSTED = ApprovalPolicy(
    name="unless-trusted",
    shown="UnlessTrusted",
    unmatched="ask",
    dangerous="ask",
    trusts_known_safe=True,
    retry="ask",
    prompt_template="This command is not known to be safe. It would run in {cwd}.",
)
"""Like `UNTRUSTED`, but commands that are known to be safe run."""

AUTO_EDIT = ApprovalPolicy(
    name="auto-edit",
    shown="UnlessTrusted",  # for a model there is no difference
    unmatched="ask",
    dangerous="ask",
    trusts_known_safe=True,
    retry="ask",
    prompt_template="This command is not known to be safe. It would run in {cwd}.",
    patches="allow",
)
"""The policy of the mode auto-edit: patches in the workspace need no approval, commands do."""


def granular(
    *,
    sandbox_approval: bool,
    rules: bool,
    mcp_elicitations: bool,
    skill_approval: bool = False,
    request_permissions: bool = False,
) -> ApprovalPolicy:
    """A policy that allows or refuses each kind of question."""
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
    """Register a host's own policy under its name, in this process.

    The same policy may be registered again.

    Raises:
        ValueError: another policy has the name.
    """
    if policy.name == "granular":
        raise ValueError(
            f"{FIELD}: 'granular' has fields of its own and cannot be registered: take another name"
        )
    known = _POLICIES.setdefault(policy.name, policy)
    if known != policy:
        raise ValueError(f"{FIELD}: {policy.name!r} is another policy already: take another name")


def approval_policy(value: str | Mapping[str, Json] | ApprovalPolicy) -> ApprovalPolicy:
    """The policy for a value in a configuration or a request.

    Args:
        value: a name, or `{"granular": {"sandbox_approval": …, "rules": …, "mcp_elicitations": …}}`.

    Raises:
        ValueError: it is neither; the message names the field and the possible values.
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
    """The text for a model that asks to run without the sandbox and may not."""
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
