"""The rows of `make bench` beside ripgrep and `ssh -L` still run, and measure what they say."""

from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.workloads import Workload, forwarding, searches, watches


@pytest.mark.parametrize(
    "workload",
    [searches.WORKLOADS[0], watches.WORKLOADS[0], forwarding.WORKLOADS[0]],
    ids=lambda each: each.name,
)
def test_every_row_is_measured_beside_its_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workload: Workload
) -> None:
    page = tmp_path / "page.md"
    arguments = [
        "--candidate-only",
        "--only",
        workload.name,
        "--rounds",
        "1",
        "--quick",
        "--markdown",
        str(page),
    ]

    assert compare.main(arguments) == 0

    printed, text = capsys.readouterr().out, page.read_text()
    assert "failed" not in printed
    for row in workload.rows:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {row.title} |")]
        assert line.split("|")[4].strip() != "-", line
