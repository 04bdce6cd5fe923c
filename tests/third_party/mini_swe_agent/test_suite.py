"""What environments of mini-swe-agent do, shown with its own local environment and with ours.

The project's tests of environments are neither in its wheel nor in its sdist, which has `test_init.py` and
`test_fire.py` (paid models) only. So these are tests of the contract that its own environments show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from minisweagent import Environment
from minisweagent.environments import get_environment, get_environment_class
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import Submitted

from execclient.integrations.mini_swe_agent import ExecServerEnvironment
from tests.support.background import IN_BACKGROUND, Left

OURS = "execclient.integrations.mini_swe_agent.ExecServerEnvironment"
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

Make = Callable[..., Environment]


@pytest.fixture(params=["local", OURS], ids=["local", "execserver"])
def make(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[Make]:
    """Makes environments as their settings in YAML do."""
    made: list[Environment] = []

    def make(**settings: Any) -> Environment:
        given = {"cwd": str(tmp_path), **settings, "environment_class": request.param}
        made.append(get_environment({**given, "url": url} if request.param == OURS else given))
        return made[-1]

    yield make
    for each in made:
        if isinstance(each, ExecServerEnvironment):
            each.cleanup()


def run(environment: Environment, command: str, **members: Any) -> dict[str, Any]:
    return environment.execute({"command": command, **members})


def test_the_environment_is_found_by_its_path() -> None:
    assert get_environment_class(OURS) is ExecServerEnvironment
    assert get_environment_class("local") is LocalEnvironment


def test_a_command_gives_its_output_and_its_exit_code(make: Make) -> None:
    assert run(make(), "echo one") == {"output": "one\n", "returncode": 0, "exception_info": ""}


@pytest.mark.parametrize("code", [1, 42, 255])
def test_a_failing_command_is_a_result(make: Make, code: int) -> None:
    assert run(make(), f"echo before; exit {code}") == {
        "output": "before\n",
        "returncode": code,
        "exception_info": "",
    }


def test_a_missing_program_is_exit_code_127_with_its_name(make: Make) -> None:
    result = run(make(), "no-such-program-4343")
    assert result["returncode"] == 127
    assert "no-such-program-4343" in result["output"]


def test_both_streams_are_in_the_output_in_order(make: Make) -> None:
    result = run(make(), "for n in 1 2 3; do echo out $n; echo err $n >&2; done")
    assert result["output"] == "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n"


def test_output_is_whole_however_long(make: Make) -> None:
    assert run(make(), "seq 300000")["output"] == "".join(f"{number}\n" for number in range(1, 300001))


def test_bytes_that_are_no_text_become_replacement_characters(make: Make) -> None:
    assert run(make(), r"printf 'a\377b'")["output"] == "a\ufffdb"


def test_variables_of_the_settings_override_those_of_the_machine(make: Make) -> None:
    environment = make(env={"HOME": "/there", "ANSWER": "6 * 7"})
    assert run(environment, 'echo "$HOME $ANSWER $PATH"')["output"].startswith("/there 6 * 7 /")


def test_commands_run_in_the_folder_of_the_settings(make: Make, tmp_path: Path) -> None:
    assert run(make(), "pwd; echo new > file")["output"] == f"{tmp_path}\n"
    assert (tmp_path / "file").read_text() == "new\n"


def test_a_call_can_name_another_folder(make: Make, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    result = make().execute({"command": "pwd; echo new > file"}, str(tmp_path / "other"))
    assert result["output"] == f"{tmp_path}/other\n"
    assert (tmp_path / "other/file").exists()


def test_each_command_has_a_shell_of_its_own(make: Make) -> None:
    environment = make()
    run(environment, "cd /; export LEFT=1; left() { :; }")
    assert run(environment, 'pwd; echo "[$LEFT]"; left')["returncode"] == 127


def test_a_script_of_many_lines_runs_as_it_is(make: Make) -> None:
    script = "cat <<'END' | tr a-z A-Z\nit's \"$HOME\"\nEND\nfor word in $(echo x y); do echo $word; done"
    assert run(make(), script)["output"] == 'IT\'S "$HOME"\nx\ny\n'


def test_a_command_that_takes_too_long_gives_what_it_wrote_before(make: Make) -> None:
    left = Left()
    result = run(make(timeout=1), f"echo begun; {left.sleep} & {left.sleep}")

    assert (result["output"], result["returncode"]) == ("begun\n", -1)
    assert "timed out after 1 seconds" in result["exception_info"]
    assert result["extra"]["exception_type"] == "TimeoutExpired"
    left.wait_gone()


def test_an_action_without_a_command_does_nothing(make: Make) -> None:
    assert make().execute({}) == {"output": "", "returncode": 0, "exception_info": ""}


def test_a_folder_that_is_missing_is_told_in_the_result(make: Make) -> None:
    result = make().execute({"command": "true"}, "/no/such/folder")
    assert result["returncode"] == -1
    assert "/no/such/folder" in result["exception_info"]
    assert result["extra"]["exception"] in result["exception_info"]


def test_the_word_of_the_prompt_ends_the_task_with_the_rest_of_the_output(make: Make) -> None:
    with pytest.raises(Submitted) as raised:
        run(make(), f"echo; echo {SUBMIT}; echo the answer; echo is 42")
    message = raised.value.messages[0]
    assert (message["role"], message["content"]) == ("exit", "the answer\nis 42\n")
    assert message["extra"] == {"exit_status": "Submitted", "submission": "the answer\nis 42\n"}


@pytest.mark.parametrize("command", [f"echo {SUBMIT}; exit 1", f"echo first; echo {SUBMIT}"])
def test_the_word_elsewhere_does_not_end_the_task(make: Make, command: str) -> None:
    assert SUBMIT in run(make(), command)["output"]


def test_templates_get_the_settings_and_the_machine(make: Make) -> None:
    variables = make(timeout=7, env={"A": "b"}).get_template_vars(task="x", timeout=8)
    assert (variables["timeout"], variables["env"], variables["task"]) == (8, {"A": "b"}, "x")
    assert variables["system"] == run(make(), "uname -s")["output"].strip()
    assert {"system", "node", "release", "version", "machine", "processor"} <= variables.keys()


def test_a_trajectory_gets_the_settings(make: Make) -> None:
    environment = make(timeout=7)
    config = json.loads(json.dumps(environment.serialize()))["info"]["config"]
    assert config["environment"]["timeout"] == 7
    assert config["environment_type"].endswith(f".{type(environment).__name__}")


def test_a_background_process_does_not_delay_the_result(make: Make) -> None:
    left = Left()
    try:
        assert run(make(), IN_BACKGROUND.format(sleep=left.sleep))["output"] == "left\n"
    finally:
        left.kill()
