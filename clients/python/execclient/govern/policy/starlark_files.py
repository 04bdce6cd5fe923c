"""Runs a rule file, which is a small Starlark program, and reports its statements.

Rules kept in this file:

1. The library is imported with the first file: it is optional and has 14 MB.
2. A program has only Starlark's own functions and the three statements: no files, no other modules, no
   output, and at most `LIMIT_SECONDS`. Its memory is not limited.
3. Every error is a `PolicyError`, with the line if it is known.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from types import ModuleType

from execclient.errors import PolicyError
from execclient.govern.policy.rule_statements import StarlarkValue, StatementError

Statement = Callable[[str, Sequence[StarlarkValue], int | None], None]
"""Called with each statement: its name, all its arguments in order, and its line."""

LIMIT_SECONDS = 5.0
"""A limit on CPU time, so that a busy machine causes no errors. A thousand rules take some milliseconds."""

SHOWN_CHARACTERS = 80
"""The length of a value in an error."""

_NAME = "rules"
"""The name of the file for Starlark. The real name may contain anything, which would make the places in
Starlark's texts ambiguous."""

_PRELUDE_NAME = "statements"

_PRELUDE = """
def _typed(value):
    kind = type(value)
    if kind == "string":
        return [kind, value, [], repr(value)]
    if kind == "list" or kind == "tuple":
        return [kind, "", [_typed(each) for each in value], repr(value)]
    return [kind, "", [], repr(value)]

def _state(statement, stack, *values):
    _heard(statement, stack, [_typed(each) for each in values])

def prefix_rule(pattern, decision = None, match = None, not_match = None, justification = None):
    _state("prefix_rule", call_stack(), pattern, decision, match, not_match, justification)

def host_executable(name, paths):
    _state("host_executable", call_stack(), name, paths)

def network_rule(host, protocol, decision, justification = None):
    _state("network_rule", call_stack(), host, protocol, decision, justification)
"""
"""The statements are functions of Starlark, which binds their arguments and reports missing ones. They pass
on the types, which are lost in the conversion to Python, and the line."""

_FRAME = re.compile(rf"^  \* {_NAME}:(\d+), in ", re.MULTILINE)
"""A line of a traceback; quoted source has a deeper indentation."""

_PLACE = re.compile(rf"^ *--> {_NAME}:(\d+):\d+$", re.MULTILINE)

_MESSAGE = re.compile(r"^error: (.*?)\n *--> ", re.MULTILINE | re.DOTALL)


def run_rule_file(text: str, file: str, statement: Statement) -> None:
    """Run a rule file.

    Args:
        text: the program.
        file: the name of the file, for errors.
        statement: called with each statement; may raise `StatementError` for an invalid one.

    Raises:
        PolicyError: the file has an error, or takes too long.
    """
    starlark = _library(file)
    failed: list[PolicyError] = []
    begun = time.thread_time()

    def overdue() -> bool:
        return time.thread_time() - begun > LIMIT_SECONDS

    def heard(name: str, stack: str, values: list[list[object]]) -> None:
        line = _innermost(stack)
        try:
            statement(name, [_value(each) for each in values], line)
        except StatementError as error:
            failed.append(PolicyError(file, line, str(error)))
            raise

    dialect = starlark.Dialect.extended()
    dialect.enable_f_strings = True
    module = starlark.Module()
    module.add_callable("_heard", heard)
    with_stack = starlark.Globals.extended_by([starlark.LibraryExtension.CallStack])
    starlark.eval(module, starlark.parse(_PRELUDE_NAME, _PRELUDE, dialect), with_stack)
    try:
        # Starlark loses the line of an unexpected end of file behind a line break.
        program = starlark.parse(_NAME, text.rstrip(), dialect)
        starlark.eval_with(
            starlark.EvalOptions(check_cancelled=overdue), module, program, starlark.Globals.standard()
        )
    except starlark.StarlarkError as error:
        if failed:
            raise failed[0] from None
        if overdue():
            why = f"it takes more than {LIMIT_SECONDS:g} s: a rule file must list rules, not compute"
            raise PolicyError(file, _line(str(error)), why) from None
        raise PolicyError(file, _line(str(error)), _reason(str(error))) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of the Rust library; cannot be imported
            raise
        raise PolicyError(file, None, f"Starlark gives up: {error}") from None


def _library(file: str) -> ModuleType:
    try:
        import starlark
    except ImportError as error:
        raise PolicyError(
            file, None, f'rule files need Starlark ({error}): pip install "execclient[policy]"'
        ) from error
    return starlark


def _value(given: list[object]) -> StarlarkValue:
    kind, text, items, shown = given
    assert isinstance(items, list)
    cut = str(shown)
    if len(cut) > SHOWN_CHARACTERS:
        cut = cut[:SHOWN_CHARACTERS] + "…"
    return StarlarkValue(str(kind), str(text), tuple(_value(each) for each in items), cut)


def _innermost(stack: str) -> int | None:
    lines = _FRAME.findall(stack)
    return int(lines[-1]) if lines else None


def _line(text: str) -> int | None:
    place = _PLACE.findall(text)
    return int(place[-1]) if place else _innermost(text)


def _reason(text: str) -> str:
    found = _MESSAGE.search(text)
    reason = found[1] if found else text.strip()
    return reason.replace(f"{_PRELUDE_NAME}.", "")
