"""Starts that are repeated: `ifExists`."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.sandbox.profiles import READ_ONLY, context
from tests.support.wire import PATIENCE, Client, Json, at_most


@pytest.fixture
def extended(endpoint: Endpoint) -> Client:
    """A connection that asked for extension members."""
    return endpoint.connect(extensions=True)


def noted(file: Path, count: int) -> list[str]:
    """What the processes wrote into a file: one line each, and not one too many a moment later."""
    deadline = time.monotonic() + 10
    while not file.exists() or len(file.read_text().splitlines()) < count:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    threading.Event().wait(0.1)
    return file.read_text().splitlines()


def writes_itself_down(client: Client, file: Path, **members: Json) -> dict[str, Json]:
    script = f"echo $$ >> {file}; read -r x"
    return client.start_params(["/bin/sh", "-c", script], pipeStdin=True, ifExists="attach", **members)


@pytest.mark.everywhere
@pytest.mark.statement("P20", "X9")
@pytest.mark.parametrize("tty", [False, True])
def test_a_start_that_is_repeated_finds_the_process(extended: Client, here: Path, tty: bool) -> None:
    params = writes_itself_down(extended, here / "pids", tty=tty)
    first = extended.call("process/start", params)
    assert "attached" not in first
    assert extended.call("process/start", params) == {**first, "attached": True}
    assert noted(here / "pids", 1) == [str(first["pid"])]


@pytest.mark.statement("P20", "X4")
def test_without_extensions_both_answers_are_the_same(client: Client, here: Path) -> None:
    params = writes_itself_down(client, here / "pids")
    first = client.call("process/start", params)
    assert client.call("process/start", params) == first
    assert len(noted(here / "pids", 1)) == 1


@pytest.mark.statement("P20", "X9", "X6")
def test_a_confined_start_is_repeated_like_any_other(extended: Client) -> None:
    params = extended.start_params(
        ["/bin/cat"], pipeStdin=True, ifExists="attach", sandbox=context(READ_ONLY)
    )
    first = extended.call("process/start", params)
    assert first["sandboxBackend"] == "bubblewrap"
    assert extended.call("process/start", params) == {**first, "attached": True}


@pytest.mark.statement("P20", "P35")
def test_a_process_that_has_ended_is_found_and_not_started_again(endpoint: Endpoint, here: Path) -> None:
    client = endpoint.private("--process-ttl", "4").connect(extensions=True)
    argv = ["/bin/sh", "-c", f"echo x >> {here}/lines; exit 3"]
    params = client.start_params(argv, ifExists="attach")
    first = client.call("process/start", params)
    process = client.process(params["processId"]).wait_closed()
    assert client.call("process/start", params) == {**first, "attached": True}
    assert process.read()["exitCode"] == 3
    assert process.log.kinds.count("exited") == 1
    with at_most(PATIENCE):
        while "attached" in client.call("process/start", params):
            threading.Event().wait(0.2)
    assert len(noted(here / "lines", 2)) == 2


@pytest.mark.statement("P20")
def test_the_events_of_a_process_come_once_after_it_was_found(extended: Client) -> None:
    params = extended.start_params(["/bin/cat"], pipeStdin=True, ifExists="attach")
    extended.call("process/start", params)
    process = extended.process(params["processId"])
    process.write("one", "1")
    process.wait_output(b"one")
    extended.call("process/start", params)
    process.write("two", "2")
    process.wait_output(b"two")
    assert process.output == b"onetwo"
    assert process.log.seqs == [1, 2]


@pytest.mark.statement("P20")
def test_another_session_finds_nothing(endpoint: Endpoint, here: Path) -> None:
    one, other = endpoint.connect(extensions=True), endpoint.connect(extensions=True)
    params = writes_itself_down(one, here / "pids", processId="shared name")
    pids = {str(client.call("process/start", params)["pid"]) for client in (one, other)}
    assert set(noted(here / "pids", 2)) == pids


@pytest.mark.statement("P20", "P4")
@pytest.mark.parametrize("members", [{}, {"ifExists": "fail"}])
def test_the_default_is_to_refuse(client: Client, members: Json) -> None:
    params = client.start_params(["/bin/cat"], pipeStdin=True)
    client.call("process/start", {**params, "ifExists": "attach"})
    failure = client.refused("process/start", {**params, **members})
    assert (failure.code, failure.message) == (-32600, f"process {params['processId']} already exists")


@pytest.mark.statement("P20")
def test_what_the_first_start_said_about_it_does_not_matter(extended: Client) -> None:
    params = extended.start_params(["/bin/cat"], pipeStdin=True)
    first = extended.call("process/start", params)
    spelled_out = {**params, "arg0": None, "sandbox": None, "timeoutMs": None, "ifExists": "attach"}
    assert extended.call("process/start", spelled_out) == {**first, "attached": True}


@pytest.mark.statement("P21")
@pytest.mark.parametrize("sandboxed", [False, True])
def test_of_many_equal_starts_at_once_one_starts(extended: Client, here: Path, sandboxed: bool) -> None:
    params = writes_itself_down(extended, here / "pids")
    if sandboxed:
        params = extended.start_params(
            ["/bin/cat"], pipeStdin=True, ifExists="attach", sandbox=context(READ_ONLY)
        )
    numbers = [extended.request("process/start", params) for _ in range(12)]
    results = [extended.result(number) for number in numbers]
    assert sum("attached" not in result for result in results) == 1
    assert len({result["pid"] for result in results}) == 1
    if not sandboxed:
        assert len(noted(here / "pids", 1)) == 1


@pytest.mark.statement("P21", "P8")
def test_when_the_first_fails_the_second_is_a_start_of_its_own(extended: Client, here: Path) -> None:
    program = here / "late"
    params = extended.start_params([str(program)], ifExists="attach")
    numbers = [extended.request("process/start", params) for _ in range(6)]
    assert [extended.failure(number).code for number in numbers] == [-32603] * 6
    program.write_text("#!/bin/sh\nexit 5\n")
    program.chmod(0o755)
    assert "attached" not in extended.call("process/start", params)
    assert extended.process(params["processId"]).wait_closed().exit_code == 5


@pytest.mark.statement("P22", "J7")
@pytest.mark.transports("unix", "unix/standard")
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"argv": ["/bin/cat", "-"]}, "argv"),
        ({"cwd": "file:///tmp"}, "cwd"),
        ({"env": {"PATH": "/bin", "TOKEN": "another secret"}}, "env"),
        ({"tty": True}, "tty"),
        ({"pipeStdin": False}, "pipeStdin"),
        ({"timeoutMs": 5000}, "timeoutMs"),
        ({"argv": ["/bin/true"], "env": {}, "idleTimeoutMs": 5}, "argv"),
    ],
)
def test_a_start_that_differs_is_refused_and_told_in_what(
    endpoint: Endpoint, changes: Json, field: str
) -> None:
    client = endpoint.connect()
    env = {"PATH": "/bin", "TOKEN": "a secret"}
    params = client.start_params(["/bin/cat"], pipeStdin=True, env=env, ifExists="attach")
    client.call("process/start", params)
    error = client.reply(client.request("process/start", {**params, **changes}))["error"]
    assert error["code"] == -32600
    assert f"`{field}`" in error["message"]
    assert "secret" not in error["message"]
    if client.standard:
        assert error["data"] == {"code": "start_differs", "field": field}
    assert client.call("process/start", params)["processId"] == params["processId"]


@pytest.mark.statement("P22")
@pytest.mark.transports("unix", "unix/standard")
def test_nothing_attaches_to_a_start_that_was_not_to_be_repeated(endpoint: Endpoint) -> None:
    client = endpoint.connect()
    params = client.start_params(["/bin/cat"], pipeStdin=True)
    client.call("process/start", params)
    error = client.reply(client.request("process/start", {**params, "ifExists": "attach"}))["error"]
    assert error["code"] == -32600
    if client.standard:
        assert error["data"] == {"code": "start_differs", "field": "ifExists"}


@pytest.mark.statement("P20", "E11")
@pytest.mark.parametrize("value", [None, "", "Attach", "restart", True, 1])
def test_there_are_two_things_to_do(client: Client, value: Json) -> None:
    params = client.start_params(["/bin/true"], ifExists=value)
    assert client.refused("process/start", params).code == -32602
