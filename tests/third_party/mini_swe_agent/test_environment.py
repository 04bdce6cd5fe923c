"""What the environment adds, and the project's own agent and command in it."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.models import get_model
from minisweagent.models.test_models import make_output
from pydantic import ValidationError

from execclient import DaemonNotRunning, ExecutorClosed, ReadOnly
from execclient.integrations.mini_swe_agent import ExecServerEnvironment, ExecServerEnvironmentConfig
from tests.support.background import IN_BACKGROUND, Left
from tests.support.wire import PATIENCE

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
NETWORK = {"type": "workspace-write", "network_access": True}


@pytest.fixture
def project() -> Iterator[Path]:
    """A folder that is not below /tmp, to which each sandbox may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="mswea-") as folder:
        (Path(folder) / "work").mkdir()
        yield Path(folder) / "work"


@pytest.fixture
def environment(url: str, project: Path) -> Iterator[ExecServerEnvironment]:
    made = ExecServerEnvironment(url=url, cwd=str(project))
    yield made
    made.cleanup()


def client_threads() -> set[threading.Thread]:
    """The threads of connections, once those that end had time to."""
    deadline = time.monotonic() + PATIENCE
    while (there := {each for each in threading.enumerate() if each.name == "execclient"}) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.01)
    return there


def run(environment: ExecServerEnvironment, command: str) -> dict[str, Any]:
    return environment.execute({"command": command})


# -- the sandbox


def test_a_command_writes_to_its_folder_and_not_beside_it(
    environment: ExecServerEnvironment, project: Path
) -> None:
    assert run(environment, "echo inside > file && cat file")["output"] == "inside\n"
    assert "Read-only file system" in run(environment, "echo outside > ../file")["output"]
    elsewhere = environment.execute({"command": "echo outside > file"}, str(project.parent))
    assert "Read-only file system" in elsewhere["output"]
    assert not (project.parent / "file").exists()


def test_without_a_sandbox_a_command_writes_everywhere(url: str, project: Path) -> None:
    environment = ExecServerEnvironment(url=url, cwd=str(project), sandbox=None)
    assert run(environment, "echo outside > ../file")["returncode"] == 0
    assert (project.parent / "file").read_text() == "outside\n"
    environment.cleanup()


@pytest.mark.parametrize(
    "sandbox", ["read-only", {"type": "read-only"}, ReadOnly()], ids=["name", "table", "object"]
)
def test_a_policy_comes_as_its_name_as_a_table_or_as_an_object(url: str, project: Path, sandbox: Any) -> None:
    environment = ExecServerEnvironment(url=url, cwd=str(project), sandbox=sandbox)
    assert "Read-only file system" in run(environment, "touch file")["output"]
    assert environment.serialize()["info"]["config"]["environment"]["sandbox"]["type"] == "read-only"
    environment.cleanup()


@pytest.mark.parametrize(("sandbox", "reaches"), [("workspace-write", False), (NETWORK, True), (None, True)])
def test_the_network_is_off_unless_the_policy_allows_it(
    url: str, project: Path, sandbox: Any, reaches: bool
) -> None:
    environment = ExecServerEnvironment(url=url, cwd=str(project), sandbox=sandbox)
    with socket.create_server(("127.0.0.1", 0)) as server:
        connecting = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        assert (run(environment, connecting)["returncode"] == 0) is reaches
    environment.cleanup()


