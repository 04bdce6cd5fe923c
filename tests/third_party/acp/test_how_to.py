"""The programs of docs/how-to/acp.md."""

from __future__ import annotations

from pathlib import Path

from tests.third_party.how_to import follow


def test_the_programs_of_the_page_do_what_it_says(url: str, tmp_path: Path) -> None:
    assert follow("acp", url, tmp_path) == 1
