"""The page on security says all of a policy in one place."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text()

POLICIES = (
    "Read-only",
    "Workspace-write",
    "Workspace-write with network",
    "Restricted read",
    "Denied paths",
    "Unrestricted files, network restricted",
    "External, network enabled",
    "Disabled",
)


def rows_of(policy: str) -> list[tuple[str, str, str]]:
    """What a policy's table says of each thing: what protects it, and what does not."""
    section = re.search(rf"^### {re.escape(policy)}$(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert section, f"no section {policy!r}"
    lines = [line for line in section[1].splitlines() if line.startswith("|")]
    assert lines[:2] == ["| | protected by | not protected |", "| --- | --- | --- |"]
    rows = []
    for line in lines[2:]:
        thing, protected, left = (cell.strip() for cell in line[1:-1].split("|"))
        rows.append((thing, protected, left))
    return rows


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_says_of_the_same_things_what_protects_them(policy: str) -> None:
    assert [row[0] for row in rows_of(policy)] == [row[0] for row in rows_of(POLICIES[0])]
    for thing, protected, _ in rows_of(policy):
        assert protected, thing


@pytest.mark.parametrize("policy", POLICIES)
def test_what_nothing_protects_is_said_to_be_open(policy: str) -> None:
    for thing, protected, left in rows_of(policy):
        assert protected != "nothing" or left, thing
