"""Tools for which Inspect installs a program at the daemon, and starts a server of its own."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, EvalSample
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import bash_session, text_editor
from inspect_ai.util import ExecCompleted, ExecStdout, SandboxEnvironmentSpec, sandbox
from inspect_ai.util._sandbox._cli import SANDBOX_TOOLS_DIR

from execclient import WorkspaceWrite
from execclient.integrations.inspect_ai import ExecServerSandboxConfig
from tests.third_party.inspect_ai.samples import Call, evaluation, left_at

pytestmark = [
    # Of Inspect and its libraries, which the settings of these tests would make errors.
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
    # On a loaded machine a server that is killed every 2 s has little time left for its clients.
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    """The program that Inspect leaves in a folder of the machine, unless it was there before."""
    before = Path(SANDBOX_TOOLS_DIR).exists()
    yield
    if not before:
        shutil.rmtree(SANDBOX_TOOLS_DIR, ignore_errors=True)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A path that does not exist, where the sandbox does not let a command write."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        yield Path(folder, "outside")


def evaluated(
    policy: WorkspaceWrite,
    url: str,
    solving: list[Solver],
    folder: Path,
    count: int,
    calls: Sequence[Call] = (),
) -> EvalLog:
    """The log of an evaluation of several samples at once."""
    config = ExecServerSandboxConfig(url=url, sandbox=policy)
    task = Task(
        dataset=[Sample(input="go", files={"note.txt": f"{number}\n"}) for number in range(count)],
        solver=solving,
        sandbox=SandboxEnvironmentSpec("execserver", config),
    )
    log = evaluation(task, calls, folder)
    assert log.status == "success", log.error
    assert asyncio.run(left_at(url)) == ([], [])
    return log


def answers(found: EvalSample) -> list[str]:
    """What the tools answered."""
    return [
        message.text if message.error is None else message.error.message
        for message in found.messages
        if message.role == "tool"
    ]


def test_the_text_editor_works_within_the_sandbox(url: str, tmp_path: Path, outside: Path) -> None:
    calls: list[Call] = [
        (
            "text_editor",
            {"command": "insert", "path": "note.txt", "insert_line": 0, "insert_text": "first"},
        ),
        ("text_editor", {"command": "view", "path": "note.txt"}),
        ("text_editor", {"command": "create", "path": str(outside), "file_text": "x"}),
    ]
    policy = WorkspaceWrite(writable_roots=("/var/tmp",))
    for count in (1, 4):  # the first sample installs the program
        log = evaluated(policy, url, [use_tools(text_editor()), generate()], tmp_path, count, calls)
        assert log.samples is not None
        for number, each in enumerate(sorted(log.samples, key=lambda sample: int(sample.id))):
            _, viewed, denied = answers(each)
            assert f"1\tfirst\n     2\t{number}\n" in viewed
            assert "Read-only file system" in denied
    assert not outside.exists()


def test_remote_processes_and_shells_run_within_the_sandbox(url: str, tmp_path: Path, outside: Path) -> None:
    seen: list[str] = []

    @solver
    def remote() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            script = f"cat note.txt; sleep 0.2; touch {outside} || echo denied"
            process = await sandbox().exec_remote(["sh", "-c", script])
            output = ""
            async for event in process:
                if isinstance(event, ExecStdout):
                    output += event.data
                elif isinstance(event, ExecCompleted):
                    assert event.success
            seen.append(output)
            return state

        return solve

    policy = WorkspaceWrite(writable_roots=("/var/tmp",), network=True)
    calls: list[Call] = [
        ("bash_session", {"action": "type_submit", "input": "read number < note.txt"}),
        ("bash_session", {"action": "type_submit", "input": f"touch {outside}; echo is:$number"}),
    ]
    log = evaluated(
        policy, url, [remote(), use_tools(bash_session(wait_for_output=3)), generate()], tmp_path, 2, calls
    )
    assert log.samples is not None
    for number, each in enumerate(sorted(log.samples, key=lambda sample: int(sample.id))):
        _, shown = answers(each)
        assert "Read-only file system" in shown
        assert f"is:{number}" in shown
    assert sorted(seen) == ["0\ndenied\n", "1\ndenied\n"]
    assert not outside.exists()
