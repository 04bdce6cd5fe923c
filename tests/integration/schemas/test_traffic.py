"""What a real daemon says, held against the schemas that are published."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from execprotocol.methods import EVENTS, METHODS
from execserver import drain_command
from tests.conftest import StartServer
from tests.support.schemas import check, event_schema, result_schema, schema_of
from tests.support.wire import Client, Json, Server, connect_unix, encode, path_uri

EVERY_EVENT = frozenset(EVENTS)
OF_EXTENSIONS = {"executor/draining", "fs/changed"}
"""Events that are sent to connections with extension members only."""

READ_ONLY = {
    "permissions": {
        "type": "managed",
        "file_system": {
            "type": "restricted",
            "entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}],
        },
        "network": "restricted",
    },
    "windowsSandboxLevel": "disabled",
}

EXPLAINED = {"process/start", "fs/search", "fs/watchRead"}
"""The requests here whose errors have more than a message in either dialect."""


class Witness:
    """Calls methods, and holds everything that is said against its schema."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.called: set[str] = set()
        self.members: set[str] = set()
        """Of all results, with the names of their methods."""

    def call(self, method: str, /, **params: Json) -> Json:
        """A request and its result, both as their schemas say."""
        name = method.replace("/", ".")
        check(f"{name}.params.json", params)
        result = self.client.call(method, params)
        check(f"{name}.result.json", result)
        self.called.add(method)
        self.members |= {f"{method} {member}" for member in result}
        return result

    def refused(self, method: str, /, **params: Json) -> int:
        """A request and the number of its error, which is one of those that the document names."""
        error = self.client.reply(self.client.request(method, params))["error"]
        check("error.json", error)
        # To a lean client only what these say beyond their messages, if it asked for extensions (X15).
        is_explained = method in EXPLAINED and "initialize extensions" in self.members
        assert "data" in error if self.client.standard else "data" not in error or is_explained
        document = schema_of("openrpc.json")
        described = next(item for item in document["methods"] if item["name"] == method)
        keys = [reference["$ref"].rpartition("/")[2] for reference in described["errors"]]
        described_as = [document["components"]["errors"][key] for key in keys]
        assert error["code"] in {entry["code"] for entry in described_as}
        if "data" in error:
            assert error["data"]["code"] in {entry["data"]["code"] for entry in described_as}
        return int(error["code"])

    def check_events(self) -> set[str]:
        """All notifications so far are as their schemas say; their names."""
        for event in self.client.notifications:
            check(f"events/{event['method'].replace('/', '.')}.json", event["params"])
        return {event["method"] for event in self.client.notifications}

    def answer_question(self, decision: Json) -> None:
        """Answer a request of the daemon; both are as their schemas say."""
        self.client.wait_until(lambda: self.client.questions, what="a question")
        question = self.client.questions.pop()
        path = f"server-requests/{question['method'].replace('/', '.')}"
        check(f"{path}.params.json", question["params"])
        check(f"{path}.result.json", decision)
        self.client.respond(question["id"], result=decision)


@pytest.fixture
def server(start_server: StartServer) -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="exec-", dir="/tmp"))
    audit = ("--audit-dir", f"{folder}/audit")
    yield start_server(f"unix://{folder}/socket", "--retained-output-bytes", "65536", *audit)
    shutil.rmtree(folder)


