"""The benchmark of the relay still runs, and measures what it says."""

import json
from pathlib import Path

import pytest

from benchmarks import relay, relay_crowd, relay_traffic

SMALL = relay_traffic.Traffic(round_trips=20, output_mib=4, file_mib=1, blocks_mib=5, connects=1)
FEW = relay_crowd.Crowd(executors=5, streams=20, connections=4)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_traffic, "QUICK", SMALL)
    monkeypatch.setattr(relay_crowd, "QUICK", FEW)
    monkeypatch.setattr(relay_crowd, "SETTLE_SECONDS", 0.1)


@pytest.mark.usefixtures("small")
def test_every_row_is_measured_in_a_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, values = tmp_path / "page.md", tmp_path / "values.json"
    page.write_text(f"before\n{relay.BEGIN}\nold\n{relay.END}\nafter\n")

    status = relay.main(["--quick", "--rounds", "1", "--json", str(values), "--markdown", str(page)])

    assert status == 0
    rows = {row["row"]["name"]: row for row in json.loads(values.read_text())["rows"]}
    assert rows.keys() == {row.name for row in (*relay_traffic.ROWS, *relay_crowd.ROWS)}
    assert all(len(row["relayed"]) == 1 for row in rows.values())
    assert {name for name, row in rows.items() if not row["direct"]} == {
        "relay_cpu",
        *(row.name for row in relay_crowd.ROWS if row.name != "connects_rate"),
    }
    assert all(row["relayed"][0] > 0 for name, row in rows.items() if row["row"]["better"] == "higher")
    text = page.read_text()
    assert text.startswith(f"before\n{relay.BEGIN}\n")
    assert text.endswith(f"{relay.END}\nafter\n")
    printed = capsys.readouterr().out
    assert all(row["row"]["title"] in text and row["row"]["title"] in printed for row in rows.values())


def test_added_time_is_judged_within_rounds() -> None:
    row = next(row for row in relay_traffic.ROWS if row.name == "rtt_p50")

    # The medians of each way, 140 and 330, are 190 apart; in most rounds it was 260.
    slow = relay.Result("traffic", row, direct=[70, 140, 70, 140, 140], relayed=[330, 400, 330, 230, 230])
    quick = relay.Result("traffic", row, direct=[100, 100, 100], relayed=[300, 350, 900])

    assert (slow.verdict, quick.verdict) == ("MISS", "ok")
    assert quick.ratio == pytest.approx(100 / 350)


def test_a_page_without_markers_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("mine")

    with pytest.raises(SystemExit):
        relay.main(["--quick", "--markdown", str(page)])

    assert page.read_text() == "mine"
    assert "has no lines" in capsys.readouterr().err
