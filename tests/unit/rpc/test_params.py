"""Parameters as handlers get them, and what is said of those that do not decode."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from execprotocol import environment, filesystem, process
from execprotocol.errors import InvalidParams
from execprotocol.limits import TTY_COLUMNS, TTY_ROWS
from execprotocol.methods import METHODS, extension_names
from execserver.processes import start_options
from execserver.rpc import ordering
from execserver.rpc.params import NOTHING, decode_params
from tests.support.schemas import params_schema
from tools.wire_docs.examples import EXAMPLES
from tools.wire_docs.json_schema import positions

PATH = "file:///tmp"
START: dict[str, Any] = {"processId": "p", "argv": ["true"], "cwd": PATH, "env": {}, "tty": False}
ENTRY = {"path": {"type": "path", "path": PATH}, "access": "write"}
SANDBOX: dict[str, Any] = {
    "permissions": {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": [ENTRY]},
        "network": "restricted",
    },
    "windowsSandboxLevel": "disabled",
}
WRITE = {"op": "write", "path": PATH, "dataBase64": ""}

USUAL: dict[str, dict[str, Any]] = {
    "initialize": {"clientName": "c"},
    "process/start": START,
    "process/read": {"processId": "p"},
    "process/write": {"processId": "p", "chunk": "aGk=", "writeId": "w"},
    "process/signal": {"processId": "p", "signal": "SIGTERM"},
    "process/resize": {"processId": "p", "size": {"rows": 1, "cols": 2}},
    "fs/readBlock": {"handleId": "h", "offset": 0, "len": 1},
    "fs/applyEdits": {"edits": [WRITE]},
    "http/request": {"method": "GET", "url": "http://a/", "requestId": "r"},
    "environmentConfig/read": {"cwd": PATH, "configPaths": [["a"]], "requirementsPaths": []},
}

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1, 0.5, 1e300]),
    st.sampled_from(["", "1", "fail", "attach"]),
    st.text(max_size=5),
    st.lists(st.text(max_size=3) | st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.none(), max_size=2),
    st.sampled_from(
        [PATH, [PATH], SANDBOX, SANDBOX["permissions"], WRITE, [WRITE], [WRITE | {"op": "move"}]]
    ),
    st.sampled_from([{"execserver": 1}, {"execserver": "1"}, {"rows": 1, "cols": 2}, {}]),
)


def decode(method: str, params: Any) -> Any:
    return decode_params(METHODS[method], params)


def members(method: str) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(METHODS[method].params)]


def refusal(method: str, params: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidParams) as caught:
        decode(method, params)
    return caught.value.message, caught.value.field


def with_permissions(**changes: Any) -> dict[str, Any]:
    return {"path": PATH, "sandbox": SANDBOX | {"permissions": SANDBOX["permissions"] | changes}}


ALL_METHODS = tuple(sorted(USUAL))
CHECKED_LATER = {"fs/readBlock": ("len",)}
"""Members with bounds that a schema states and the handler checks."""


@st.composite
def requests(draw: st.DrawFn, methods: Sequence[str] = ALL_METHODS) -> tuple[str, dict[str, Any]]:
    """One of these methods with parameters that are right, but for some."""
    method = draw(st.sampled_from(methods))
    changes = draw(st.dictionaries(st.sampled_from([*members(method), "unknown"]), ODD, max_size=4))
    left_out = draw(st.sets(st.sampled_from(members(method)), max_size=1))
    return method, {name: value for name, value in (USUAL[method] | changes).items() if name not in left_out}


# -- what decodes


@given(request=requests())
@example(request=("process/start", START | {"argv": []}))
@example(request=("process/start", START | {"env": {"A": None}}))
@example(request=("process/read", {"processId": "p", "waitMs": 2**63}))
@example(request=("process/read", {"processId": "p", "waitMs": True}))
@example(request=("initialize", {"clientName": "c", "extensions": {"execserver": True}}))
def test_the_decoder_takes_what_the_schema_says_and_names_the_place_of_all_else(
    request: tuple[str, dict[str, Any]],
) -> None:
    method, params = request
    for name in CHECKED_LATER.get(method, ()):
        params = params | {name: USUAL[method][name]}
    validator = Draft202012Validator(
        params_schema(method), format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    fault = None
    try:
        decode(method, json.loads(json.dumps(params)))
    except InvalidParams as error:
        fault = error
    # What a schema cannot say is which texts are base64.
    if fault is None or not fault.message.startswith("invalid base64"):
        assert validator.is_valid(params) == (fault is None)
    if fault is not None and fault.field is not None:
        assert fault.field.partition(".")[0] in members(method)


@pytest.mark.parametrize("each", EXAMPLES, ids=lambda each: each.method)
def test_the_examples_of_the_documents_decode(each: Any) -> None:
    decoded = decode(each.method, each.params)
    assert decoded is NOTHING or type(decoded) is METHODS[each.method].params


def test_values_are_what_handlers_take() -> None:
    start = decode("process/start", START | {"sandbox": SANDBOX, "cwd": "file:///a/../b%20c"})
    assert (start.cwd, start.arg0, start.pipe_stdin) == ("/b c", None, False)
    (entry,) = start.sandbox.permissions.file_system.entries
    assert (entry.path.type, entry.path.path, entry.missing_path_behavior) == ("path", "/tmp", None)
    assert decode("process/write", USUAL["process/write"]).chunk == b"hi"
    assert decode("process/read", {"processId": "p", "maxBytes": 2**64 - 1}).max_bytes == 2**64 - 1
    edits = decode("fs/applyEdits", {"edits": [WRITE | {"expected": {"absent": True}}]}).edits
    assert isinstance(edits[0].expected, filesystem.ExpectedAbsent)


def test_a_large_text_stays_the_view_that_the_envelope_made_of_it() -> None:
    view = memoryview(b"aGk=")
    assert decode("fs/writeFile", {"path": PATH, "dataBase64": view}).data_base64 is view
    assert decode("process/write", USUAL["process/write"] | {"chunk": view}).chunk == b"hi"


def test_two_requests_share_no_default_that_can_change() -> None:
    one, other = (decode("http/request", USUAL["http/request"]) for _ in range(2))
    one.headers.append("changed")
    assert other.headers == []


def test_what_has_no_parameters_gets_nothing() -> None:
    assert {decode(name, None) for name, each in METHODS.items() if each.takes_nothing} == {NOTHING}
    assert refusal("environment/info", {"a": 1})[0] == "invalid length: environment/info takes no parameters"


# -- the array form


def test_by_position_the_sandbox_comes_last_whatever_a_method_adds() -> None:
    for method, each in METHODS.items():
        names = positions(each.params)
        assert "sandbox" not in names[:-1] or method == "process/start", method
    copy = decode("fs/copy", [PATH, f"{PATH}/b", True, None])
    assert (copy.source_path, copy.destination_path, copy.sandbox) == ("/tmp", "/tmp/b", None)


def test_only_what_has_another_default_than_null_may_be_left_out_at_the_end() -> None:
    assert decode("process/unsubscribe", ["s", "p"]).process_id == "p"
    assert decode("process/subscribe", ["s", "p"]).after_seq == 0
    assert refusal("process/read", ["p"]) == (
        "invalid length 1, expected struct ReadParams with 4 elements",
        None,
    )
    assert refusal("process/read", ["p", 0, 0, 0, "session"])[0].startswith("invalid length 5")


# -- what is wrong


@pytest.mark.parametrize(
    ("method", "params", "message", "field"),
    [
        ("process/start", START | {"argv": []}, "argv must not be empty", "argv"),
        ("process/start", START | {"cwd": "/tmp"}, "invalid URI: relative URL without a base", "cwd"),
        (
            "process/start",
            START | {"env": {"A": 1}},
            "invalid type: integer for field `env.A`: Input should be a valid string",
            "env.A",
        ),
        (
            "process/start",
            START | {"timeoutMs": 0},
            "invalid type: integer for field `timeoutMs`: Input should be greater than or equal to 1",
            "timeoutMs",
        ),
        (
            "process/start",
            START | {"size": {"rows": 1, "cols": 65536}},
            "invalid type: integer for field `size.cols`: Input should be less than or equal to 65535",
            "size.cols",
        ),
        (
            "process/start",
            START | {"metadata": {"threadId": "x"}},
            "UUID parsing failed for threadId: `x`",
            "metadata.threadId",
        ),
        (
            "process/start",
            START | {"networkProxy": {"proxy": {}, "policyDecisionTimeoutMs": 0}},
            "network policy decision callback timeout must be nonzero",
            "networkProxy.policyDecisionTimeoutMs",
        ),
        (
            "process/start",
            START | {"shellSnapshot": {"scopeId": "é" * 129, "shell": {"name": "", "path": ""}}},
            "shell snapshot scope must be non-empty and at most 256 bytes",
            "shellSnapshot.scopeId",
        ),
        (
            "process/start",
            START | {"ifExists": "replace"},
            "unknown variant `replace`, expected 'fail' or 'attach' (field `ifExists`)",
            "ifExists",
        ),
        (
            "process/read",
            {"processId": "p", "afterSeq": 2**64},
            f"invalid type: integer for field `afterSeq`: Input should be less than or equal to {2**64 - 1}",
            "afterSeq",
        ),
        (
            "process/read",
            {"processId": "p", "waitMs": 1.0},
            "invalid type: floating point for field `waitMs`: Input should be a valid integer",
            "waitMs",
        ),
        (
            "process/write",
            {"processId": "p", "chunk": "x", "writeId": ""},
            "invalid base64: Non-base64 digit found",
            "chunk",
        ),
        (
            "process/write",
            {"processId": "p", "chunk": "", "writeId": ""},
            "writeId must not be empty",
            "writeId",
        ),
        (
            "process/signal",
            {"processId": "p", "signal": "SIGKILL\n"},
            "unknown signal `SIGKILL\n`, expected `interrupt` or a name such as `SIGTERM` or `SIGRTMIN+1`",
            "signal",
        ),
        (
            "fs/getMetadata",
            with_permissions(type="open"),
            (
                "unknown variant `open`, expected 'managed', 'disabled', 'external' "
                "(field `sandbox.permissions`)"
            ),
            "sandbox.permissions",
        ),
        (
            "fs/getMetadata",
            with_permissions(file_system={"type": "restricted", "entries": [ENTRY, ENTRY | {"access": "x"}]}),
            (
                "unknown variant `x`, expected 'read', 'write', 'deny' or 'none' "
                "(field `sandbox.permissions.managed.file_system.restricted.entries.1.access`)"
            ),
            "sandbox.permissions.managed.file_system.restricted.entries.1.access",
        ),
        (
            "fs/getMetadata",
            {"path": PATH, "sandbox": {"permissions": {}, "windowsSandboxLevel": "disabled"}},
            "missing field `sandbox.permissions.type`",
            "sandbox.permissions.type",
        ),
        ("fs/applyEdits", {"edits": [{}]}, "missing field `edits.0.op`", "edits.0.op"),
        (
            "fs/applyEdits",
            {"edits": []},
            "`edits` has 0 edits: 1 to 10000 are taken at a time",
            "edits",
        ),
        (
            "fs/applyEdits",
            {"edits": [WRITE | {"expected": {"absent": False}}]},
            (
                "invalid type: boolean for field `edits.0.write.expected.ExpectedAbsent.absent`: "
                "Input should be true"
            ),
            "edits.0.write.expected.ExpectedAbsent.absent",
        ),
        (
            "environmentConfig/read",
            {"cwd": PATH, "configPaths": [["a"], []], "requirementsPaths": []},
            "TOML paths must contain at least one key segment",
            "configPaths.1",
        ),
        (
            "environmentConfig/read",
            {"cwd": PATH, "configPaths": [], "requirementsPaths": []},
            "at least one config or requirements path is required",
            None,
        ),
    ],
)
def test_each_fault_has_its_text_and_names_its_place(
    method: str, params: Any, message: str, field: str | None
) -> None:
    assert refusal(method, params) == (message, field)


def test_what_is_wrong_comes_before_what_is_missing() -> None:
    assert refusal("process/start", {"argv": [5]})[1] == "argv.0"
    assert refusal("process/start", {"processId": "p", "sandbox": {}, "tty": 1})[1] == "tty"
    assert refusal("process/start", {"argv": ["a"]}) == ("missing field `processId`", "processId")
    assert refusal("capabilityRoots/discoverV1", {"roots": [{}, {"id": 1}]})[1] == "roots.1.id"


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("process/start", START | {"argv": ["x"] * 250_000 + [5]}, "argv.250000"),
        (
            "process/start",
            START | {"env": {str(number): "" for number in range(130_000)} | {"Z": 1}},
            "env.Z",
        ),
        ("capabilityRoots/discoverV1", {"roots": [{}] * 130_000}, "roots.0.id"),
    ],
    ids=["a long list", "a large object", "much missing"],
)
def test_a_fault_in_a_large_message_is_found_in_no_long_time(method: str, params: Any, field: str) -> None:
    started = time.thread_time()
    assert refusal(method, params)[1] == field
    assert time.thread_time() - started < 3.0


# -- what follows from the models


@given(request=requests(["process/start"]))
def test_equal_starts_have_equal_digests(request: tuple[str, dict[str, Any]]) -> None:
    try:
        one, other = (decode(*request) for _ in range(2))
    except InvalidParams:
        return
    assert start_options.start_digests(one) == start_options.start_digests(other)


def test_the_digest_of_a_start_is_of_all_its_parameters_but_two() -> None:
    compared = [field.encode_name for field in start_options._COMPARED]
    assert compared == [name for name in members("process/start") if name not in ("processId", "ifExists")]


def test_digests_are_those_that_earlier_versions_have_kept() -> None:
    everything = START | {
        "sandbox": SANDBOX | {"cwd": "file://elsewhere/x"},
        "envPolicy": {
            "inherit": "core",
            "ignoreDefaultExcludes": True,
            "exclude": [],
            "set": {"A": "b"},
            "includeOnly": [],
        },
        "managedNetwork": {"loopbackPorts": [80]},
        "tty": True,
        "size": {"rows": 2, "cols": 3},
    }
    assert start_options.start_digests(decode("process/start", everything)) == {
        "argv": "c6710e41ae0f4f41",
        "cwd": "e16c2e7c1a9e72d4",
        "env": "01e7b720ff566d53",
        "tty": "f56975c80364f63f",
        "envPolicy": "7513914344840aca",
        "sandbox": "eeb88ed47778ff9d",
        "managedNetwork": "5459be31bc6533ee",
        "size": "b160cf7ecfd62a8b",
    }


def test_the_size_that_every_terminal_has_is_no_other_start() -> None:
    def digest(**size: Any) -> dict[str, str]:
        return start_options.start_digests(decode("process/start", START | {"tty": True} | size))

    usual_size = {"rows": TTY_ROWS, "cols": TTY_COLUMNS}
    assert digest() == digest(size=None) == digest(size=usual_size)
    assert digest() != digest(size=usual_size | {"cols": TTY_COLUMNS + 1})


def test_methods_of_one_path_are_those_whose_parameters_are() -> None:
    paths = {name for name, method in METHODS.items() if issubclass(method.params, filesystem.PathParams)}
    assert paths == ordering.READING | ordering.WRITING | {"fs/watch"}
    assert not ordering.READING & ordering.WRITING


def test_what_has_no_order_says_nothing_of_the_kind() -> None:
    ordered = ordering.READING | ordering.WRITING | ordering._ACCESSES_OF.keys()
    assert METHODS.keys() - ordered == {
        *("initialize", "environment/info", "environment/status", "environmentConfig/read"),
        *("capabilityRoots/discoverV1", "capabilities/discoverV2"),
        *(
            "process/terminate",
            "process/list",
            "process/listForgotten",
            "http/request",
            "rpc.discover",
            "server/health",
            "session/setTtl",
            "session/end",
            "fs/endSearch",
        ),
    }


def test_extension_names_are_methods_of_ours_and_members_of_others() -> None:
    names = extension_names()
    assert {"fs/digest", "process/start.size", "process/read.sessionId"} <= set(names)
    assert not {"process/list.argv", "initialize.extensions", "process/resize.sessionId"} & set(names)
    for method in METHODS.values():
        assert method.params.extension_members <= set(method.params.__struct_fields__)


def test_models_stand_for_the_wire_as_it_is_spelled() -> None:
    assert process.StartParams.__struct_encode_fields__[5] == "pipeStdin"
    assert environment.NoParams.__struct_fields__ == ()


def test_a_daemon_decodes_and_refuses_without_pydantic() -> None:
    program = (
        "import sys\n"
        "import execserver.cli, execserver.server\n"
        "from execserver.configuration.options import add_flags\n"
        "from execserver.configuration.effective import load\n"
        "load({'listen': ['stdio'], 'session_ttl': 80.0}, {'EXECSERVER_PROCESS_TTL': '5'}, '')\n"
        "from execprotocol.errors import InvalidParams\n"
        "from execprotocol.methods import METHODS\n"
        "from execserver.rpc.params import decode_params\n"
        f"for method, params in {list(USUAL.items())!r}:\n"
        "    decode_params(METHODS[method], params)\n"
        "    try:\n"
        "        decode_params(METHODS[method], {'cwd': 5})\n"
        "    except InvalidParams:\n"
        "        pass\n"
        "print(*(name for name in sys.modules if name.startswith('pydantic')))\n"
    )
    loaded = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == ""
