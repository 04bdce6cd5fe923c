"""The page `docs/how-to/inspect-ai.md` does what it says."""

from pathlib import Path

import pytest

from tests.third_party.how_to import follow


@pytest.mark.timeout(150)  # a program imports Inspect in 3 s of processor time
def test_the_programs_of_the_page_print_what_it_shows(url: str, tmp_path: Path) -> None:
    assert follow("inspect-ai", url, tmp_path) == 2
