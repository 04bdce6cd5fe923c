"""Words that are gone do not come back: in source, in pages, in the names of tests.

Comments and pages are plain technical English (CONTRIBUTING.md): a mechanism has the name that the field uses
for it, and a sentence has a named subject. Each entry below says what is written instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT


class Gone(NamedTuple):
    """A word or phrase, and what stands for it now."""

    pattern: str
    instead: str


WORDS = (
    Gone("nobody", "name the subject, or use the passive"),
    Gone("somebody", "name the subject: a client, another user, a person"),
    Gone("whoever", "name the subject: the client that, the user who"),
    Gone("everybody", "name the subjects: all users, every client"),
    Gone("aside", "a daemon thread (`run_in_daemon_thread`)"),
    Gone("apparatus", "setup"),
    Gone("complaints?", "error text"),
    Gone("crew", "pool, policy queue"),
    Gone("greetings?", "accept, handshake"),
    Gone("hasten(s|ed|ing)?|hurr(y|ies|ied)", "expedite"),
    Gone("in vain", "without success"),
    Gone("keepers?", "fd store"),
    Gone("lend_spares|spares|spares_are_out", "reserved descriptors"),
    Gone("membership", "descendants, ownership tag"),
    Gone("outbox", "write buffer"),
    Gone("successors?", "new server"),
    Gone("surroundings", "context"),
    Gone("catch_up", "replay"),
    Gone("giving_up", "cancellation"),
    Gone("worker_link", "worker client"),
    Gone("sits? down|sat down", "connect"),
    Gone("hand(s|ed|ing)? on", "forward"),
    Gone("g(ives?|iven|ave) back", "return"),
    Gone("has something to say", "has pending data"),
)
"""Each as a whole word, in any case, also as a part of an identifier (`nobody_waits`)."""

CLASSES = (
    Gone("Feed", "EventStream"),
    Gone("Legacy", "recovered state"),
    Gone("Own", "OwnedResources"),
    Gone("Room", "flow control"),
    Gone("Surroundings", "ExecutorContext"),
    Gone("Terms", "StartOptions"),
)
"""Names of classes; the words by themselves are English."""

SENTENCES = (
    "made up for",
    "in which they win",
    "no wall between",
    "can be gone on with",
    "goes on asking",
    "a door more",
    "who is slow pays",
    "what else there is",
    "what may hang",
    "often in vain",
)
"""Turns of phrase that the first pages had."""


class Allowed(NamedTuple):
    """Where a word stays, and why."""

    file: str
    text: str
    reason: str


ALLOWED = (
    Allowed("docs/seeds.md", "", "quotes the founding documents, which do not change"),
    Allowed("", r"[`\"]nobody[`\"]", "a value of `Reviewed.by`, public"),
    Allowed("execserver/sandbox/seatbelt.py", r"opendirectoryd\.membership", "a name of macOS"),
)
"""The file is a path, or empty for all; the text is a pattern that the line has."""

FOLDERS = ("execserver", "clients", "tools", "benchmarks", "examples", "systemd", "deploy", "docs")
SUFFIXES = (".py", ".md", ".toml", ".yml", ".yaml", ".service", ".socket", ".mjs", ".ts")


def whole_word(pattern: str) -> str:
    """Underscores and digits end a word, so that parts of identifiers are words too."""
    return rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])"


_GONE = re.compile("|".join([*(whole_word(each.pattern) for each in WORDS), *SENTENCES]), re.IGNORECASE)
_CLASS = re.compile(rf"\bclass _?({'|'.join(each.pattern for each in CLASSES)})\b")
_TEST_NAME = re.compile(r"^\s*(?:async )?(?:def|class) (\w+)", re.MULTILINE)


class Line(NamedTuple):
    """A line of a file, or the name of a test."""

    file: str
    number: int
    text: str

    @property
    def gone(self) -> str:
        """The first word in it that is gone, or nothing."""
        found = _GONE.search(self.text) or _CLASS.search(self.text)
        return found[0] if found else ""

    @property
    def exception(self) -> Allowed | None:
        """Why its word may stay."""
        for each in ALLOWED:
            if each.file in ("", self.file) and re.search(each.text, self.text):
                return each
        return None


def texts() -> list[Path]:
    """What is read whole."""
    below = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    built = {"node_modules", "static"}  # those of others, and what is made of ours
    found = [
        path for path in below if path.suffix in SUFFIXES and path.is_file() and not built & {*path.parts}
    ]
    return sorted([*found, *ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile", ROOT / "mkdocs.yml"])


def lines() -> Iterator[Line]:
    for file in texts():
        for number, text in enumerate(file.read_text().splitlines(), 1):
            yield Line(str(file.relative_to(ROOT)), number, text)


def names_of_tests() -> Iterator[Line]:
    """The names of the files, classes and functions in `tests`."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        name = str(file.relative_to(ROOT))
        yield Line(name, 0, name)
        text = file.read_text()
        for found in _TEST_NAME.finditer(text):
            yield Line(name, text.count("\n", 0, found.start()) + 1, found[1])


def report(found: Iterable[Line]) -> str:
    """The words that are in these lines, by file, with what to write instead."""
    wrong = [line for line in found if line.gone and line.exception is None]
    return "\n".join(f"{each.file}:{each.number}: {each.gone!r}: {each.text.strip()[:100]}" for each in wrong)


def test_no_word_that_is_gone_is_in_source_or_pages() -> None:
    assert not report(lines())


def test_no_name_of_a_test_has_a_word_that_is_gone() -> None:
    assert not report(names_of_tests())


def test_every_exception_is_needed() -> None:
    needed = {line.exception for line in lines() if line.gone}
    assert needed >= set(ALLOWED)


@pytest.mark.parametrize(
    "text",
    [
        "Nobody waits.",
        "def test_nobody_waits():",
        "lend_spares()",
        "class _Legacy:",
        "What else there is says",
    ],
)
def test_a_word_is_found_in_any_case_and_in_identifiers(text: str) -> None:
    assert Line("", 1, text).gone


@pytest.mark.parametrize("text", ["of our own", "a legacy protocol", "the keepalive"])
def test_other_words_are_let_alone(text: str) -> None:
    assert not Line("", 1, text).gone
