from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from execprotocol.errors import InvalidParams
from execprotocol.methods import EVENTS, METHODS, SERVER_REQUESTS
from execserver.rpc.params import decode_params
from tests.support.schemas import SCHEMAS as FOLDER
from tests.support.schemas import params_schema, result_schema, schema_of
from tools.wire_docs.schemas import main

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "messages.md"
ANSWER = ROOT / "execserver" / "api" / "openrpc.json"
FILES = sorted(
    path
    for path in FOLDER.rglob("*.json")
    if path.name != "openrpc.json" and path.parent != FOLDER / "tools"  # of the client library
)

SANDBOX = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}
PATH = {"path": "file:///tmp", "sandbox": SANDBOX}
SEARCHED_TREE = {
    "excludeDirs": [".git"],
    "hidden": True,
    "ignoreRules": False,
    "maxBytes": 1,
    "timeMs": 1,
    "cursor": "c",
    "searchId": "s",
    "sandbox": SANDBOX,
}
VALID: dict[str, dict[str, Any]] = {
    "initialize": {"clientName": "test", "resumeSessionId": "s", "extensions": {"execserver": 1}},
    "environment/info": {},
    "environment/status": {},
    "rpc.discover": {},
    "server/health": {},
    "session/setTtl": {"ttlMs": 1},
    "session/end": {},
    "environmentConfig/read": {
        "cwd": "file:///tmp",
        "configPaths": [["a", "b"]],
        "requirementsPaths": [["c"]],
    },
    "capabilityRoots/discoverV1": {"roots": [{"id": "one", **PATH}]},
    "capabilities/discoverV2": {"cwd": "file:///tmp", "sandbox": SANDBOX},
    "process/start": {
        "processId": "p",
        "argv": ["true"],
        "cwd": "file:///",
        "env": {"A": "b"},
        "tty": False,
        "pipeStdin": True,
        "arg0": "name",
        "envPolicy": {
            "inherit": "core",
            "ignoreDefaultExcludes": False,
            "exclude": ["X*"],
            "set": {"B": "c"},
            "includeOnly": [],
        },
        "sandbox": SANDBOX,
        "enforceManagedNetwork": False,
        "managedNetwork": {"loopbackPorts": [80], "allowLocalBinding": True},
        "networkProxy": {"proxy": {}, "policyDecisionTimeoutMs": 1},
        "shellSnapshot": {"scopeId": "s", "shell": {"name": "sh", "path": "/bin/sh"}},
        "metadata": {"threadId": "12345678-1234-1234-1234-123456789012", "toolCallId": "t"},
        "timeoutMs": 1,
        "idleTimeoutMs": 2,
        "ifExists": "attach",
        "size": {"rows": 1, "cols": 65535},
        "graceMs": 3,
        "limits": {"memoryBytes": 1 << 20, "pids": 1, "cpuPercent": 1, "ioWeight": 1, "wallMs": 1},
    },
    "process/read": {
        "processId": "p",
        "afterSeq": 0,
        "maxBytes": 1,
        "waitMs": 2,
        "sessionId": "s",
        "sizes": True,
    },
    "process/write": {
        "processId": "p",
        "chunk": "eA==",
        "writeId": "w",
        "wholeLines": True,
        "sessionId": "s",
    },
    "process/list": {"sessionId": "s", "allSessions": True, "argv": True},
    "process/listForgotten": {"processId": "p"},
    "process/subscribe": {"sessionId": "s", "processId": "p", "afterSeq": 1, "interactive": True},
    "process/unsubscribe": {"sessionId": "s", "processId": "p"},
    "port/list": {"sessionId": "s", "allSessions": False, "watch": True},
    "port/open": {
        "processId": "p",
        "port": 65535,
        "address": "::1",
        "ofProcess": "q",
        "sessionId": "s",
    },
    "process/signal": {"processId": "p", "signal": "SIGRTMIN+30", "scope": "leader", "sessionId": "s"},
    "process/closeStdin": {"processId": "p", "sessionId": "s"},
    "process/resize": {"processId": "p", "size": {"rows": 1, "cols": 65535}, "sessionId": "s"},
    "process/terminate": {"processId": "p", "scope": "tree", "sessionId": "s"},
    "fs/readFile": PATH,
    "fs/writeFile": {**PATH, "dataBase64": "eA=="},
    "fs/createDirectory": {**PATH, "recursive": False, "permissions": 0o700},
    "fs/getMetadata": PATH,
    "fs/canonicalize": PATH,
    "fs/readDirectory": PATH,
    "fs/walk": {
        **PATH,
        "options": {
            "maxDepth": 1,
            "maxDirectories": 1,
            "maxEntries": 1,
            "followDirectorySymlinks": False,
            "pruneHiddenDirectories": True,
        },
    },
    "fs/remove": {**PATH, "recursive": False, "force": False},
    "fs/copy": {
        "sourcePath": "file:///a",
        "destinationPath": "file:///b",
        "recursive": True,
        "keepMode": True,
        "preserveTimes": True,
        "sandbox": SANDBOX,
    },
    "fs/rename": {
        "sourcePath": "file:///a",
        "destinationPath": "file:///b",
        "overwrite": False,
        "sandbox": SANDBOX,
    },
    "fs/install": {
        "sourcePath": "file:///a",
        "destinationPath": "file:///b",
        "permissions": 0o600,
        "modifiedAtNs": 1,
        "accessedAtNs": -1,
        "sandbox": SANDBOX,
    },
    "fs/setMetadata": {**PATH, "permissions": 0o755, "modifiedAtNs": 1, "accessedAtNs": 2},
    "fs/digest": {**PATH, "size": 5},
    "fs/applyEdits": {
        "edits": [
            {
                "op": "write",
                "path": "file:///a",
                "dataBase64": "eA==",
                "expected": {"sha256": "0" * 64},
                "createParents": True,
                "modeFrom": "file:///b",
            },
            {"op": "write", "path": "file:///c", "dataBase64": "", "expected": {"absent": True}},
            {"op": "remove", "path": "file:///b", "expected": {"sha256": "f" * 64}},
        ],
        "sandbox": SANDBOX,
    },
    "fs/putFiles": {
        "entries": [
            {
                "path": "file:///a",
                "permissions": 0o600,
                "dataBase64": "eA==",
                "sha256": "0" * 64,
                "modifiedAtNs": 1,
                "accessedAtNs": -1,
            },
            {"path": "file:///d", "permissions": 0o700},
        ],
        "keepMode": True,
        "sandbox": SANDBOX,
    },
    "fs/getFiles": {"paths": ["file:///a", "file:///b"], "maxBytes": 5, "sandbox": SANDBOX},
    "fs/search": {
        **PATH,
        "pattern": "a",
        "regex": True,
        "ignoreCase": True,
        "multiline": True,
        "globs": ["*.py"],
        "contextLines": 1,
        "output": "files",
        "maxMatches": 1,
        **SEARCHED_TREE,
    },
    "fs/glob": {**PATH, "globs": ["*.py"], "maxFiles": 1, **SEARCHED_TREE},
    "fs/endSearch": {"searchId": "s"},
    "fs/open": {**PATH, "handleId": "h", "mode": "replace", "permissions": 0o600},
    "fs/readBlock": {"handleId": "h", "offset": 0, "len": 1, "sandbox": SANDBOX},
    "fs/writeBlock": {"handleId": "h", "offset": 0, "chunk": "eA==", "sandbox": SANDBOX},
    "fs/close": {"handleId": "h"},
    "fs/watchMissing": {"watchId": 1, "missing": ["file:///a"], "present": "file:///b"},
    "fs/watch": {
        **PATH,
        "watchId": "w",
        "recursive": False,
        "ignoreRules": False,
        "excludeDirs": [".git"],
        "ifExists": "attach",
    },
    "fs/watchRead": {"watchId": "w", "afterSeq": 1, "maxChanges": 10_000, "waitMs": 1},
    "fs/unwatch": {"watchId": "w"},
    "http/request": {
        "method": "GET",
        "url": "http://127.0.0.1/",
        "requestId": "r",
        "headers": [{"name": "a", "value": "b", "valueEnvVar": "C"}],
        "bodyBase64": "eA==",
        "timeoutMs": 1,
        "redirectPolicy": "stop",
        "streamResponse": True,
    },
}
"""For every method parameters with all members."""

