"""The setting `require_sandbox`: what asks for no sandbox is refused, and the same act in one works."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.endpoint import EVERY_DOOR, OWN_SERVER, Endpoint, socket_folder
from tests.sandbox.profiles import (
    DISABLED,
    MINIMAL,
    READ_ONLY,
    READ_ROOT,
    WORKSPACE,
    WRITE_WORKSPACE,
    at,
    context,
    restricted,
    special,
    unrestricted,
)
from tests.sandbox_user import remove_tree
from tests.support.wire import Client, Json, Server, connect_unix, encode, path_uri

pytestmark = pytest.mark.skipif(not OWN_SERVER, reason="another executor has no such setting")

REQUIRED = "--require-sandbox"

NO_LIMITS_ON_FILES = {
    "no context": None,
    "disabled": DISABLED,
    "external": {"type": "external", "network": "enabled"},
    "external without network": {"type": "external", "network": "restricted"},
    "unrestricted": unrestricted("enabled"),
    "unrestricted without network": unrestricted(),
    "all granted": restricted(special("root", "write"), network="enabled"),
    "all but one granted": restricted(special("root", "write"), at("/nonexistent/secret", "deny")),
    "all granted by path": restricted(at("/", "write"), at("/nonexistent", "read")),
}


@pytest.fixture(scope="module")
def url(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon that requires sandboxes; its URL."""
    folder = socket_folder()
    server = Server(
        f"unix://{folder}/socket", REQUIRED, env=environment, cwd=tmp_path_factory.mktemp("launch")
    )
    yield server.url
    assert server.stop() == 0
    remove_tree(folder)


@pytest.fixture
def strict(url: str) -> Iterator[Client]:
    """A connection to it."""
    with connect_unix(url.removeprefix("unix://"), standard=True) as client:
        yield client.handshake(extensions=True)


@pytest.fixture
def ws(here: Path) -> Path:
    """A workspace with a file."""
    (here / "ws").mkdir()
    (here / "ws/file").write_text("inside\n")
    return here / "ws"


def in_workspace(ws: Path) -> Json:
    return context(WORKSPACE, cwd=ws, roots=[ws])


def refusal(client: Client, method: str, params: Json) -> Json:
    """The error object of a request, which names the setting and the way out."""
    error = client.reply(client.request(method, params))["error"]
    assert error["code"] == -32600
    remedy = "send `sandbox` with `permissions` of type `managed` and a `restricted` file system"
    assert error["data"] == {"code": "sandbox_required", "field": "sandbox", "reason": remedy}
    for part in ("require_sandbox", "`sandbox`"):
        assert part in error["message"]
    return error["message"]


def changes(ws: Path) -> dict[str, Json]:
    """A request for each method that changes files; all succeed in this order."""
    uri = {
        name: path_uri(ws / name)
        for name in ("file", "new", "copy", "moved", "installed", "d", "edited", "put")
    }
    return {
        "fs/createDirectory": {"path": uri["d"], "recursive": False},
        "fs/writeFile": {"path": uri["new"], "dataBase64": encode("new")},
        "fs/copy": {"sourcePath": uri["file"], "destinationPath": uri["copy"], "recursive": False},
        "fs/rename": {"sourcePath": uri["copy"], "destinationPath": uri["moved"]},
        "fs/install": {"sourcePath": uri["moved"], "destinationPath": uri["installed"]},
        "fs/setMetadata": {"path": uri["installed"], "permissions": 0o600},
        "fs/applyEdits": {"edits": [{"op": "write", "path": uri["edited"], "dataBase64": encode("e")}]},
        "fs/putFiles": {"entries": [{"path": uri["put"], "dataBase64": encode("p"), "permissions": 0o644}]},
        "fs/open": {"path": uri["new"], "handleId": "out", "mode": "replace"},
        "fs/remove": {"path": uri["installed"], "recursive": False, "force": False},
    }


