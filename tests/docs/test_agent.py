"""The agent of the tutorial asks before it acts, and does what it was told and nothing else."""

from __future__ import annotations

import os
import pty
import pwd
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.commands import commands_of, matches
from tests.docs.pages import ROOT, blocks_of
from tests.support.toolsets import shell_for

AGENT = ROOT / "examples" / "agent.py"
PAGE = ROOT / "docs" / "tutorial" / "governed-agent.md"

SHELL = shell_for(pwd.getpwuid(os.getuid()).pw_shell)
PATIENCE = 30.0
PROMPT = "\n> "


@dataclass(frozen=True, slots=True)
class Session:
    """What the program printed, by call."""

    text: str

    def of_call(self, command: str) -> list[str]:
        """The paragraphs of all calls of a command, questions included."""
        paragraphs = re.split(r"\n(?=(?:exec_command|write_stdin): |The model: |You ended)", self.text)
        return [each for each in paragraphs if each.partition("\n")[0].endswith(f"'{command}'")]

    @property
    def left(self) -> dict[str, set[str]]:
        """What is in the folders at the end."""
        return {
            folder: set(names.split())
            for folder, names in re.findall(r"^(project|shared):(.*)$", self.text, re.M)
        }


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A fresh login: the profile of the user who runs the tests would print into the outputs."""
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return {"HOME": str(tmp_path), "PATH": path, "LANG": "C.UTF-8", "PYTHONWARNINGS": "error"}


def played(environment: dict[str, str], typed: str, *arguments: str) -> Session:
    done = subprocess.run(
        [sys.executable, str(AGENT), *arguments],
        input=typed,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return Session(done.stdout)


def played_at_a_terminal(environment: dict[str, str], answers: list[str]) -> str:
    """The same with a person, who answers each question after having seen it."""
    ours, theirs = pty.openpty()
    try:
        agent = subprocess.Popen(
            [sys.executable, str(AGENT)], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        seen, answered, waiting = "", 0, list(answers)
        deadline = time.monotonic() + PATIENCE
        while piece := read_from(ours, deadline):
            seen += piece.replace("\r\n", "\n")
            if waiting and seen.endswith(PROMPT) and len(seen) > answered:
                answered = len(seen)
                os.write(ours, f"{waiting.pop(0)}\n".encode())
        assert agent.wait(PATIENCE) == 0
        assert not waiting
        return seen
    finally:
        agent.kill()
        agent.wait()
        os.close(ours)


def read_from(terminal: int, deadline: float) -> str:
    ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
    assert ready, "the program prints nothing and does not end"
    try:
        return os.read(terminal, 1 << 16).decode()
    except OSError:  # the other end is closed
        return ""


def test_a_person_at_a_terminal_sees_the_session_of_the_tutorial(environment: dict[str, str]) -> None:
    (shown,) = (block for block in blocks_of(PAGE) if block.place is not None)
    (command,) = commands_of(shown.text.replace("/bin/bash", SHELL))
    answers = [line.removeprefix("> ") for line in command.expected if line.startswith("> ")]

    session = played_at_a_terminal(environment, answers)

    assert answers == ["y", "n not now"]
    assert matches("\n".join(command.expected), session), session


def test_what_was_refused_does_not_happen_and_the_end_of_the_input_ends_the_turn(
    environment: dict[str, str],
) -> None:
    session = played(environment, "n\n")

    (removal,) = session.of_call("rm -rf build")
    assert f"\n  | $ {SHELL} -lc 'rm -rf build'\n" in removal
    assert removal.endswith("refuse (heuristic, then user): rejected by user\n  -> rejected\n")
    denied, asked = session.of_call("cp notes.txt ../shared/")
    assert denied.endswith("Read-only file system\n  -> denied\n")
    assert "\n  permits: run without a sandbox, " in asked
    assert "\nYou ended the turn.\n" in session.text
    assert session.left == {"project": {"build", "config", "configure", "notes.txt"}, "shared": set()}


def test_what_was_approved_happens_and_a_rule_is_not_asked_about(environment: dict[str, str]) -> None:
    session = played(environment, "", "--yes")

    (removal,) = session.of_call("rm -rf build")
    assert "run (heuristic, then user): in the sandbox\n  -> exit code 0" in removal
    (push,) = session.of_call("git push")
    assert "refuse (prefix_rule): " in push
    assert "user" not in push
    assert session.of_call("cp notes.txt ../shared/")[1].endswith("WITHOUT THE SANDBOX\n  -> exit code 0\n")
    assert session.left == {"project": {"config", "configure", "notes.txt"}, "shared": {"notes.txt"}}