# -- settings that cannot work


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sandbox": "readonly"}, "'readonly' is none of read-only, workspace-write"),
        ({"sandbox": {"type": "read-only", "network": True}}, "sandbox_policy.network is unknown"),
        ({"image": "python:3.11"}, "image\n  Extra inputs are not permitted"),
        ({"timeout": 0}, "timeout\n  Input should be greater than 0"),
        ({"interpreter": []}, "interpreter\n  List should have at least 1 item"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        ExecServerEnvironmentConfig(**settings)
    assert message in str(raised.value)


def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(DaemonNotRunning, match="execserver serve"):
        ExecServerEnvironment(url=f"unix://{tmp_path}/none")


@pytest.mark.parametrize(
    ("cwd", "error"), [("/no/such/folder", FileNotFoundError), ("/", ValueError)], ids=["missing", "root"]
)
def test_a_folder_that_cannot_be_a_workspace_is_an_error_at_once(
    url: str, cwd: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=cwd):
        ExecServerEnvironment(url=url, cwd=cwd)
    assert client_threads() == set()


# -- ends


def test_ctrl_c_kills_the_command_and_the_environment_stays(environment: ExecServerEnvironment) -> None:
    left = Left()

    def interrupt() -> None:
        left.wait_running()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(environment, left.sleep)
    thread.join()
    left.wait_gone()
    assert run(environment, "echo again") == {"output": "again\n", "returncode": 0, "exception_info": ""}


@pytest.mark.parametrize("way", ["cleanup", "garbage collection"])
def test_the_end_of_an_environment_kills_what_commands_left_and_leaves_no_thread(
    url: str, project: Path, way: str
) -> None:
    environment = ExecServerEnvironment(url=url, cwd=str(project), sandbox=None)
    left = Left()
    run(environment, IN_BACKGROUND.format(sleep=left.sleep))
    left.wait_running()

    if way == "cleanup":
        environment.cleanup()
        environment.cleanup()
        with pytest.raises(ExecutorClosed):
            run(environment, "true")
    else:
        del environment
        gc.collect()
    left.wait_gone()
    assert client_threads() == set()


def test_a_program_that_exits_without_cleaning_up_leaves_nothing(url: str, project: Path) -> None:
    left = Left()
    program = (
        "from execclient.integrations.mini_swe_agent import ExecServerEnvironment\n"
        f"environment = ExecServerEnvironment(url={url!r}, cwd={str(project)!r}, sandbox=None)\n"
        f"print(environment.execute({{'command': {IN_BACKGROUND.format(sleep=left.sleep)!r}}}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "left" in done.stdout
    left.wait_gone()


def test_environments_may_be_used_by_several_threads(environment: ExecServerEnvironment) -> None:
    outputs: dict[int, str] = {}

    def work(number: int) -> None:
        outputs[number] = run(environment, f"seq {number}00")["output"]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {n: "".join(f"{i}\n" for i in range(1, n * 100 + 1)) for n in range(1, 9)}


# -- the project's own agent and command

STEPS = [
    "echo 'def answer(): return 41' > answer.py",
    "sed -i 's/41/42/' answer.py && python3 -c 'import answer; print(answer.answer())'",
    "echo begun; sleep 60",
    f"{SUBMIT}; cat answer.py",
]


def messages(count: int) -> list[dict[str, Any]]:
    """What a model says: a step in each message, and between them `count` that append a number to a file."""
    counting = [f"echo {number} | tee -a counted" for number in range(count)]
    commands = [*STEPS[:2], *counting, *STEPS[2:]]
    return [make_output(f"step {number}", [{"command": each}]) for number, each in enumerate(commands)]


def test_the_agent_works_to_the_end_and_every_command_ran_once(url: str, project: Path) -> None:
    # Without a sandbox a command whose server is killed as it starts may run twice (H45).
    environment = ExecServerEnvironment(url=url, cwd=str(project), timeout=5, sandbox="workspace-write")
    agent = DefaultAgent(
        get_model("scripted", {"model_class": "deterministic", "outputs": messages(50)}),
        environment,
        system_template="You work on {{system}} {{machine}} in {{cwd}}.",
        instance_template="{{task}}",
        cost_limit=0,
    )
    result = agent.run("Find the answer.")
    environment.cleanup()

    assert result == {"exit_status": "Submitted", "submission": "def answer(): return 42\n"}
    said = [str(message["content"]) for message in agent.messages]
    assert said[0] == f"You work on Linux {os.uname().machine} in {project}."
    observed = [each for each in said if "<returncode>" in each]
    assert observed[1] == "<returncode>0</returncode>\n<output>\n42\n</output>"
    assert observed[2:-1] == [f"<returncode>0</returncode>\n<output>\n{n}\n</output>" for n in range(50)]
    assert "timed out after 5 seconds" in observed[-1]
    assert observed[-1].endswith("<returncode>-1</returncode>\n<output>\nbegun\n</output>")
    assert (project / "counted").read_text() == "".join(f"{number}\n" for number in range(50))


def test_the_command_line_takes_the_environment_from_yaml(url: str, project: Path, tmp_path: Path) -> None:
    settings = {
        "agent": {"system_template": "{{system}}", "instance_template": "{{task}}", "cost_limit": 0},
        "model": {"model_name": "scripted", "outputs": messages(3)},
        "environment": {
            "environment_class": "execclient.integrations.mini_swe_agent.ExecServerEnvironment",
            "cwd": str(project),
            "timeout": 5,
        },
    }
    # JSON is YAML.
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    (tmp_path / "home").mkdir()
    arguments = [
        "-c",
        "run.yaml",
        "-c",
        f"environment.url={url}",
        "-c",
        "environment.sandbox=workspace-write",
    ]
    arguments += ["--model-class", "deterministic"]
    arguments += ["-t", "Find the answer.", "-y", "--exit-immediately", "-o", "trajectory.json"]
    done = subprocess.run(
        [sys.executable, "-m", "minisweagent", *arguments],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path / "home"), "MSWEA_CONFIGURED": "true"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    info = json.loads((tmp_path / "trajectory.json").read_text())["info"]
    assert (info["exit_status"], info["submission"]) == ("Submitted", "def answer(): return 42\n")
    assert info["config"]["environment"]["sandbox"]["type"] == "workspace-write"
    assert info["config"]["environment_type"].endswith("mini_swe_agent.ExecServerEnvironment")
