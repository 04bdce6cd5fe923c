"""The three statements of a rule file: their meaning, and the errors of invalid statements.

    prefix_rule(pattern, decision, match, not_match, justification)
    host_executable(name, paths)
    network_rule(host, protocol, decision, justification)

Rules kept in this file:

1. This module does not depend on Starlark: a value comes with the name of its type.
2. Error texts are those of the reference: people use the same tools with both programs.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from execclient.govern.network import NetworkProtocol, canonical_host
from execclient.govern.policy.rules import (
    Argv,
    Decision,
    NetworkRule,
    PrefixRule,
    RuleMatch,
    RuleSet,
    RuleSource,
)

_PROTOCOLS: dict[str, NetworkProtocol] = {
    **{name: name for name in get_args(NetworkProtocol)},
    "https_connect": "https",
    "http-connect": "https",
}
"""The last two are other names for a tunnel through an HTTP proxy."""


class StatementError(ValueError):
    """A statement is invalid; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class StarlarkValue:
    """A value of Starlark."""

    type: str
    """`string`, `list`, `tuple`, `int`, `NoneType` and so on."""
    text: str = ""
    """The value of a string."""
    items: tuple[StarlarkValue, ...] = ()
    """The items of a list or a tuple."""
    shown: str = ""
    """The value as Starlark prints it, for errors; may be cut."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The examples of one statement: commands that its rules must match, and commands that they must not."""

    rules: tuple[PrefixRule, ...]
    matching: tuple[Argv, ...]
    others: tuple[Argv, ...]

    def check(self, known: RuleSet) -> None:
        """Check the rules with the examples.

        Args:
            known: the rule set with the host executables.

        Raises:
            StatementError: an example does not hold.
        """
        alone = RuleSet(self.rules, known.host_executables)
        for command in self.others:
            matches = alone.matches(command)
            if matches:
                raise StatementError(
                    f"expected example to not match rule `{_match_shown(matches[0])}`: {shlex.join(command)}"
                )
        unmatched = [shlex.join(command) for command in self.matching if not alone.matches(command)]
        if unmatched:
            raise StatementError(
                "expected every example to match at least one rule. "
                f"rules: {_list_shown([_rule_shown(rule) for rule in self.rules])}; "
                f"unmatched examples: {_list_shown(unmatched)}"
            )


def prefix_rule(values: Sequence[StarlarkValue], source: RuleSource) -> Examples:
    """The rules of a `prefix_rule`, one for each program, with its examples."""
    pattern, decision, matching, others, justification = values
    program, *arguments = _pattern(_list(pattern, "pattern"))
    decided = _decision(_optional_string(decision, "decision") or "allow")
    why = _justification(justification)
    rules = tuple(PrefixRule(((each,), *arguments), decided, why, source) for each in program)
    return Examples(rules, _examples(matching, "match"), _examples(others, "not_match"))


def host_executable(values: Sequence[StarlarkValue]) -> tuple[str, Argv]:
    """The name of a `host_executable`, with its paths."""
    name = _string(values[0], "name")
    if not name:
        raise StatementError("invalid rule: host_executable name cannot be empty")
    if "/" in name or name in (".", ".."):
        raise StatementError(
            f"invalid rule: host_executable name must be a bare executable name (got {name})"
        )
    paths: dict[str, None] = {}
    for value in _list(values[1], "paths"):
        if value.type != "string":
            raise StatementError(f"invalid rule: host_executable paths must be strings (got {value.type})")
        if not value.text.startswith("/"):
            raise StatementError(f"invalid rule: host_executable paths must be absolute (got {value.text})")
        path = "/" + posixpath.normpath(value.text).lstrip("/")
        if posixpath.basename(path) != name:
            raise StatementError(
                f"invalid rule: host_executable path `{value.text}` must have basename `{name}`"
            )
        paths[path] = None
    return name, tuple(paths)


def network_rule(values: Sequence[StarlarkValue], source: RuleSource) -> NetworkRule:
    """The rule of a `network_rule`."""
    host, protocol, decision, justification = values
    named = _string(host, "host")
    spoken = _string(protocol, "protocol")
    decided = _string(decision, "decision")
    why = _justification(justification)
    if spoken not in _PROTOCOLS:
        possible = ", ".join(get_args(NetworkProtocol))
        raise StatementError(f"invalid rule: network_rule protocol must be one of {possible} (got {spoken})")
    verdict: Decision = "forbidden" if decided == "deny" else _decision(decided)
    try:
        parsed = parse_host(named)
    except ValueError as error:
        raise StatementError(f"invalid rule: {error}") from None
    return NetworkRule(parsed.name, _PROTOCOLS[spoken], verdict, why, source, parsed.port)


# -- the parts of a statement


def _pattern(items: Sequence[StarlarkValue]) -> list[Argv]:
    if not items:
        raise StatementError("invalid pattern element: pattern cannot be empty")
    return [_possibilities(item) for item in items]


def _possibilities(item: StarlarkValue) -> Argv:
    if item.type == "string":
        return (item.text,)
    if item.type != "list":
        raise StatementError(
            f"invalid pattern element: pattern element must be a string or list of strings (got {item.type})"
        )
    if not item.items:
        raise StatementError("invalid pattern element: pattern alternatives cannot be empty")
    for each in item.items:
        if each.type != "string":
            raise StatementError(
                f"invalid pattern element: pattern alternative must be a string (got {each.type})"
            )
    return tuple(each.text for each in item.items)


def _examples(value: StarlarkValue, parameter: str) -> tuple[Argv, ...]:
    if value.type == "NoneType":
        return ()
    return tuple(_example(item) for item in _list(value, parameter))