@pytest.fixture
def site() -> Iterator[str]:
    """A web server; its address."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *parts: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def use_environment(witness: Witness) -> None:
    here = path_uri("/")
    witness.call("environment/info")
    witness.call("environment/status")
    witness.call("environmentConfig/read", cwd=here, configPaths=[["a"]], requirementsPaths=[])
    witness.call("capabilityRoots/discoverV1", roots=[])
    witness.call("capabilities/discoverV2", cwd=here)
    assert witness.refused("environmentConfig/read", cwd=here, configPaths=[], requirementsPaths=[]) == -32602


def use_a_profile_that_cannot_be_kept(witness: Witness, home: Path) -> None:
    (home / ".bash_profile").write_text("export EACH_TIME=$RANDOM$RANDOM\n")
    shell = witness.client.process("login")
    witness.call(
        "process/start",
        processId="login",
        argv=["/bin/bash", "-lc", "true"],
        cwd=path_uri(home),
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        tty=False,
        shellSnapshot={"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}},
    )
    shell.wait_closed()


def use_processes(witness: Witness) -> None:
    client = witness.client
    common = {"cwd": path_uri("/"), "env": {}}
    cat = client.process("cat")
    cat_params = {"processId": "cat", "argv": ["/bin/cat"], "tty": False, "pipeStdin": True, **common}
    witness.call(
        "process/start", timeoutMs=60_000, idleTimeoutMs=60_000, graceMs=9, ifExists="attach", **cat_params
    )
    witness.call(
        "process/start", timeoutMs=60_000, idleTimeoutMs=60_000, graceMs=9, ifExists="attach", **cat_params
    )
    assert witness.refused("process/start", ifExists="attach", **cat_params) == -32600
    for status, process_id in (("accepted", "cat"), ("unknownProcess", "nobody")):
        written = witness.call("process/write", processId=process_id, chunk=encode("one\n"), writeId="w")
        assert written == {"status": status}
    cat.wait_output(b"one\n")
    assert witness.call("process/read", processId="cat", maxBytes=0, waitMs=0)["exitCode"] is None
    witness.call("process/signal", processId="cat", signal="SIGCONT", scope="leader")
    witness.call("process/signal", processId="cat", signal="SIGWINCH", scope="tree")
    assert witness.refused("process/signal", processId="cat", signal="SIGNAL") == -32602
    witness.call("process/signal", processId="cat", signal="interrupt")
    cat.wait_closed()
    for status, process_id in (("accepted", "cat"), ("unknownProcess", "nobody")):
        assert witness.call("process/closeStdin", processId=process_id) == {"status": status}
    assert witness.call("process/read", processId="cat")["exitCode"] == 130
    assert not witness.call("process/terminate", processId="cat", scope="tree")["running"]
    assert witness.refused("process/resize", processId="cat", size={"rows": 1, "cols": 1}) == -32600
    # More than is kept, on a terminal.
    client.process("loud")
    argv = ["/bin/sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x"]
    witness.call(
        "process/start", processId="loud", argv=argv, tty=True, size={"rows": 9, "cols": 99}, **common
    )
    client.process("loud").wait_closed()
    assert (
        witness.call("process/resize", processId="loud", size={"rows": 1, "cols": 65535})["running"] is False
    )
    assert witness.refused("process/closeStdin", processId="loud") == -32600
    assert witness.call("process/read", processId="loud", maxBytes=10, sizes=True)["lostBytes"] > 0
    confined = client.process("confined")
    argv = ["/bin/sh", "-c", "sleep 60 & echo x >/forbidden"]
    witness.call("process/start", processId="confined", argv=argv, tty=False, sandbox=READ_ONLY, **common)
    confined.wait_closed()
    assert witness.call("process/read", processId="confined")["sandboxDenied"]
    client.process("limited")
    argv = ["/bin/sleep", "300"]
    witness.call("process/start", processId="limited", argv=argv, tty=False, limits={"wallMs": 10}, **common)
    client.process("limited").wait_closed()
    assert witness.call("process/read", processId="limited")["exited"]
    assert witness.refused("process/read", processId="nobody") == -32600
    assert witness.refused("process/start", processId="x", argv=["/nowhere"], tty=False, **common) == -32603


def use_other_sessions(witness: Witness, server: Server) -> None:
    client = witness.client
    with server.connect() as owner:
        process = owner.shell("echo one; read -r x", tty=True)
        process.wait_output(b"one")
        there = {"sessionId": owner.session_id, "processId": process.id}
        listed = witness.call("process/list", allSessions=True, argv=True)["processes"]
        assert process.id in {entry["processId"] for entry in listed}
        assert witness.call("process/subscribe", **there, afterSeq=0, interactive=True)["tty"]
        observed = client.process(process.id).wait_output(b"one")
        assert b"one" in observed
        witness.call("process/resize", **there, size={"rows": 5, "cols": 6})
        assert witness.refused("process/subscribe", **there, afterSeq=1000) == -32600
        assert witness.refused("process/subscribe", **{**there, "sessionId": client.session_id}) == -32600
        assert witness.refused("process/list", sessionId="nobody") == -32600
        witness.call("process/terminate", **there)
        client.process(process.id).wait_closed()
        assert witness.call("process/read", **there)["closed"]
        witness.call("process/unsubscribe", **there)
        left = owner.shell("exec sleep 300")
        owner.call("session/end")
        forgotten = witness.call("process/listForgotten", processId=left.id)["processes"]
        assert owner.session_id in {entry["sessionId"] for entry in forgotten}


def use_ports(witness: Witness) -> None:
    client = witness.client
    assert witness.call("port/list", watch=True) == {"ports": []}
    listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); s.accept()[0].recv(1)"
    server = client.start(sys.executable, "-c", listen)
    client.wait_until(lambda: any(item["method"] == "port/listening" for item in client.notifications))
    [entry] = witness.call("port/list", watch=False)["ports"]
    client.process("stream")
    witness.call("port/open", processId="stream", port=entry["port"], address=entry["address"])
    witness.call("process/write", processId="stream", chunk=encode("x"), writeId="w")
    server.wait_closed()
    witness.call("process/closeStdin", processId="stream")
    client.process("stream").wait_closed()
    assert witness.refused("port/open", processId="again", port=entry["port"]) == -32600


def use_files(witness: Witness, folder: Path) -> None:
    file, other, below = (path_uri(folder / name) for name in ("file", "other", "a gap, ü and #"))
    assert witness.call("fs/watchMissing", watchId=1, missing=[below]) == {"watching": True}
    assert witness.call("fs/watch", watchId="w", path=path_uri(folder), recursive=False)["nextSeq"] == 1
    assert witness.refused("fs/watch", watchId="w", path=path_uri(folder)) == -32600
    assert witness.refused("fs/watch", watchId="x", path=path_uri(folder / "none")) == -32004
    assert witness.call("fs/writeFile", path=file, dataBase64=encode("text")) == {}
    assert witness.call("fs/readFile", path=file) == {"dataBase64": encode("text")}
    witness.call("fs/createDirectory", path=below)
    witness.client.wait_until(
        lambda: any(item["method"] == "fs/missingChanged" for item in witness.client.notifications)
    )
    assert witness.call("fs/getMetadata", path=file)["size"] == 4
    witness.call("fs/canonicalize", path=below)
    witness.call("fs/copy", sourcePath=file, destinationPath=other, recursive=False)
    witness.call("fs/readDirectory", path=path_uri(folder))
    found = witness.call("fs/search", path=path_uri(folder), pattern="ex", contextLines=1, searchId="s")
    assert [match["ranges"] for each in found["files"] for match in each["matches"]] == [[[1, 3]]] * 2
    assert witness.call("fs/endSearch", searchId="s") == {}
    page = witness.call("fs/glob", path=path_uri(folder), globs=["*"], maxFiles=1)
    assert (len(page["paths"]), page["truncated"]) == (1, "files")
    assert witness.call("fs/glob", path=path_uri(folder), globs=["*"], maxFiles=1, cursor=page["cursor"])[
        "paths"
    ]
    assert witness.refused("fs/search", path=path_uri(folder), pattern="(", regex=True) == -32600
    options = {"maxDepth": 1, "maxDirectories": 5, "maxEntries": 5, "followDirectorySymlinks": False}
    assert witness.call("fs/walk", path=path_uri(folder), options=options)["entries"]
    witness.call("fs/open", handleId="h", path=other, mode="replace")
    witness.call("fs/writeBlock", handleId="h", offset=0, chunk=encode("more"))
    witness.call("fs/close", handleId="h")
    witness.call("fs/open", handleId="h", path=other)
    assert witness.call("fs/readBlock", handleId="h", offset=0, len=10) == {
        "chunk": encode("more"),
        "eof": True,
    }
    witness.call("fs/rename", sourcePath=other, destinationPath=other, overwrite=True)
    assert witness.refused("fs/rename", sourcePath=file, destinationPath=other, overwrite=False) == -32603
    witness.call(
        "fs/copy", sourcePath=other, destinationPath=f"{other}2", recursive=False, preserveTimes=True
    )
    witness.call("fs/setMetadata", path=f"{other}2", permissions=0o600, modifiedAtNs=5)
    witness.call("fs/install", sourcePath=f"{other}2", destinationPath=other)
    assert witness.call("fs/digest", path=other)["sha256"] == sha256(b"more").hexdigest()
    expected, new = {"sha256": sha256(b"more").hexdigest()}, f"{below}/new/file"
    edits: list[Json] = [
        {"op": "write", "path": other, "dataBase64": encode("most"), "expected": expected},
        {"op": "write", "path": new, "dataBase64": "", "createParents": True, "modeFrom": file},
        {"op": "remove", "path": file},
    ]
    assert [edit["sha256"] for edit in witness.call("fs/applyEdits", edits=edits)["edits"]][2] is None
    assert witness.refused("fs/applyEdits", edits=edits[:1]) == -32600
    assert witness.refused("fs/applyEdits", edits=edits[2:]) == -32004
    assert witness.refused("fs/applyEdits", edits=edits[:1] * 2) == -32602
    entries: list[Json] = [
        {"path": f"{below}/batch", "permissions": 0o700},
        {"path": f"{below}/batch/file", "permissions": 0o600, "dataBase64": encode("x"), "modifiedAtNs": 5},
        {"path": f"{below}/no/file", "permissions": 0o600, "dataBase64": ""},
    ]
    assert "error" in witness.call("fs/putFiles", entries=entries, keepMode=True)["entries"][2]
    paths = [entry["path"] for entry in entries]
    assert witness.call("fs/getFiles", paths=paths)["entries"][1]["dataBase64"] == encode("x")
    assert witness.refused("fs/getFiles", paths=[]) == -32602
    witness.call("fs/remove", path=other)
    assert witness.refused("fs/getMetadata", path=other) == -32004
    watch_changes(witness, folder)
    assert witness.refused("fs/readFile", path=below) == -32600
    assert witness.refused("fs/readBlock", handleId="other", offset=0, len=1) == -32004


def watch_changes(witness: Witness, folder: Path) -> None:
    """Every kind of change, and the end of a watch."""
    assert witness.call("fs/watchRead", watchId="w", maxChanges=2, waitMs=9000)["changes"]
    assert witness.call("fs/unwatch", watchId="w") == {}
    assert witness.refused("fs/watchRead", watchId="w") == -32600
    root = folder / "watched"
    root.mkdir()
    witness.call("fs/watch", watchId="ends", path=path_uri(root))
    (root / "one").touch()
    (root / "one").rename(root / "two")
    (root / ".ignore").touch()
    (root / ".ignore").write_text("ignored")
    shutil.rmtree(root)
    while witness.call("fs/watchRead", watchId="ends")["ended"] is None:
        time.sleep(0.01)


def use_http(witness: Witness, site: str) -> None:
    whole = witness.call("http/request", method="GET", url=site, requestId="whole")
    assert whole["bodyBase64"] == encode("hello")
    streamed = witness.call("http/request", method="GET", url=site, requestId="s", streamResponse=True)
    assert streamed["bodyBase64"] == ""
    witness.client.wait_until(
        lambda: any(item["params"].get("done") for item in witness.client.notifications)
    )
    assert witness.refused("http/request", method="GET", url="ftp://x/", requestId="r") == -32602


@pytest.mark.parametrize("standard", [False, True], ids=["lean", "standard"])
@pytest.mark.parametrize("extensions", [False, True], ids=["plain", "extended"])
def test_everything_that_is_said_is_as_the_schemas_say(
    server: Server, tmp_path: Path, site: str, standard: bool, extensions: bool
) -> None:
    with connect_unix(server.url.removeprefix("unix://"), standard=standard) as client:
        witness = Witness(client)
        witness.call("rpc.discover")
        witness.call("server/health")
        assert witness.refused("process/read", processId="p") == -32600
        asked = {"extensions": {"execserver": 1}} if extensions else {}
        session = witness.call("initialize", clientName="witness", **asked)["sessionId"]
        client.notify("initialized", {})
        check("notifications/initialized.json", {})
        use_environment(witness)
        client.session_id = session
        use_processes(witness)
        use_other_sessions(witness, server)
        use_ports(witness)
        use_files(witness, tmp_path.resolve())
        use_http(witness, site)
        use_network(witness)
        use_a_profile_that_cannot_be_kept(witness, tmp_path.resolve())
        witness.call("session/setTtl", ttlMs=None)
        witness.call("session/setTtl", ttlMs=1000)
        assert witness.refused("session/setTtl", ttlMs=2**53) == -32600
        drain(witness, server, extensions=extensions)
        witness.call("session/end")
        assert witness.called == METHODS.keys()
        assert witness.check_events() == (EVERY_EVENT if extensions else EVERY_EVENT - OF_EXTENSIONS)
    marked = {
        f"{method} {member}"
        for method in METHODS
        for member, schema in result_schema(method).get("properties", {}).items()
        if "x-extension" in schema
    }
    assert witness.members & marked == (marked if extensions else set())


def drain(witness: Witness, server: Server, *, extensions: bool) -> None:
    entries = Path(f"/proc/{server.pid}/environ").read_text().split("\0")
    own = dict(entry.split("=", 1) for entry in entries if entry)
    assert drain_command.run(server.url, own, wait=None, cancel=False) == 0
    assert witness.call("server/health")["status"] == "draining"
    with connect_unix(server.url.removeprefix("unix://"), standard=witness.client.standard) as another:
        assert Witness(another).refused("initialize", clientName="witness") == -32011
    if extensions:
        witness.client.wait_until(
            lambda: any(item["method"] == "executor/draining" for item in witness.client.notifications)
        )


def use_network(witness: Witness) -> None:
    request = "printf 'GET http://a.test/ HTTP/1.0\r\n\r\n'"
    script = f"exec 3<>/dev/tcp/127.0.0.1/${{HTTP_PROXY##*:}}; {request} >&3; cat <&3"
    proxy = {
        "enabled": True, "enableSocks5": False, "enableSocks5Udp": False, "allowUpstreamProxy": False,
        "dangerouslyAllowAllUnixSockets": False, "mode": "full", "allowLocalBinding": False,
    }  # fmt: skip
    process = witness.client.process("asking")
    witness.call(
        "process/start",
        processId="asking",
        argv=["/bin/bash", "-c", script],
        cwd=path_uri("/"),
        env={},
        tty=False,
        networkProxy={"proxy": proxy, "policyDecisionTimeoutMs": 60_000},
    )
    witness.answer_question({"decision": {"type": "deny", "reason": "no", "scope": "once"}})
    process.wait_output(b"403")
    process.wait_closed()


def test_a_gap_is_told_as_the_schema_says(server: Server, tmp_path: Path) -> None:
    written = tmp_path / "written"
    os.mkfifo(written)
    with server.connect() as client:
        script = f"head -c 30000000 /dev/zero; echo >{written}"
        client.pause()
        try:
            client.request("process/start", client.start_params(["/bin/sh", "-c", script], processId="p"))
            written.read_text()
        finally:
            client.resume()
        client.process("p").wait_closed()
        events = [item for item in client.notifications if "lostBytes" in item["params"]]
        assert events
        for event in client.notifications:
            check("events/" + event["method"].replace("/", ".") + ".json", event["params"])


def test_a_member_that_is_not_in_the_schema_is_found(server: Server) -> None:
    with server.connect() as client:
        result = client.call("environment/status")
        check("environment.status.result.json", result)
        with pytest.raises(jsonschema.ValidationError):
            check("environment.status.result.json", {**result, "more": 1})
        with pytest.raises(jsonschema.ValidationError):
            check("environment.status.result.json", {})


def test_discover_answers_the_document_that_is_published(server: Server) -> None:
    document = json.loads((Path(__file__).parents[3] / "schemas" / "openrpc.json").read_text())
    with server.connect(handshake=False) as client, server.connect() as another:
        numbers = [each.request("rpc.discover") for each in (client, client, another)]
        for each, number in zip((client, client, another), numbers, strict=True):
            assert each.result(number) == document
        assert client.refused("rpc.discover", {"a": 1}).code == -32602


def test_parameters_may_stand_in_an_array_in_the_order_of_the_document(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("text")
    values = {"path": path_uri(tmp_path / "file"), "handleId": "h", "mode": "read", "sandbox": None}
    document = schema_of("openrpc.json")
    with server.connect() as client:
        for name in ("fs/readFile", "fs/getMetadata", "fs/open"):
            method = next(item for item in document["methods"] if item["name"] == name)
            array = [values[item["name"]] for item in method["params"] if item["name"] in values]
            check(f"{name.replace('/', '.')}.result.json", client.call(name, array))


def test_events_have_no_members_beyond_the_schema() -> None:
    for event in EVENTS:
        schema: Any = event_schema(event)
        assert schema["additionalProperties"] is False