def readings(ws: Path) -> dict[str, Json]:
    """A request for each method that only reads."""
    file = path_uri(ws / "file")
    limits = {"maxDepth": 1, "maxDirectories": 5, "maxEntries": 5, "followDirectorySymlinks": False}
    return {
        "fs/getMetadata": {"path": file},
        "fs/canonicalize": {"path": file},
        "fs/readFile": {"path": file},
        "fs/readDirectory": {"path": path_uri(ws)},
        "fs/walk": {"path": path_uri(ws), "options": limits},
        "fs/digest": {"path": file},
        "fs/getFiles": {"paths": [file]},
        "fs/search": {"path": path_uri(ws), "pattern": "inside"},
        "fs/glob": {"path": path_uri(ws), "globs": ["*"]},
        "fs/open": {"path": file, "handleId": "in"},
    }


@pytest.mark.statement("C8")
@pytest.mark.transports(*EVERY_DOOR)
def test_every_way_in_refuses_what_asks_for_no_sandbox(endpoint: Endpoint, ws: Path) -> None:
    client = endpoint.private(REQUIRED).connect()
    marker = ws / "marker"
    unconfined = client.start_params(["/bin/touch", str(marker)], cwd=path_uri(ws))
    for sandbox in (None, context(DISABLED)):
        failure = client.refused("process/start", unconfined | {"sandbox": sandbox})
        assert failure.code == -32600
        assert "require_sandbox" in failure.message
    failure = client.refused("fs/writeFile", {"path": path_uri(marker), "dataBase64": encode("x")})
    assert "require_sandbox" in failure.message
    assert not marker.exists()
    process = client.start("/bin/touch", str(marker), cwd=path_uri(ws), sandbox=in_workspace(ws))
    assert process.wait_closed().exit_code == 0
    assert marker.exists()


@pytest.mark.statement("C8")
@pytest.mark.parametrize("permissions", NO_LIMITS_ON_FILES.values(), ids=NO_LIMITS_ON_FILES)
def test_a_command_needs_a_sandbox_that_limits_files(strict: Client, ws: Path, permissions: Json) -> None:
    sandbox = None if permissions is None else context(permissions)
    marker = ws / "marker"
    params = strict.start_params(["/bin/touch", str(marker)], cwd=path_uri(ws), sandbox=sandbox)
    refusal(strict, "process/start", params)
    refusal(strict, "process/start", params | {"tty": True, "pipeStdin": True, "ifExists": "attach"})
    assert strict.call("process/list")["processes"] == []
    assert not marker.exists()


@pytest.mark.statement("C8")
@pytest.mark.parametrize(
    "permissions",
    [READ_ONLY, WORKSPACE, MINIMAL, restricted(READ_ROOT, network="enabled")],
    ids=["read only", "workspace", "minimal", "read only with network"],
)
def test_a_command_in_a_sandbox_that_limits_files_runs(strict: Client, ws: Path, permissions: Json) -> None:
    cwd = "/" if permissions != WORKSPACE else ws
    process = strict.shell("echo on", cwd=path_uri(cwd), sandbox=context(permissions, cwd=ws, roots=[ws]))
    assert process.wait_closed().output == b"on\n"


@pytest.mark.statement("C8")
def test_a_batch_is_refused_by_its_parts(strict: Client, ws: Path) -> None:
    params = strict.start_params(["/bin/true"], cwd=path_uri(ws))
    confined = strict.start_params(["/bin/true"], cwd=path_uri(ws), sandbox=in_workspace(ws))
    requests = {"first": params, "second": confined}
    strict.send([strict.message("process/start", one, id=name) for name, one in requests.items()])
    assert strict.reply("first")["error"]["data"]["code"] == "sandbox_required"
    assert strict.result("second")["processId"] == confined["processId"]


@pytest.mark.statement("C8")
@pytest.mark.parametrize("permissions", NO_LIMITS_ON_FILES.values(), ids=NO_LIMITS_ON_FILES)
def test_no_method_changes_files_without_a_sandbox(strict: Client, ws: Path, permissions: Json) -> None:
    sandbox = {} if permissions is None else {"sandbox": context(permissions)}
    for method, params in changes(ws).items():
        refusal(strict, method, params | sandbox)
    assert os.listdir(ws) == ["file"]
    assert (ws / "file").read_text() == "inside\n"


