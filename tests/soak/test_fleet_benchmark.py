"""The benchmark of several relays still runs, and measures what it says."""

import json
from pathlib import Path

import pytest

from benchmarks import relay_fleet, relay_paths, relay_traffic
from benchmarks.workloads.model import Row

SMALL = relay_traffic.Traffic(round_trips=20, output_mib=4, file_mib=1, blocks_mib=5, connects=1)


def test_every_row_is_measured_on_every_path_in_a_quick_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(relay_traffic, "QUICK", SMALL)
    page, values = tmp_path / "page.md", tmp_path / "values.json"
    page.write_text(f"before\n{relay_fleet.BEGIN}\nold\n{relay_fleet.END}\nafter\n")

    status = relay_fleet.main(["--quick", "--rounds", "1", "--json", str(values), "--markdown", str(page)])

    assert status == 0
    rows = {row["row"]["name"]: row for row in json.loads(values.read_text())["rows"]}
    assert rows.keys() == {row.name for row in relay_paths.ROWS}
    for name, row in rows.items():
        wanted = {"relayed", "fleet"} if name == "relay_cpu" else {"direct", "relayed", "fleet"}
        assert {side for side, found in row["values"].items() if len(found) == 1} == wanted, name
        if row["row"]["better"] == "higher":
            assert all(found[0] > 0 for found in row["values"].values()), name
    text, printed = page.read_text(), capsys.readouterr().out
    assert text.startswith(f"before\n{relay_fleet.BEGIN}\n")
    assert text.endswith(f"{relay_fleet.END}\nafter\n")
    assert all(row["row"]["title"] in text and row["row"]["title"] in printed for row in rows.values())


def test_ratios_and_added_times_are_those_within_rounds() -> None:
    time = relay_fleet.Result(Row("rtt", "a round trip", "µs"))
    time.values = {"direct": [70, 140, 70], "relayed": [270, 340, 270], "fleet": [570, 640, 570]}
    rate = relay_fleet.Result(Row("rate", "a rate", "MB/s", "higher"))
    rate.values = {"direct": [400, 200], "relayed": [200, 100], "fleet": [100, 50]}

    assert (time.added("relayed"), time.added("fleet")) == (200, 500)
    assert time.cells()[2:5] == ("70", "270 (+200)", "570 (+500)")
    assert (rate.ratio("relayed", "direct"), rate.ratio("fleet", "relayed")) == (0.5, 0.5)
    assert rate.cells()[2:5] == ("300", "150", "75")
