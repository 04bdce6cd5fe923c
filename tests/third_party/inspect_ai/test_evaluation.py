"""Evaluations by Inspect itself: its agent loop, its tools and its commands, with a scripted model."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, EvalSample
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import bash, python
from inspect_ai.util import SandboxEnvironmentSpec, sandbox

from execclient.integrations.inspect_ai import ExecServerSandboxConfig, ExecServerSandboxEnvironment
from execclient.session import recovery
from tests.third_party.inspect_ai.samples import Call, evaluation, left_at, sample

SAMPLES = 4

pytestmark = [
    # Of Inspect and its libraries, which the settings of these tests would make errors.
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
    # On a loaded machine a server that is killed every 2 s has little time left for its clients.
    pytest.mark.timeout(240),
]


@scorer(metrics=[accuracy()])
def written() -> Scorer:
    """Whether the file of the sample has what its target says."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=await sandbox().read_file("answer.txt") == target.text)

    return score


def evaluated(
    config: ExecServerSandboxConfig, calls: list[Call], folder: Path, count: int = SAMPLES
) -> EvalLog:
    """The log of an evaluation of several samples at once, in which the model makes these calls."""
    dataset = [
        Sample(
            input="go",
            target=f"{number}\n" * 2,
            files={"input/number.txt": f"{number}\n"},
            setup="cat input/number.txt > copied.txt",
        )
        for number in range(count)
    ]
    task = Task(
        dataset=dataset,
        solver=[use_tools(bash(timeout=20), python(timeout=20)), generate()],
        scorer=written(),
        sandbox=SandboxEnvironmentSpec("execserver", config),
    )
    return evaluation(task, calls, folder)


def answers(found: EvalSample) -> list[str]:
    """What the tools answered."""
    return [message.text for message in found.messages if message.role == "tool"]


def test_samples_run_at_the_same_time_each_with_its_own_files(
    config: ExecServerSandboxConfig, tmp_path: Path
) -> None:
    calls: list[Call] = [
        ("bash", {"command": "pwd; cat copied.txt > answer.txt; sleep 0.3"}),
        (
            "python",
            {"code": "number = open('input/number.txt').read(); open('answer.txt', 'a').write(number)"},
        ),
        ("bash", {"command": "wc -l < answer.txt; ls"}),
    ]
    log = evaluated(config, calls, tmp_path)

    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1
    assert log.samples is not None
    assert len({answers(each)[0] for each in log.samples}) == SAMPLES
    assert {answers(each)[2] for each in log.samples} == {"2\nanswer.txt\ncopied.txt\ninput\n"}
    assert config.url is not None
    assert asyncio.run(left_at(config.url)) == ([], [])


def test_a_model_learns_why_a_call_failed(config: ExecServerSandboxConfig, tmp_path: Path) -> None:
    calls: list[Call] = [
        ("bash", {"command": "echo 0 > answer.txt; echo x > /var/tmp/outside"}),
        ("bash", {"command": "echo 0 >> answer.txt; seq 3000000"}),
    ]
    task_log = evaluated(config, calls, tmp_path, count=1)

    assert task_log.status == "success", task_log.error
    assert task_log.samples is not None
    denied, too_long = [each for each in task_log.samples[0].messages if each.role == "tool"]
    assert "Read-only file system" in denied.text
    assert too_long.error is not None
    assert (too_long.error.type, too_long.error.message) == (
        "limit",
        "The tool exceeded its output limit of 10 MiB.",
    )


@pytest.mark.parametrize("fail", [1, SAMPLES], ids=["one", "all"])
def test_a_sample_that_fails_ends_the_others_and_leaves_nothing(
    config: ExecServerSandboxConfig, tmp_path: Path, fail: int
) -> None:
    @solver
    def failing() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            await sandbox().exec(["touch", "begun"])
            if int(state.sample_id) <= fail:
                raise RuntimeError("this one fails")
            await sandbox().exec(["sleep", "1000"])
            return state

        return solve

    dataset = [Sample(input="go") for _ in range(SAMPLES)]
    task = Task(dataset=dataset, solver=failing(), sandbox=SandboxEnvironmentSpec("execserver", config))
    log = evaluation(task, [], tmp_path)

    assert log.status == "error"
    assert log.error is not None
    assert "this one fails" in log.error.message
    assert config.url is not None
    assert asyncio.run(left_at(config.url)) == ([], [])


TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox

@solver
def working() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().exec(["sh", "-c", "pwd > here.txt"])
        return state
    return solve

@task
def kept() -> Task:
    return Task(dataset=[Sample(input="go")], solver=working(), sandbox="execserver")
"""


def inspect(url: str, folder: Path, *arguments: str) -> str:
    """Run the command `inspect` against a daemon; what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "inspect_ai", *arguments],
        env={**os.environ, "EXECSERVER_URL": url},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_a_sandbox_is_kept_on_request_until_it_is_cleaned_up(url: str, tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(TASK)
    arguments = ["eval", "kept.py", "--model", "mockllm/model", "--no-sandbox-cleanup"]
    printed = await asyncio.to_thread(inspect, url, tmp_path, *arguments)
    command, cleanup = [line.strip() for line in printed.splitlines() if line.startswith("  ")][-2:]
    (name,) = (await left_at(url))[0]
    assert cleanup == f"inspect sandbox cleanup execserver {name}"
    opened = shlex.split(command.replace("--tty", "").replace("bash --login", "cat here.txt"))
    opened[0] = f"{Path(sys.executable).parent}/execserver"
    shown = await asyncio.to_thread(
        subprocess.run, opened, capture_output=True, text=True, timeout=30, check=True
    )
    assert shown.stdout.endswith(f"/{name}/work\n")

    printed = await asyncio.to_thread(inspect, url, tmp_path, "sandbox", "cleanup", "execserver")
    assert f"{name} is removed" in printed
    assert await left_at(url) == ([], [])


async def test_a_sample_that_runs_is_not_cleaned_up(
    url: str,
    config: ExecServerSandboxConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EXECSERVER_URL", url)
    monkeypatch.setattr(recovery, "ATTACHED_SECONDS", 0.5)
    async with sample(config) as running:
        name = running.executor.session_id
        command = asyncio.ensure_future(running.exec(["sh", "-c", "sleep 2; pwd"]))
        await ExecServerSandboxEnvironment.cli_cleanup(None)
        assert re.search(f"{name} (is|was) in use .*, and stays", capsys.readouterr().out)
        assert (await command).stdout == f"{running.directory}\n"


async def test_what_a_killed_evaluation_left_running_is_cleaned_up(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ExecServerSandboxConfig(url=url, sandbox=None, ttl=600)
    program = f"""
import asyncio, os, signal
from execclient.integrations.inspect_ai import *
async def main():
    config = ExecServerSandboxConfig.model_validate_json({config.model_dump_json()!r})
    found = await ExecServerSandboxEnvironment.sample_init("x", config, {{}})
    await found["default"].exec(["sh", "-c", "sleep 1000 >/dev/null 2>&1 &"])
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], check=False, timeout=50)
    assert done.returncode < 0
    (name,) = (await left_at(url))[0]
    monkeypatch.setenv("EXECSERVER_URL", url)

    await ExecServerSandboxEnvironment.cli_cleanup("another")
    assert "There is no sandbox another" in capsys.readouterr().out
    assert (await left_at(url))[0] == [name]
    await ExecServerSandboxEnvironment.cli_cleanup(None)
    assert f"cleanup execserver {name}" in capsys.readouterr().out
    await ExecServerSandboxEnvironment.cli_cleanup(name)
    assert await left_at(url) == ([], [])
