"""The document and the suite agree: every statement is proved, or said why not."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"

TESTS = Path(__file__).parents[1]
PROVING = tuple(
    TESTS / name
    for name in (
        "conformance",
        "integration/relay",
        "limits",
        "unit/client",
        "unit/network",
        "unit/protocol/relay",
        "unit/relay",
        "unit/watching",
    )
)
"""Where the tests are that name statements."""

WITHOUT_TEST = {
    "T40": "takes 30 s; the interval is a constant",
}


def _statements() -> list[str]:
    return re.findall(r"^- \*\*([A-Z]+\d+)\.\*\*", DOCUMENT.read_text(), re.MULTILINE)


def _proved() -> set[str]:
    named: set[str] = set()
    for module in (module for folder in PROVING for module in folder.glob("test_*.py")):
        for arguments in re.findall(r"mark\.statement\(([^)]*)\)", module.read_text()):
            named.update(re.findall(r'"([A-Z]+\d+)"', arguments))
    return named


def test_statement_numbers_are_unique() -> None:
    doubled = [number for number, count in Counter(_statements()).items() if count > 1]
    assert not doubled


def test_tests_name_only_statements_that_exist() -> None:
    assert not _proved() - set(_statements())


def test_every_statement_is_proved_or_excused() -> None:
    missing = set(_statements()) - _proved() - set(WITHOUT_TEST)
    assert not missing, sorted(missing)


@pytest.mark.parametrize("number", sorted(WITHOUT_TEST))
def test_no_excuse_outlives_its_reason(number: str) -> None:
    assert number in _statements()
    assert number not in _proved()
