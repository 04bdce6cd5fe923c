"""The numbers in the explanations are those of the code."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.docs.pages import ROOT

EXPLANATION = ROOT / "docs" / "explanation"
PAGE = EXPLANATION / "memory.md"

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1}
_ROW = re.compile(r"^\| [^|]+ \| ([\d.]+) ?(KiB|MiB|GiB|s|) \| `([\w.]+)` \|$", re.MULTILINE)


def value_of(dotted: str) -> float:
    """The value of a name below `execserver`."""
    parts = dotted.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module("execserver." + ".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        if parts[split][0].isupper() and len(parts) - split == 2:
            found = getattr(found, parts[split])()  # a class of settings: its defaults
        return float(getattr(found, parts[-1]))
    raise LookupError(dotted)


def rows() -> list[tuple[str, str, str]]:
    return _ROW.findall(PAGE.read_text())


def test_every_row_of_the_tables_is_compared() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    tables = lines.count("| --- | --- | --- |")
    assert len(rows()) == len(lines) - 2 * tables > 30


@pytest.mark.parametrize(("number", "unit", "name"), rows(), ids=[row[2] for row in rows()])
def test_a_number_is_that_of_its_constant(number: str, unit: str, name: str) -> None:
    assert float(number) * UNITS[unit] == value_of(name)


@pytest.mark.parametrize(
    ("page", "sentence", "name", "unit"),
    [
        ("memory.md", r"At most (\d+) MiB of free memory", "memory._KEPT_BYTES", 1 << 20),
        (
            "output.md",
            r"(\d+) MiB a process",
            "configuration.model.Settings.retained_output_bytes",
            1 << 20,
        ),
        (
            "output.md",
            r"(\d+) GiB a daemon",
            "configuration.model.Settings.spool_max_bytes",
            1 << 30,
        ),
        ("output.md", r"may have (\d+) KiB of unsent events", "sessions.feed.WINDOW_BYTES", 1 << 10),
        ("output.md", r"costs a child (\d+) seconds, once", "sessions.feed.GRACE_SECONDS", 1),
        ("output.md", r"up to (\d+) of them", "protocol.limits.MAX_FILLED_GAP", 1),
        ("sandboxes.md", r"not answered for (\d+) seconds", "filesystem.worker_link.SILENT_SECONDS", 1),
        ("architecture.md", r"at most (\d+) threads", "filesystem.blocking.MAX_THREADS", 1),
        ("architecture.md", r"within (\d+) seconds of grace", "supervisor.program.STOP_GRACE_S", 1),
    ],
)
def test_a_number_in_a_sentence_is_that_of_its_constant(
    page: str, sentence: str, name: str, unit: int
) -> None:
    text = " ".join((EXPLANATION / page).read_text().split())
    found = re.search(sentence, text)
    assert found, f"{page} does not say {sentence!r}"
    assert int(found[1]) * unit == value_of(name)


def test_constants_that_a_page_names_exist() -> None:
    for page in sorted(EXPLANATION.glob("*.md")):
        for module in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", page.read_text()):
            places = ("execserver", "clients/python/execclient", "")
            assert any((ROOT / place / module).is_file() for place in places), f"{page.name}: {module}"