def _example(value: StarlarkValue) -> Argv:
    if value.type == "string":
        try:
            command = shlex.split(value.text, comments=True)
        except ValueError:
            raise StatementError("invalid example: example string has invalid shell syntax") from None
        if not command:
            raise StatementError("invalid example: example cannot be an empty string")
        return tuple(command)
    if value.type != "list":
        raise StatementError(
            f"invalid example: example must be a string or list of strings (got {value.type})"
        )
    if not value.items:
        raise StatementError("invalid example: example cannot be an empty list")
    for each in value.items:
        if each.type != "string":
            raise StatementError(f"invalid example: example tokens must be strings (got {each.type})")
    return tuple(each.text for each in value.items)


def _decision(text: str) -> Decision:
    for decision in get_args(Decision):
        if text == decision:
            found: Decision = decision
            return found
    raise StatementError(f"invalid decision: {text}")


def _justification(value: StarlarkValue) -> str | None:
    text = _optional_string(value, "justification")
    if text is not None and not text.strip():
        raise StatementError("invalid rule: justification cannot be empty")
    return text


def _list(value: StarlarkValue, parameter: str) -> tuple[StarlarkValue, ...]:
    if value.type != "list":
        raise _unfit(value, parameter, "list")
    return value.items


def _string(value: StarlarkValue, parameter: str) -> str:
    if value.type != "string":
        raise _unfit(value, parameter, "str")
    return value.text


def _optional_string(value: StarlarkValue, parameter: str) -> str | None:
    if value.type == "NoneType":
        return None
    if value.type != "string":
        raise _unfit(value, parameter, "None | str")
    return value.text


def _unfit(value: StarlarkValue, parameter: str, wanted: str) -> StatementError:
    return StatementError(
        f"Type of parameter `{parameter}` doesn't match, expected `{wanted}`, "
        f"actual `{value.type} (repr: {value.shown})`"
    )


# -- rules in errors, in the form of the reference's debug output


def _rule_shown(rule: PrefixRule) -> str:
    first, *rest = rule.pattern
    others = ", ".join(
        f"Single({_quoted(each[0])})" if len(each) == 1 else f"Alts({_list_shown(each)})" for each in rest
    )
    return (
        f"PrefixRule {{ pattern: PrefixPattern {{ canonical_matching: false, first: {_quoted(first[0])}, "
        f"rest: [{others}] }}, decision: {rule.decision.capitalize()}, "
        f"justification: {_optional_shown(rule.justification)} }}"
    )


def _match_shown(match: RuleMatch) -> str:
    path = match.resolved_program
    resolved = "None" if path is None else f"Some(AbsolutePathBuf({_quoted(path)}))"
    return (
        f"PrefixRuleMatch {{ matched_prefix: {_list_shown(match.prefix)}, "
        f"decision: {match.decision.capitalize()}, resolved_program: {resolved}, "
        f"justification: {_optional_shown(match.justification)} }}"
    )


def _optional_shown(text: str | None) -> str:
    return "None" if text is None else f"Some({_quoted(text)})"


def _list_shown(texts: Sequence[str]) -> str:
    return f"[{', '.join(_quoted(text) for text in texts)}]"


_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def _quoted(text: str) -> str:
    characters = (
        _ESCAPES.get(each) or (each if each.isprintable() else f"\\u{{{ord(each):x}}}") for each in text
    )
    return f'"{"".join(characters)}"'


class NetworkHost(NamedTuple):
    """The host of a network rule."""

    name: str
    """As the proxy names it (`canonical_host`)."""
    port: int | None
    """As written; not checked for its range."""


def parse_host(text: str) -> NetworkHost:
    """Parse a host: `example.com`, `example.com:443`, `10.0.0.1`, `::1`, `[::1]:80`.

    Schemes, paths and wildcards are refused, so that a rule about one host is not taken for one about many.

    Args:
        text: the host; blanks around it are ignored.

    Raises:
        ValueError: it is no host; the message begins with `network_rule host`.
    """
    given = text.strip()
    if any(mark in given for mark in ("/", "?", "#")):
        raise ValueError("network_rule host must be a hostname or IP literal (without scheme or path)")
    name, port = _bracketed(given, text) if given.startswith("[") else _split(given)
    name = name.rstrip(".").strip()
    if not name:
        raise ValueError("network_rule host cannot be empty")
    if "*" in name:
        raise ValueError("network_rule host must be a specific host; wildcards are not allowed")
    if any(character.isspace() for character in name):
        raise ValueError("network_rule host cannot contain whitespace")
    try:
        return NetworkHost(canonical_host(name), port)
    except ValueError as error:
        # A rule that no host can match would let a forbidden one pass.
        raise ValueError(f"network_rule host {name!r}: {error}") from None


def _bracketed(given: str, text: str) -> tuple[str, int | None]:
    name, closed, rest = given[1:].partition("]")
    if not closed:
        raise ValueError("network_rule host has an invalid bracketed IPv6 literal")
    if not rest:
        return name, None
    if not (rest.startswith(":") and _is_number(rest[1:])):
        raise ValueError(f"network_rule host contains an unsupported suffix: {text}")
    return name, int(rest[1:])


def _split(given: str) -> tuple[str, int | None]:
    """Split name and port. An IPv6 address without brackets has no port."""
    name, _, port = given.partition(":")
    return (name, int(port)) if name and _is_number(port) else (given, None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_PORT


_LONGEST_PORT = 9
"""In digits. Ports have at most five; a rule about an impossible port is harmless, a huge number is not."""
