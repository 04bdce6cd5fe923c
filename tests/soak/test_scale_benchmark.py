"""The measurement of what a fleet costs still runs, and measures what it says."""

import json
from pathlib import Path

import pytest

from benchmarks import relay_scale

SMALL = relay_scale.Scale(executors=3, streams=4, reports=4, small_frames=320, large_frames=32)


def test_every_cost_is_measured_in_a_quick_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(relay_scale, "QUICK", SMALL)
    monkeypatch.setattr(relay_scale, "SETTLE_SECONDS", 0.1)
    page, values = tmp_path / "page.md", tmp_path / "values.json"
    page.write_text(f"before\n{relay_scale.BEGIN}\nold\n{relay_scale.END}\nafter\n")

    assert relay_scale.main(["--quick", "--json", str(values), "--markdown", str(page)]) == 0

    executor, record, client, report, *frames = json.loads(values.read_text())["rows"]
    assert len(frames) == 2
    for row in (executor, client, report, *frames):
        assert len(row["milliseconds"]) == 3
        assert row["rate"] > 0
    assert len(executor["kibibytes"]) == len(client["kibibytes"]) == 3
    assert 1 < record["kibibytes"][2] < 4  # a public key of 1.2 KiB, in base64
    text, printed = page.read_text(), capsys.readouterr().out
    assert text.startswith(f"before\n{relay_scale.BEGIN}\n")
    assert text.endswith(f"{relay_scale.END}\nafter\n")
    assert all(row["title"] in text and row["title"] in printed for row in (executor, record, client, report))
