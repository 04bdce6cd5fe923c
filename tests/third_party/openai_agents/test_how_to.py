"""The programs of `docs/how-to/openai-agents.md` do what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.third_party.how_to import follow


@pytest.mark.timeout(200)
def test_the_page_can_be_followed(url: str, tmp_path: Path) -> None:
    assert follow("openai-agents", url, tmp_path) == 3
