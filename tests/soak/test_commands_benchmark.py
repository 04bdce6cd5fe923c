"""The benchmark of command lines still runs, and measures what it says."""

from pathlib import Path

import pytest

from benchmarks import commands

FEW = commands.Sizes(local=6, remote=2)


def test_every_row_is_measured_in_a_quick_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "QUICK", FEW)
    monkeypatch.setattr(commands, "ROUND_TRIP_SECONDS", 0.002)
    for rounds in ("START_ROUNDS", "TREE_ROUNDS"):
        monkeypatch.setattr(commands, rounds, 0)  # once, which is otherwise the unmeasured round
    page = tmp_path / "page.md"
    page.write_text(f"before\n{commands.BEGIN}\nold\n{commands.END}\nafter\n")

    assert commands.main(["--quick", "--markdown", str(page)]) == 0

    text, printed = page.read_text(), capsys.readouterr().out
    assert text.startswith(f"before\n{commands.BEGIN}\n")
    assert text.endswith(f"{commands.END}\nafter\n")
    for title in ("execserver run -- true", "execserver ps", "execserver cp -r, 2 tiny files over a line"):
        assert title in printed
        assert f"| {title}" in text


def test_a_command_that_fails_or_does_nothing_is_no_measurement(tmp_path: Path) -> None:
    failing = commands.Row("start", "a row", ["false"])
    idle = commands.Row("trees", "a row", ["true"], check=(tmp_path / "copy").exists)
    for row in (failing, idle):
        with pytest.raises(RuntimeError, match="a row"):
            row.run({"PATH": "/usr/bin:/bin"})


def test_a_row_is_judged_by_its_median_and_compared_within_rounds() -> None:
    other = commands.Row("start", "y, here", [], milliseconds=[10, 20, 40])

    good = commands.Row("start", "x", [], 120, other, milliseconds=[90, 110, 400])
    bad = commands.Row("start", "x", [], 120, milliseconds=[90, 130, 140])

    assert good.cells()[2:] == ("90..400", "9 times y", "≤120", "ok")
    assert bad.cells()[2:] == ("90..140", "", "≤120", "MISS")
