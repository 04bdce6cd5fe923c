"""Handshake: `initialize`, `initialized`, and what is refused before them."""

from __future__ import annotations

import uuid

import pytest

from tests.conformance.endpoint import Endpoint
from tests.support.wire import Client, Json, path_uri

ONE_OF_EACH_FAMILY: list[tuple[str, Json, str]] = [
    ("process/start", {"processId": "p", "argv": ["x"], "cwd": "file:///", "env": {}, "tty": False}, "exec"),
    ("process/read", {"processId": "a"}, "exec"),
    ("process/write", {"processId": "a", "chunk": "", "writeId": "1"}, "exec"),
    ("process/signal", {"processId": "a", "signal": "interrupt"}, "exec"),
    ("process/closeStdin", {"processId": "a"}, "exec"),
    ("process/resize", {"processId": "a", "size": {"rows": 1, "cols": 1}}, "exec"),
    ("fs/rename", {"sourcePath": "file:///a", "destinationPath": "file:///b"}, "filesystem"),
    ("fs/digest", {"path": "file:///a"}, "filesystem"),
    ("fs/applyEdits", {"edits": [{"op": "remove", "path": "file:///a"}]}, "filesystem"),
    ("process/terminate", {"processId": "a"}, "exec"),
    ("fs/getMetadata", {"path": "file:///"}, "filesystem"),
    ("fs/close", {"handleId": "h"}, "filesystem"),
    ("fs/watchMissing", {"watchId": 1, "missing": []}, "filesystem"),
    ("http/request", {"method": "GET", "url": "http://127.0.0.1:1/", "requestId": "1"}, "http"),
    ("environment/info", None, "environment info"),
    ("environment/status", None, "environment status"),
    (
        "environmentConfig/read",
        {"cwd": "file:///", "configPaths": [["a"]], "requirementsPaths": []},
        "environment config",
    ),
    ("capabilityRoots/discoverV1", {"roots": []}, "capability discovery"),
    ("capabilities/discoverV2", {"cwd": "file:///"}, "capability discovery"),
]


@pytest.mark.everywhere
@pytest.mark.statement("H1", "D1")
def test_initialize_answers_session_and_environment(newcomer: Client) -> None:
    result = newcomer.call("initialize", {"clientName": "x"})
    newcomer.notify("initialized")
    assert set(result) == {"sessionId", "environmentInfo"}
    assert str(uuid.UUID(result["sessionId"])) == result["sessionId"]
    assert result["environmentInfo"] == newcomer.call("environment/info")


@pytest.mark.statement("H2")
def test_second_initialize_is_refused_and_harmless(client: Client) -> None:
    failure = client.refused("initialize", {"clientName": "x"})
    assert (failure.code, failure.message) == (-32600, "initialize may only be sent once per connection")
    client.call("environment/status")


@pytest.mark.everywhere
@pytest.mark.statement("H3", "H21", "E11")
def test_failed_initialize_may_be_repeated(newcomer: Client) -> None:
    for params in (
        None,
        {},
        {"clientName": 5},
        {"clientName": "x", "resumeSessionId": 5},
        {"clientName": "x", "extensions": 5},
    ):
        assert newcomer.refused("initialize", params).code == -32602
    for session in ("nobody", ""):
        failure = newcomer.refused("initialize", {"clientName": "x", "resumeSessionId": session})
        assert (failure.code, failure.message) == (-32600, f"unknown session id {session}")
    newcomer.call("initialize", {"clientName": "", "resumeSessionId": None, "extensions": None, "more": 1})
    newcomer.notify("initialized")
    newcomer.call("environment/status")


@pytest.mark.statement("H4", "H6")
@pytest.mark.parametrize(("method", "params", "family"), ONE_OF_EACH_FAMILY)
def test_methods_need_initialize(newcomer: Client, method: str, params: Json, family: str) -> None:
    failure = newcomer.refused(method, params)
    assert failure.code == -32600
    assert failure.message == f"client must call initialize before using {family} methods"


@pytest.mark.everywhere
@pytest.mark.statement("H5", "H6", "E12")
def test_methods_need_initialized(newcomer: Client) -> None:
    newcomer.call("initialize", {"clientName": "x"})
    for method, params, family in ONE_OF_EACH_FAMILY:
        failure = newcomer.refused(method, params)
        assert failure.code == -32600
        assert failure.message == f"client must send initialized before using {family} methods"
    assert newcomer.refused("process/read", {}).code == -32602
    newcomer.notify("initialized")
    newcomer.call("environment/status")


@pytest.mark.statement("H7")
def test_initialized_may_be_repeated_with_any_parameters(client: Client) -> None:
    for params in (None, {}, {"a": 1}, [1], "text", 5):
        client.notify("initialized", params)
    client.call("environment/status")


@pytest.mark.everywhere
@pytest.mark.statement("H8", "S2")
def test_handshake_and_requests_in_one_write(newcomer: Client) -> None:
    newcomer.send_all(
        {"id": 1, "method": "initialize", "params": {"clientName": "x"}},
        {"method": "initialized"},
        {"id": 2, "method": "environment/status"},
        {"id": 3, "method": "fs/getMetadata", "params": {"path": "file:///"}},
    )
    assert "sessionId" in newcomer.result(1)
    assert newcomer.result(2) == {"status": "ready"}
    assert newcomer.result(3)["isDirectory"]
    assert newcomer.reply_order()[0] == 1


