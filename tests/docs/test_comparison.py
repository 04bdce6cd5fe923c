"""Each cell of the comparison has a source or a test, and what can be tried here is tried."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "comparison.md"
TOOLS = ["docker exec", "ssh", "tmux", "Codex exec-server", "E2B", "SWE-ReX", "execserver"]

_TABLE = re.compile(r"^## (.+)\n\n\| \| \| source \|\n\| --- \| --- \| --- \|\n((?:\|.*\|\n)+)", re.MULTILINE)


class Line(NamedTuple):
    """What the page says of a tool."""

    question: str
    tool: str
    answer: str
    source: str

    @property
    def files(self) -> list[str]:
        """Tests and pages of the repository that are the source."""
        return re.findall(r"`((?:docs|tests)/[^`]+)`", self.source)


def lines() -> list[Line]:
    return [
        Line(
            question,
            *(cell.strip(" `*") if column == 0 else cell.strip() for column, cell in enumerate(cells)),
        )
        for question, rows in _TABLE.findall(PAGE.read_text())
        for cells in (row.strip("|").split("|") for row in rows.splitlines())
    ]


def test_each_question_is_answered_for_each_tool() -> None:
    questions = list(dict.fromkeys(line.question for line in lines()))
    assert len(questions) == 11  # as the README says
    assert [(line.question, line.tool) for line in lines()] == [
        (question, tool) for question in questions for tool in TOOLS
    ]


def test_each_answer_has_a_source_or_a_test() -> None:
    assert not [
        line
        for line in lines()
        if not ("](https://" in line.source or "measured" in line.source or line.files)
        and line.answer != "not measured"
    ]
    assert not [name for line in lines() for name in line.files if not (ROOT / name).is_file()]


def test_our_own_answers_name_a_test_or_a_page() -> None:
    assert not [line for line in lines() if line.tool == "execserver" and not line.files]


def test_the_readme_compares_with_the_same_tools_on_the_same_day() -> None:
    readme = (ROOT / "README.md").read_text()
    section = readme.partition("## Compared with")[2].partition("\n## ")[0]
    dates = re.findall(r"[Aa]s of (\d{4}-\d\d-\d\d)", section + PAGE.read_text())
    names = [line.split("|")[1].strip(" `*") for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(dates) == 2
    assert len(set(dates)) == 1
    assert [name.replace("Codex's", "Codex") for name in names] == TOOLS


@pytest.mark.manual
@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux: make terminal-tools")
def test_a_killed_tmux_server_takes_its_commands_along_and_not_what_left_the_session(tmp_path: Path) -> None:
    tmux = ("tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null")
    script = f"setsid sleep 600 & echo $! >{tmp_path}/away; echo $$ >{tmp_path}/inside; sleep 600"
    subprocess.run([*tmux, "new-session", "-d", script], check=True)
    wait_for(lambda: (tmp_path / "inside").exists() and (tmp_path / "inside").read_text() != "")
    inside, away = (int((tmp_path / name).read_text()) for name in ("inside", "away"))
    server = int(subprocess.check_output([*tmux, "display-message", "-p", "#{pid}"]))
    try:
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: not runs(inside))
        assert runs(away)
    finally:
        os.kill(away, signal.SIGKILL)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