@pytest.mark.statement("C8")
def test_every_method_changes_files_in_a_sandbox(strict: Client, ws: Path) -> None:
    for method, params in changes(ws).items():
        strict.call(method, params | {"sandbox": in_workspace(ws)})
    strict.call("fs/writeBlock", {"handleId": "out", "offset": 0, "chunk": encode("block")})
    strict.call("fs/close", {"handleId": "out"})
    visible = sorted(name for name in os.listdir(ws) if not name.startswith("."))
    assert visible == ["d", "edited", "file", "new", "put"]
    assert (ws / "new").read_text() == "block"


@pytest.mark.statement("C8")
def test_reading_without_a_sandbox_is_done_in_one(strict: Client, ws: Path, url: str) -> None:
    """The stock agent reads so under every profile that may read the whole disk."""
    for method, params in readings(ws).items():
        strict.call(method, params)
    block = strict.call("fs/readBlock", {"handleId": "in", "offset": 0, "len": 7})
    assert block["chunk"] == encode("inside\n")
    strict.call("fs/close", {"handleId": "in"})
    assert strict.call("fs/getMetadata", {"path": path_uri(ws / "file")})["isFile"]
    missing = strict.refused("fs/readFile", {"path": path_uri(ws / "no")})
    assert missing.code == -32004
    # The daemon's own files are hidden, as in every sandbox.
    socket = url.removeprefix("unix://")
    assert strict.call("fs/getMetadata", {"path": path_uri(socket)})["size"] == 0
    assert strict.call("fs/getMetadata", {"path": path_uri(socket)})["isFile"]


@pytest.mark.statement("C8")
def test_reading_with_a_context_that_limits_nothing_is_refused(strict: Client, ws: Path) -> None:
    for method, params in readings(ws).items():
        refusal(strict, method, params | {"sandbox": context(DISABLED)})


@pytest.mark.statement("C8")
def test_what_runs_nothing_and_changes_nothing_is_served(strict: Client, ws: Path) -> None:
    for method, params in {
        "environment/info": {},
        "environment/status": {},
        "environmentConfig/read": {
            "cwd": path_uri(ws), "configPaths": [["mcp_servers"]], "requirementsPaths": [["mcp_servers"]]
        },
        "capabilities/discoverV2": {"roots": [], "cwd": path_uri(ws)},
        "http/request": {"method": "GET", "url": "http://127.0.0.1:1/", "requestId": "r"},
        "process/list": {},
        "server/health": {},
    }.items():  # fmt: skip
        reply = strict.reply(strict.request(method, params))
        assert reply.get("error", {}).get("data", {}).get("code") != "sandbox_required", method
    watch = {"watchId": 1, "missing": [path_uri(ws / "later")]}
    assert strict.call("fs/watchMissing", watch) == {"watching": True}


@pytest.mark.statement("C8", "P20")
def test_a_repeated_start_attaches_as_before(strict: Client, ws: Path) -> None:
    params = strict.start_params(["/bin/cat"], cwd=path_uri(ws), pipeStdin=True, ifExists="attach")
    params |= {"sandbox": in_workspace(ws)}
    strict.call("process/start", params)
    assert strict.call("process/start", params)["attached"]
    assert strict.process(params["processId"]).write("on", "1") == "accepted"


@pytest.mark.statement("X16", "D8")
def test_clients_are_told_that_sandboxes_are_required(strict: Client, client: Client) -> None:
    assert strict.call("environment/info")["requireSandbox"] is True
    assert strict.call("server/health")["requireSandbox"] is True
    assert client.call("server/health")["requireSandbox"] is False
    assert "requireSandbox" not in client.call("environment/info")


@pytest.mark.statement("C8")
def test_a_workspace_that_names_the_root_is_refused(strict: Client, ws: Path) -> None:
    """`project_roots` with the root as its folder grants the same as `root`."""
    sandbox = context(restricted(READ_ROOT, WRITE_WORKSPACE), cwd="/", roots=["/"])
    refusal(strict, "process/start", strict.start_params(["/bin/true"], cwd="file:///", sandbox=sandbox))
