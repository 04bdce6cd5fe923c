"""Every command and every block of code in the manual does what the manual says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PICTURES, ROOT, TUTORIAL, Block, blocks_of, pages
from tests.docs.reader import reader


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.manual
@pytest.mark.timeout(180)  # the longest page starts ten daemons and relays
@pytest.mark.parametrize("page", [page for page in pages() if page != TUTORIAL], ids=name_of)
def test_a_page_does_what_it_says(page: Path) -> None:
    blocks = blocks_of(page)
    if any(block.language not in PICTURES for block in blocks):
        with reader() as one:
            one.follow(blocks)


def test_a_page_that_starts_a_daemon_installs_it() -> None:
    """The client alone does not bring the program `execserver`."""
    for page in pages():
        commands = [line for block in blocks_of(page) for line in block.text.splitlines() if line[:2] == "$ "]
        installs = [line for line in commands if line.startswith("$ pip install") and "execclient[" in line]
        if installs and any(line.startswith("$ execserver ") for line in commands):
            assert any(" execserver" in line.replace('"', "") for line in installs), (
                f"{name_of(page)}: {installs}"
            )


def elsewhere() -> list[Block]:
    return [block for page in pages() for block in blocks_of(page) if block.place is not None]


def test_what_a_page_cannot_run_here_is_run_in_a_place_that_exists() -> None:
    missing = [f"{block.where}: {block.place}" for block in elsewhere() if not exists(str(block.place))]
    assert not missing


def exists(place: str) -> bool:
    kind, _, name = place.partition(" ")
    if kind == "make":
        return re.search(rf"^{re.escape(name)}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None
    file, _, function = place.partition("::")
    # pytest collects no other names, and `make` runs what it names.
    collected = Path(file).name.startswith("test_") and file.startswith("tests/")
    if not (ROOT / file).is_file() or not (collected or file in (ROOT / "Makefile").read_text()):
        return False
    return (
        not function
        or re.search(rf"^\s*(async )?def {re.escape(function)}\b", (ROOT / file).read_text(), re.MULTILINE)
        is not None
    )


def test_files_that_a_page_has_saved_are_used_in_it() -> None:
    unused = []
    for page in pages():
        text = page.read_text()
        for block in blocks_of(page):
            if block.title is not None and text.count(Path(block.title).name) < 2:
                unused.append(f"{block.where}: {block.title}")
    assert not unused