@pytest.mark.statement("H9")
def test_sessions_share_nothing(endpoint: Endpoint) -> None:
    one, other = endpoint.connect(), endpoint.connect()
    assert one.session_id != other.session_id
    mine = one.start("/bin/cat", processId="same", pipeStdin=True)
    assert other.refused("process/read", {"processId": "same"}).message == "unknown process id same"
    theirs = other.shell("echo theirs", processId="same").wait_closed()
    assert theirs.output == b"theirs\n"
    assert other.refused("initialize", {"clientName": "x"}).code == -32600
    assert mine.write("mine", "1") == "accepted"
    mine.wait_output(b"mine")
    assert mine.log.kinds == ["output"]
    assert not mine.read(1)["exited"]


# -- what the executor says of itself


@pytest.mark.statement("D1", "D2", "D3")
def test_environment_info(client: Client, endpoint: Endpoint, environment: dict[str, str]) -> None:
    info = client.call("environment/info")
    assert set(info) == {
        "shell",
        "executorVersion",
        "providerId",
        "cwd",
        "userHomeDir",
        "platformOs",
        "prependPathDirs",
        "temporaryDirectories",
        "tempDir",
        "capabilities",
    }
    assert set(info["shell"]) == {"name", "path"}
    assert info["shell"]["path"].rpartition("/")[2] == info["shell"]["name"]
    assert info["platformOs"] == "linux"
    assert info["userHomeDir"] == path_uri(environment["HOME"])
    assert info["tempDir"] == path_uri("/tmp")
    assert info["temporaryDirectories"] == [path_uri("/tmp")]
    assert isinstance(info["prependPathDirs"], list)
    assert info["executorVersion"]
    assert isinstance(info["providerId"], str)
    capabilities = info["capabilities"]
    assert len(capabilities) == 15
    assert {name for name, there in capabilities.items() if there is True} == {
        "networkProxyLaunch",
        "networkProxyReviewDomains",
        "capabilityDiscoverySandbox",
        "fsWatchMissing",
        "capabilityDiscoveryV2",
        "environmentConfigRead",
        "httpHeaderEnvVars",
        "sandboxedFileStreaming",
        "fileWriteStreaming",
        "shellSnapshotV2",
    }
    assert all(isinstance(there, bool) for there in capabilities.values())


@pytest.mark.everywhere
@pytest.mark.statement("D2")
def test_cwd_is_where_the_daemon_was_started(client: Client, launch_folder: str) -> None:
    assert client.call("environment/info")["cwd"] == path_uri(launch_folder)


@pytest.mark.statement("D5")
def test_config_without_a_configuration(client: Client, environment: dict[str, str]) -> None:
    params = {"cwd": "file:///no/such/folder", "configPaths": [["mcp_servers"]], "requirementsPaths": []}
    result = client.call("environmentConfig/read", params)
    assert set(result) == {"userHomeDir", "codexHomeDir", "hostname", "config", "requirements"}
    assert result["userHomeDir"] == path_uri(environment["HOME"])
    assert result["codexHomeDir"] == path_uri(environment["CODEX_HOME"])
    assert result["hostname"]
    assert result["config"] == result["requirements"] == {"layers": [], "cloudInsertionIndex": 0}


@pytest.mark.statement("D6")
def test_config_paths_are_checked(client: Client) -> None:
    def refusal(cwd: str, config: list[list[str]]) -> tuple[int, str]:
        params = {"cwd": cwd, "configPaths": config, "requirementsPaths": []}
        failure = client.refused("environmentConfig/read", params)
        return failure.code, failure.message

    assert refusal("file:///", []) == (-32602, "at least one config or requirements path is required")
    assert refusal("file:///", [[]]) == (-32602, "TOML paths must contain at least one key segment")
    assert refusal("/tmp", [["a"]])[0] == -32602


@pytest.mark.statement("D7", "D10")
def test_discovery_of_nothing(client: Client, environment: dict[str, str]) -> None:
    assert client.call("capabilityRoots/discoverV1", {"roots": []}) == {"roots": []}
    found = client.call("capabilities/discoverV2", {"cwd": path_uri(environment["HOME"])})
    assert found == {"plugins": [], "skills": [], "warnings": []}


@pytest.mark.statement("D8")
def test_health_is_told_to_strangers_in_numbers(newcomer: Client) -> None:
    health = newcomer.call("server/health")

    assert health["status"] == "ok"
    assert health["connections"] >= 1
    assert set(health) == {
        "status", "version", "pid", "uptimeSeconds", "connections", "sessions", "processes",
        "retainedOutputBytes", "retainedOutputLimitBytes", "queuedInputBytes", "lostOutputBytes",
        "requireSandbox",
    }  # fmt: skip
    assert all(
        isinstance(value, int | float) for name, value in health.items() if name not in ("status", "version")
    )