ODD_VALUES: tuple[Any, ...] = (None, True, -1, 1.5, 2**64, "text", [], [5], {}, {"text": 5})


def decodes(method: str, params: Any) -> bool:
    try:
        decode_params(METHODS[method], params)
    except InvalidParams:
        return False
    return True


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every member and item of a JSON value, at any depth."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places_in(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], *new: Any) -> Any:
    """A copy of a JSON value with another value in one place, or without that place."""
    copy: Any = json.loads(json.dumps(value))
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    if new:
        inside[path[-1]] = new[0]
    else:
        del inside[path[-1]]
    return copy


# -- the files


def test_the_files_are_what_the_models_say() -> None:
    assert main(["--check", str(FOLDER), str(PAGE), str(ANSWER)]) == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder, page, answer: (folder / "stale.json").write_text("{}"),
        lambda folder, page, answer: (folder / "events" / "stale.json").write_text("{}"),
        lambda folder, page, answer: (folder / "events" / "process.closed.json").unlink(),
        lambda folder, page, answer: (folder / "openrpc.json").write_text("{}"),
        lambda folder, page, answer: page.write_text(page.read_text() + "\n"),
        lambda folder, page, answer: page.unlink(),
        lambda folder, page, answer: answer.write_text("{}"),
    ],
    ids=["stale", "stale below", "missing", "changed", "page changed", "page missing", "answer changed"],
)
def test_any_drift_is_found_and_mended(
    spoil: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page, answer = tmp_path / "schemas", tmp_path / "messages.md", tmp_path / "openrpc.json"
    shutil.copytree(FOLDER, folder)
    shutil.copy(PAGE, page)
    shutil.copy(ANSWER, answer)
    spoil(folder, page, answer)
    files = [str(folder), str(page), str(answer)]
    assert main(["--check", *files]) == 1
    assert "run `make schemas`" in capsys.readouterr().err
    assert main(files) == 0
    assert main(["--check", *files]) == 0


def test_a_wrong_command_line_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 2
    assert "usage" in capsys.readouterr().err


def test_every_message_has_a_file() -> None:
    names = {path.relative_to(FOLDER).as_posix() for path in FILES}
    requests = [method.replace("/", ".") for method in METHODS]
    requests += [f"server-requests/{name.replace('/', '.')}" for name in SERVER_REQUESTS]
    assert names == (
        {f"{request}.{part}.json" for request in requests for part in ("params", "result")}
        | {f"events/{event.replace('/', '.')}.json" for event in EVENTS}
        | {"notifications/initialized.json", "error.json"}
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_a_json_schema(path: Path) -> None:
    schema = json.loads(path.read_text())
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert schema["type"] == "object"
    assert {"title", "description"} <= schema.keys()


# -- the descriptions


def descriptions_in(schema: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every schema and member that a reader may look up, with its description."""
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" and ("properties" in schema or "title" in schema):
        yield where, schema.get("description")
    for name, member in schema.get("properties", {}).items():
        if "type" in member or "$ref" in member or "anyOf" in member or "oneOf" in member:
            yield f"{where}.{name}", member.get("description")
    for name, definition in schema.get("$defs", {}).items():
        yield from descriptions_in(definition, name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_description_reads_as_a_sentence(path: Path) -> None:
    for where, text in descriptions_in(json.loads(path.read_text())):
        assert text, f"{where} has no description"
        assert re.match(r"[A-Z0-9`]", text), f"{where} begins in its middle: {text}"
        assert text.endswith("."), f"{where} has no end: {text}"
        assert text.count("`") % 2 == 0, f"{where} has a stray backtick: {text}"
        if where != "Empty":
            assert len(text.split()) >= 3, f"{where} says too little: {text}"
        assert not re.search(r"\s{2,}(?!$)", text.replace("\n\n", " ")), f"{where} has holes: {text}"


# -- the truth of requests


def test_the_examples_have_every_member() -> None:
    assert VALID.keys() == METHODS.keys()
    for method, params in VALID.items():
        assert params.keys() == params_schema(method).get("properties", {}).keys(), method


@pytest.mark.parametrize("method", VALID)
def test_schema_and_decoder_accept_the_same(method: str) -> None:
    # The one format that the decoder checks is that of a UUID.
    validator = Draft202012Validator(
        params_schema(method), format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    params = VALID[method]
    assert validator.is_valid(params)
    assert decodes(method, params)
    for place in places_in(params):
        without = changed(params, place)
        assert validator.is_valid(without) == decodes(method, without), f"without {place}"
        for value in ODD_VALUES:
            odd = changed(params, place, value)
            assert validator.is_valid(odd) == decodes(method, odd), f"{value!r} in {place}"


@pytest.mark.parametrize("method", [method for method, params in VALID.items() if params])
def test_unknown_members_are_in_order_at_any_depth(method: str) -> None:
    params = {**VALID[method], "aMemberOfTheFuture": 1}
    assert Draft202012Validator(params_schema(method)).is_valid(params)
    assert decodes(method, params)


@pytest.mark.parametrize("method", [method for method, params in VALID.items() if params])
def test_positions_are_those_of_the_decoder(method: str) -> None:
    schema = params_schema(method)
    by_position = schema["x-positions"]
    by_name = {name: VALID[method][name] for name in by_position}
    array = [VALID[method][name] for name in by_position]
    assert decode_params(METHODS[method], array) == decode_params(METHODS[method], by_name)
    extensions = {name for name, member in schema["properties"].items() if "x-extension" in member}
    assert extensions == schema["properties"].keys() - set(by_position)


def test_limits_that_handlers_check_are_stated() -> None:
    length = params_schema("fs/readBlock")["properties"]["len"]
    assert (length["minimum"], length["maximum"]) == (1, 1048576)
    assert params_schema("fs/open")["properties"]["handleId"]["maxLength"] == 32
    options = params_schema("fs/walk")["$defs"]["WalkOptions"]["properties"]
    assert options["maxDepth"]["maximum"] == 64
    assert (options["maxEntries"]["minimum"], options["maxEntries"]["maximum"]) == (1, 50000)


# -- the truth of results


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"rpc.discover"}))
def test_results_have_no_members_beyond_the_schema(method: str) -> None:
    schema = result_schema(method)
    assert schema["additionalProperties"] is False
    errors = Draft202012Validator(schema).iter_errors({"somethingElse": 1})
    assert any(error.validator == "additionalProperties" for error in errors)


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("initialize.result", "extensions"),
        ("process.start.params", "timeoutMs"),
        ("process.start.params", "idleTimeoutMs"),
        ("process.start.params", "ifExists"),
        ("process.start.params", "size"),
        ("process.start.params", "graceMs"),
        ("process.start.params", "limits"),
        ("process.read.params", "sessionId"),
        ("process.write.params", "sessionId"),
        ("process.terminate.params", "sessionId"),
        ("process.resize.params", "sessionId"),
        ("process.signal.params", "scope"),
        ("process.signal.result", "status"),
        ("process.start.result", "pid"),
        ("process.start.result", "attached"),
        ("process.read.result", "cause"),
        ("events/process.exited", "cause"),
        ("process.terminate.params", "scope"),
        ("process.terminate.result", "survivors"),
        ("initialize.params", "extensions"),
    ],
)
def test_extension_members_are_marked(name: str, member: str) -> None:
    schema = schema_of(f"{name}.json")
    assert schema["properties"][member]["x-extension"] == "execserver"
    assert member not in schema.get("required", [])
