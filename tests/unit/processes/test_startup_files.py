"""A confined command may write the profile that the daemon searches for names of files."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from execserver.processes.login_state import UnfitError
from execserver.processes.login_state.startup_files import StartupFiles


def files_of(profile: Path, **variables: str) -> StartupFiles:
    return StartupFiles([str(profile)], {"HOME": str(profile.parent), **variables}, "/")


def test_a_file_that_a_pattern_of_a_sourced_folder_matches_counts(tmp_path: Path) -> None:
    (tmp_path / "tools" / "one").mkdir(parents=True)
    sourced = tmp_path / "tools" / "one" / "start.sh"
    sourced.write_text("x=1\n")
    (tmp_path / ".profile").write_text("for each in ~/tools/*/st?rt.sh; do . $each; done\n")
    files = files_of(tmp_path / ".profile")
    assert files.unchanged()
    sourced.write_text("x=2, which is longer\n")
    assert not files.unchanged()


def test_a_pattern_for_the_whole_disk_is_given_up(tmp_path: Path) -> None:
    (tmp_path / ".profile").write_text(". /*/*/*/*/*/none\n")
    with pytest.raises(UnfitError, match="patterns"):
        files_of(tmp_path / ".profile")


@pytest.mark.parametrize("text", ["/" + "$X" * 2000, "/$X$X$X"])
def test_variables_in_a_path_do_not_take_the_memory(tmp_path: Path, text: str) -> None:
    (tmp_path / ".profile").write_text(f". {text}\n")
    value = "a" * (20_000_000 // text.count("$"))
    tracemalloc.start()
    try:
        assert files_of(tmp_path / ".profile", X=value).unchanged()
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
