"""What `make release` refuses before it builds anything. `make release-tests` makes releases."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from execserver import __version__
from tools.release import ReleaseError, incompatible, release, section

CHANGELOG = f"""\
# Changelog

## Unreleased

### Added

- A new thing.

## {__version__} - 2026-11-27

### Fixed

- An old thing.

## 0.0.1 \N{EN DASH} 2025-01-01

- The first thing.

## 0.0.0 - 2024-12-31
"""


def test_a_section_ends_where_the_next_begins() -> None:
    assert section(CHANGELOG, "Unreleased") == "### Added\n\n- A new thing.\n"
    assert section(CHANGELOG, __version__) == "### Fixed\n\n- An old thing.\n"
    assert section(CHANGELOG, "0.0.1") == "- The first thing.\n"


@pytest.mark.parametrize(
    ("heading", "error"),
    [
        ("0.0.2", "no section for 0.0.2: rename"),
        ("0.0.0", "says nothing about 0.0.0"),
        ("0X0.1", "no section"),
    ],
)
def test_a_section_that_is_missing_or_empty_is_an_error(heading: str, error: str) -> None:
    with pytest.raises(ReleaseError, match=error):
        section(CHANGELOG, heading)


def test_the_changelog_of_the_project_has_notes_for_a_release_or_a_rehearsal() -> None:
    text = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    assert section(text, __version__ if f"\n## {__version__} " in text else "Unreleased")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    (folder / ".gitignore").write_text("dist/\n")
    for command in (
        ("init", "--quiet"),
        ("add", "--all"),
        (
            *("-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false"),
            *("commit", "--quiet", "--no-verify", "--message", "all"),
        ),
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("change", ["CHANGELOG.md", "new.py"])
def test_a_work_tree_with_changes_is_refused(change: str, repository: Path) -> None:
    with (repository / change).open("a") as file:
        file.write("# a line\n")

    with pytest.raises(ReleaseError, match=rf"(?s)commit first.*{change}"):
        release(
            repository, repository / "tools", repository / "node_modules", repository / "dist", __version__
        )

    assert not list((repository / "dist").iterdir())


def test_a_version_without_a_section_is_refused_and_what_was_released_stays(repository: Path) -> None:
    earlier = repository / "dist" / __version__ / "SHA256SUMS"
    earlier.parent.mkdir(parents=True)
    earlier.touch()

    with pytest.raises(ReleaseError, match="no section for 9"):
        release(repository, repository / "tools", repository / "node_modules", repository / "dist", "9.9.9")

    assert earlier.exists()
    assert [each.name for each in (repository / "dist").iterdir()] == [__version__]


def bill(*licences: dict[str, Any]) -> dict[str, Any]:
    return {"components": [{"name": "a", "licenses": list(licences)}, {"name": "picows"}]}


@pytest.mark.parametrize(
    ("licences", "compatible"),
    [
        ([{"license": {"id": "MIT"}}], True),
        ([{"expression": "Apache-2.0 AND (MIT)"}], True),
        ([{"expression": "GPL-3.0-only OR MIT"}], True),
        ([{"license": {"name": "License :: OSI Approved :: Apache Software License"}}], True),
        ([{"expression": "GPL-3.0-only AND MIT"}], False),
        ([{"license": {"id": "MIT"}}, {"license": {"id": "AGPL-3.0-or-later"}}], False),
        ([{"license": {"name": "as is"}}], False),
        ([], False),
    ],
)
def test_a_component_needs_a_compatible_licence(licences: list[dict[str, Any]], compatible: bool) -> None:
    assert (incompatible(bill(*licences)) == {}) == compatible
