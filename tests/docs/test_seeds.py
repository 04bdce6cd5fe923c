"""Every row of the founding documents is answered, and the tests that it names exist."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "seeds.md"

ROWS = {0: 135, 1: 29, 2: 41, 3: 52, 4: 29}
"""How many rows each seed has; they are numbered from 1. The founding documents do not change."""

HEAD = "| row | what | shown by | note |"
RULE = "| --- | --- | --- | --- |"

WITHOUT_TEST = ("not done:", "later:")
"""What the note of a row begins with that may go without a test."""

WORK = ("Patch", "Release")
"""What `later:` may name: the work that is still to come."""

_PLACE = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table."""

    id: str
    what: str
    shown_by: str
    note: str

    @property
    def places(self) -> list[tuple[str, str]]:
        """The tests that it names, as file and function."""
        return _PLACE.findall(self.shown_by)


def tables(text: str) -> dict[int, list[Row]]:
    """The rows below the heading of each seed, in order; raises `ValueError` for a table of another form."""
    found: dict[int, list[Row]] = {}
    seed, before = -1, ""
    for number, line in enumerate(text.splitlines(), 1):
        if heading := re.match(r"## (?:Seed (\d))?", line):
            seed = int(heading[1]) if heading[1] else -1
        elif line.startswith("|") and line not in (HEAD, RULE):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
            if len(cells) != 6 or cells[0] or cells[-1] or seed < 0:
                raise ValueError(f"line {number}: not a row of four cells below the heading of a seed")
            found.setdefault(seed, []).append(Row(*cells[1:5]))
        elif line == HEAD and before.startswith("|"):
            raise ValueError(f"line {number}: a table begins within another")
        elif line == RULE and before != HEAD:
            raise ValueError(f"line {number}: the table before it has no head")
        before = line
    return found


@functools.cache
def defined_in(file: Path) -> frozenset[str]:
    """The tests that a file defines, as pytest collects them; none if there is no such file."""
    if not file.is_file() or not file.name.startswith("test_"):
        return frozenset()
    body = ast.parse(file.read_text()).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def faults(row: Row, root: Path = ROOT) -> list[str]:
    """What is wrong with a row."""
    found = [
        f"no such test: {file}::{test}" for file, test in row.places if test not in defined_in(root / file)
    ]
    if row.shown_by != "<br>".join(f"`{file}::{test}`" for file, test in row.places):
        found.append("shown by: something else than tests, separated by <br>")
    if len(set(row.places)) != len(row.places):
        found.append("shown by: a test twice")
    if not row.places and not row.note.startswith(WITHOUT_TEST):
        found.append(f"no test, and the note does not begin with one of {', '.join(WITHOUT_TEST)}")
    for word in re.findall(r"\blater: ?(\w*)", row.note):
        if word not in WORK:
            found.append(f"later: {word!r} is none of {', '.join(WORK)}")
    if not row.what:
        found.append("what: empty")
    return found


@functools.cache
def page() -> dict[int, list[Row]]:
    return tables(PAGE.read_text())


@pytest.mark.parametrize("seed", ROWS)
def test_every_row_of_a_seed_is_there_once_and_in_order(seed: int) -> None:
    ids = [row.id for row in page()[seed]]

    assert [each for each, count in Counter(ids).items() if count > 1] == []
    assert ids == [f"S{seed}.{number}" for number in range(1, ROWS[seed] + 1)]
    assert set(page()) == set(ROWS)


@pytest.mark.parametrize("seed", ROWS)
def test_every_row_names_tests_that_exist_or_says_why_there_are_none(seed: int) -> None:
    wrong = [f"{row.id}: {fault}" for row in page()[seed] for fault in faults(row)]

    assert wrong == []


def test_rows_that_a_note_sends_to_are_there() -> None:
    ids = {row.id for rows in page().values() for row in rows}

    for rows in page().values():
        for row in rows:
            assert set(re.findall(r"\bS\d\.\d+\b", row.note)) <= ids - {row.id}, row.id


@pytest.mark.parametrize(
    ("shown_by", "note", "fault"),
    [
        ("", "", "no test, and the note"),
        ("", "differs: we do not", "no test, and the note"),
        ("`tests/docs/test_seeds.py::test_nothing`", "", "no such test"),
        ("`tests/docs/test_nowhere.py::test_x`", "", "no such test"),
        ("`tests/docs/test_seeds.py::faults`", "", "something else than tests"),
        ("see elsewhere", "", "something else than tests"),
        ("`tests/docs/pages.py::blocks_of`", "", "something else than tests"),
        ("", "later: Someday, perhaps", "later: 'Someday' is none"),
    ],
)
def test_a_row_without_a_true_answer_is_found(shown_by: str, note: str, fault: str) -> None:
    assert any(each.startswith(fault) or fault in each for each in faults(Row("S0.1", "x", shown_by, note)))


@pytest.mark.parametrize("note", ["not done: no client needs it", "later: Release, for the rest"])
def test_a_row_may_say_why_it_has_no_test(note: str) -> None:
    assert faults(Row("S0.1", "x", "", note)) == []


@pytest.mark.parametrize(
    "text",
    [
        "## Seed 1: x\n\n| row | what | shown by | note |\n| --- | --- | --- | --- |\n| S1.1 | a | b |\n",
        "## Seed 1: x\n\n| row | what | shown by |\n| --- | --- | --- |\n",
        "## Seed 1: x\n\n| --- | --- | --- | --- |\n",
        "## Seed 1: x\n\n| S1.1 | a | b | c | d |\n",
        "| S1.1 | a | b | c |\n",
        "## Out of scope\n\n| S1.1 | a | b | c |\n",
    ],
)
def test_a_broken_table_is_found(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line \d+: "):
        tables(text)
