"""What the three statements of a rule file mean, and what is wrong with one that means nothing.

    prefix_rule(pattern, decision, match, not_match, justification)
    host_executable(name, paths)
    network_rule(host, protocol, decision, justification)

Rules kept in this file:

1. Nothing of Starlark is known here: a value comes with the name of its type.
2. The texts of errors are the reference's, as tools that people use with both programs show them.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from execclient.govern.policy.rules import (
    Argv,
    Decision,
    NetworkProtocol,
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
    """A statement that means nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of Starlark."""

    type: str
    """`string`, `list`, `tuple`, `int`, `NoneType` and so on."""
    text: str = ""
    """Of a string."""
    items: tuple[Value, ...] = ()
    """Of a list or a tuple."""
    shown: str = ""
    """As Starlark writes it, for errors; cut when it is long."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Commands that the rules of one statement are about, and some that they are not."""

    rules: tuple[PrefixRule, ...]
    matching: tuple[Argv, ...]
    others: tuple[Argv, ...]

    def check(self, known: RuleSet) -> None:
        """Hold the rules against them.

        Args:
            known: its host executables count.

        Raises:
            StatementError: one turned out otherwise.
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


def prefix_rule(values: Sequence[Value], source: RuleSource) -> Examples:
    """The rules of a `prefix_rule`, one for each program that it names, and its examples."""
    pattern, decision, matching, others, justification = values
    program, *arguments = _pattern(_list(pattern, "pattern"))
    decided = _decision(_optional_string(decision, "decision") or "allow")
    why = _justification(justification)
    rules = tuple(PrefixRule(((each,), *arguments), decided, why, source) for each in program)
    return Examples(rules, _examples(matching, "match"), _examples(others, "not_match"))


def host_executable(values: Sequence[Value]) -> tuple[str, Argv]:
    """The name, and the paths that it may stand for."""
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


def network_rule(values: Sequence[Value], source: RuleSource) -> NetworkRule:
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


def _pattern(items: Sequence[Value]) -> list[Argv]:
    if not items:
        raise StatementError("invalid pattern element: pattern cannot be empty")
    return [_possibilities(item) for item in items]


def _possibilities(item: Value) -> Argv:
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


def _examples(value: Value, parameter: str) -> tuple[Argv, ...]:
    if value.type == "NoneType":
        return ()
    return tuple(_example(item) for item in _list(value, parameter))


def _example(value: Value) -> Argv:
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


def _justification(value: Value) -> str | None:
    text = _optional_string(value, "justification")
    if text is not None and not text.strip():
        raise StatementError("invalid rule: justification cannot be empty")
    return text


def _list(value: Value, parameter: str) -> tuple[Value, ...]:
    if value.type != "list":
        raise _unfit(value, parameter, "list")
    return value.items


def _string(value: Value, parameter: str) -> str:
    if value.type != "string":
        raise _unfit(value, parameter, "str")
    return value.text


def _optional_string(value: Value, parameter: str) -> str | None:
    if value.type == "NoneType":
        return None
    if value.type != "string":
        raise _unfit(value, parameter, "None | str")
    return value.text


def _unfit(value: Value, parameter: str, wanted: str) -> StatementError:
    return StatementError(
        f"Type of parameter `{parameter}` doesn't match, expected `{wanted}`, "
        f"actual `{value.type} (repr: {value.shown})`"
    )


# -- rules in errors, as the reference's debug output has them


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


class Host(NamedTuple):
    """A host as rules keep it."""

    name: str
    """In lower case, without the dot of the root and without brackets."""
    port: int | None
    """As it was written: nobody says that there is such a port."""


def parse_host(text: str) -> Host:
    """Read a host: `example.com`, `example.com:443`, `10.0.0.1`, `::1`, `[::1]:80`.

    Args:
        text: blanks around it do not count.

    Raises:
        ValueError: it is something else; the message begins with `network_rule host`.
    """
    given = text.strip()
    if any(mark in given for mark in ("/", "?", "#")):
        raise ValueError("network_rule host must be a hostname or IP literal (without scheme or path)")
    name, port = _bracketed(given, text) if given.startswith("[") else _split(given)
    name = name.rstrip(".").strip().lower()
    if not name:
        raise ValueError("network_rule host cannot be empty")
    if "*" in name:
        raise ValueError("network_rule host must be a specific host; wildcards are not allowed")
    if any(character.isspace() for character in name):
        raise ValueError("network_rule host cannot contain whitespace")
    return Host(name, port)


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
    """An address of IPv6 has more than one colon, and no port without brackets."""
    name, _, port = given.partition(":")
    return (name, int(port)) if name and _is_number(port) else (given, None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_PORT


_LONGEST_PORT = 9
"""Digits. No port has more than five; a rule about one that cannot be is harmless, a huge number is not."""
