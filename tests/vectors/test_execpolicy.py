"""Rule files, and what they say of a command, as the reference reads them."""

from __future__ import annotations

from typing import Any

import pytest

from execclient.errors import PolicyError
from execclient.govern.policy.rule_files import parse_rules
from execclient.govern.policy.rules import NO_RULES, RuleSet, report
from tests.support.wire import Json
from tests.vectors.cases import load

VECTORS = load("execpolicy")

CWD = "/srv/work"
"""In which the cases were recorded."""

STARLARK = "starlark error: error: "
"""Before what is Starlark's own to say, in the words of its version, with the place behind it."""


def loaded(texts: list[str]) -> RuleSet:
    rules = NO_RULES
    for number, text in enumerate(texts):
        rules = rules.plus(parse_rules(text, f"r{number}.rules", known=rules))
    return rules


def expected(pattern: str) -> list[Any]:
    return [case for case in VECTORS.cases if pattern in case]


@pytest.mark.parametrize(
    "case", expected("result"), ids=[f"{VECTORS.stem}::{case['name']}" for case in expected("result")]
)
def test_the_same_rules_match(case: Json) -> None:
    rules = loaded(case["rules"])

    matches = rules.matches(case["command"], cwd=CWD, resolve=case.get("resolve_host_executables", False))

    assert report(matches) == case["result"]


@pytest.mark.parametrize(
    "case", expected("error"), ids=[f"{VECTORS.stem}::{case['name']}" for case in expected("error")]
)
def test_a_file_is_refused_with_the_same_words(case: Json) -> None:
    with pytest.raises(PolicyError) as refused:
        loaded(case["rules"])

    text, _, place = str(case["error"]).removeprefix(STARLARK).partition("\n")
    if text.startswith("Parse error: "):
        assert refused.value.reason.startswith("Parse error: ")
    else:
        assert refused.value.reason == text
    if place:
        assert f"{refused.value.file}:{refused.value.line}:" in place
