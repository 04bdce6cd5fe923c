from __future__ import annotations

from pathlib import Path

from tests.third_party.how_to import follow


def test_the_page_does_what_it_says(url: str, tmp_path: Path) -> None:
    assert follow("swe-rex", url, tmp_path) == 2
