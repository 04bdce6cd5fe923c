"""The picture of the README, which `make demo` records, shows what a run shows."""

from __future__ import annotations

import re
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tools.demo import CLIENT, COUNT, DAEMON, KILL, RUN, SERVE, STATUS, WIDTH, Stage, play

PICTURE = ROOT / "docs" / "assets" / "demo.svg"
MAX_BYTES = 200_000
"""What a page may load for a picture."""

ROW = 2.171
"""The height of a row, in columns, as svg-term draws it."""

COUNTED = [f"line {number}" for number in range(1, COUNT + 1)]
KILLED = "execserver: the server was killed by signal 9 (Killed); starting it again"

_NS = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"


def words(element: ET.Element) -> str:
    return " ".join(each.text or "" for each in element.iter(f"{_NS}text"))


@pytest.fixture(scope="module")
def frames() -> list[list[str]]:
    """The lines of each frame of the picture, in order."""
    root = ET.parse(PICTURE).getroot()
    known = {each.get("id"): words(each) for each in root.iter(f"{_NS}symbol")}
    found = []
    for frame in (each for each in root.iter(f"{_NS}svg") if each.get("x", "0") != "0" and not each.get("y")):
        rows: dict[int, list[str]] = {}
        for part in frame:
            row = int(float(part.get("y", "0")) / ROW + 0.01)
            text = known.get(part.get(_HREF, "").removeprefix("#")) if part.tag == f"{_NS}use" else part.text
            rows.setdefault(row, []).append(text or "")
        found.append([" ".join(filter(None, rows[row])) for row in sorted(rows)])
    return found


def test_the_picture_is_small_and_as_wide_as_a_terminal() -> None:
    text = PICTURE.read_text()
    assert len(text) < MAX_BYTES
    assert f'viewBox="0 0 {WIDTH} ' in text


def test_the_last_frame_has_every_line_in_order(frames: list[list[str]]) -> None:
    last = frames[-1]
    start = last.index(COUNTED[0])
    assert last[start : start + COUNT] == COUNTED
    assert last[start + COUNT :][:2] == [f"$ {STATUS}", "exit code 0"]
    assert {f"$ {SERVE}", f"$ {RUN}", f"$ {' '.join(KILL.split())}", KILLED} <= set(last)


def test_the_server_is_killed_in_the_middle(frames: list[list[str]]) -> None:
    killed = next(frame for frame in frames if KILLED in frame)
    shown = sum(line in killed for line in COUNTED)
    assert 0 < shown < COUNT


def test_no_frame_has_a_hole(frames: list[list[str]]) -> None:
    assert len(frames) > 50
    for frame in frames:
        shown = [line for line in frame if line in COUNTED]
        assert shown == COUNTED[: len(shown)]


def test_the_readme_shows_the_picture_and_describes_it() -> None:
    found = re.search(r"!\[([^\]]+)\]\(docs/assets/demo\.svg\)", (ROOT / "README.md").read_text())
    assert found
    assert {"signal 9", "line 12", "without a gap", "exit code"} <= set(
        re.findall("signal 9|line 12|without a gap|exit code", " ".join(found[1].split()))
    )


@pytest.mark.manual
def test_the_session_goes_again_as_the_picture_shows(frames: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        stage = Stage(Path(name), ROOT / ".venv" / "bin", pace=0)
        stage.open()
        try:
            play(stage)
            lines = [*stage.lines(CLIENT), *stage.lines(DAEMON)]
        finally:
            stage.close()
    border = re.compile(r"─+ \w+ \w+ ─+")
    shown = [line for line in frames[-1] if not border.fullmatch(line)]
    assert [comparable(line) for line in lines if line] == [comparable(line) for line in shown]


def comparable(line: str) -> str:
    """Without what differs from run to run."""
    return " ".join(re.sub(r"/tmp/demo-\w+|(?<=\[1\] )\d+", "…", line).split())
