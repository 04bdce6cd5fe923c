"""Parameters that are decoded without their models: never otherwise than by them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from execserver.processes import start_digest
from execserver.protocol import filesystem, process
from execserver.protocol.errors import InvalidParams
from execserver.protocol.examples import EXAMPLES
from execserver.protocol.limits import TTY_COLUMNS, TTY_ROWS
from execserver.protocol.methods import EVENT_NAMES, METHODS, events
from execserver.rpc import accesses
from execserver.rpc.params import NOTHING, decode_params
from execserver.rpc.quick_params import QUICK, decode_quickly
from execserver.rpc.validation import validate

START: dict[str, Any] = {"processId": "p", "argv": ["true"], "cwd": "file:///tmp", "env": {}, "tty": False}

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1, 1.0, 0.5, 1e300]),
    st.sampled_from(["", "1", "fail", "attach"]),
    st.sampled_from(
        ["aGk=", "aGl=", "aGk", "aG k=", "aGkx", "aGkxaA==", "aGkxaB==", "a-_=", "aGk=\n", "é", "\ud800"]
    ),
    st.text(max_size=5),
    st.lists(st.text(max_size=3) | st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.none(), max_size=2),
    st.sampled_from(
        ["file:///a/../b", "file://x/y", "/a", "file:", "FILE:///%ff", "http://a", "file:///a?b"]
    ),
    st.sampled_from([{"execserver": 1}, {"execserver": "1"}, {"rows": 1, "cols": 2}, {}]),
)


def members(method: str) -> list[str]:
    """The names on the wire of what a method takes."""
    return [field.alias or name for name, field in METHODS[method].params.model_fields.items()]


def usual(method: str) -> dict[str, Any]:
    """Parameters that every decoder takes."""
    return {
        "initialize": {"clientName": "c"},
        "process/start": START,
        "process/read": {"processId": "p"},
        "process/write": {"processId": "p", "chunk": "aGk=", "writeId": "w"},
    }[method]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A method with parameters that are right but for what they are not."""
    method = draw(st.sampled_from(sorted(QUICK)))
    changes = draw(st.dictionaries(st.sampled_from([*members(method), "unknown"]), ODD, max_size=4))
    left_out = draw(st.sets(st.sampled_from(members(method)), max_size=1))
    return method, {name: value for name, value in (usual(method) | changes).items() if name not in left_out}


@given(request=requests())
@example(request=("process/start", START | {"argv": []}))
@example(request=("process/start", START | {"env": {"A": None}}))
@example(request=("process/read", {"processId": "p", "waitMs": 2**63}))
@example(request=("process/read", {"processId": "p", "waitMs": True}))
@example(request=("initialize", {"clientName": "c", "extensions": {"execserver": True}}))
def test_what_is_decoded_quickly_means_the_same_to_the_model(request: tuple[str, dict[str, Any]]) -> None:
    method, params = request
    quick = decode_quickly(method, json.loads(json.dumps(params)))
    if quick is None:
        return
    decoded = validate(METHODS[method], params)  # which raises if the model would not take it
    for name in type(decoded).model_fields:
        value = getattr(decoded, name)
        given = getattr(quick, name)
        if value is not None and method == "initialize" and name == "extensions":
            assert given.execserver == value.execserver
        else:
            assert (type(given), given) == (type(value), value)


@pytest.mark.parametrize("method", sorted(QUICK))
def test_quick_decoders_have_the_members_of_the_model_and_their_defaults(method: str) -> None:
    quick, fields = QUICK[method], METHODS[method].params.model_fields
    assert list(quick.__struct_fields__) == list(fields)
    assert list(quick.__struct_encode_fields__) == members(method)
    optional = [field.default for field in fields.values() if not field.is_required()]
    assert list(quick.__struct_defaults__) == optional


@pytest.mark.parametrize("method", sorted(QUICK))
def test_the_usual_is_decoded_quickly(method: str) -> None:
    decoded: Any = decode_params(METHODS[method], usual(method))
    assert type(decoded) is QUICK[method]


@pytest.mark.parametrize("each", EXAMPLES, ids=lambda each: each.method)
def test_the_examples_of_the_documents_are_decoded_by_one_or_the_other(each: Any) -> None:
    assert decode_params(METHODS[each.method], each.params) is not None


def test_what_is_wrong_is_said_by_the_model() -> None:
    with pytest.raises(InvalidParams, match="argv must not be empty"):
        decode_params(METHODS["process/start"], START | {"argv": []})
    with pytest.raises(InvalidParams, match="missing field `clientName`"):
        decode_params(METHODS["initialize"], {})


def test_what_has_a_model_of_its_own_goes_there() -> None:
    size = {"rows": TTY_ROWS, "cols": TTY_COLUMNS}
    decoded = decode_params(METHODS["process/start"], START | {"tty": True, "size": size})
    assert type(decoded) is process.StartParams


def test_methods_without_parameters_need_no_model() -> None:
    assert {decode_params(each, None) for each in METHODS.values() if each.takes_nothing} == {NOTHING}


# -- what else is written out so that no model has to be loaded


@given(request=requests().filter(lambda request: request[0] == "process/start"))
def test_equal_starts_have_equal_digests_however_they_were_decoded(
    request: tuple[str, dict[str, Any]],
) -> None:
    method, params = request
    quick = decode_quickly(method, params)
    if quick is not None:
        decoded: Any = validate(METHODS[method], params)
        assert start_digest.start_digest(quick) == start_digest.start_digest(decoded)


def test_the_digest_of_a_start_is_of_all_its_parameters() -> None:
    compared = {name: said for name, (said, _) in start_digest._COMPARED.items()}
    fields = process.StartParams.model_fields
    assert compared == {
        name: field.alias or name for name, field in fields.items() if name not in ("process_id", "if_exists")
    }
    for name, (_, default) in start_digest._COMPARED.items():
        field = fields[name]
        assert default is start_digest._REQUIRED if field.is_required() else default == field.default


def test_the_size_that_every_terminal_has_is_no_other_start() -> None:
    def digest(**size: Any) -> dict[str, str]:
        params: Any = decode_params(METHODS["process/start"], START | {"tty": True} | size)
        return start_digest.start_digest(params)

    usual_size = {"rows": TTY_ROWS, "cols": TTY_COLUMNS}
    assert digest() == digest(size=None) == digest(size=usual_size)
    assert digest() != digest(size=usual_size | {"cols": TTY_COLUMNS + 1})


def test_methods_of_one_path_are_those_whose_parameters_are() -> None:
    paths = {name for name, method in METHODS.items() if issubclass(method.params, filesystem.PathParams)}
    assert paths == accesses.READING | accesses.WRITING
    assert not accesses.READING & accesses.WRITING


def test_what_has_no_order_says_nothing_of_the_kind() -> None:
    ordered = accesses.READING | accesses.WRITING | accesses._FURTHER.keys()
    assert METHODS.keys() - ordered == {
        *("initialize", "environment/info", "environment/status", "environmentConfig/read"),
        *("capabilityRoots/discoverV1", "capabilities/discoverV2"),
        *("process/terminate", "process/list", "http/request", "rpc.discover", "server/health"),
        "session/end",
    }


def test_the_extension_members_of_the_table_are_those_of_the_models() -> None:
    for method in METHODS.values():
        fields = method.params.model_fields
        if method.family is not None and not method.extension:
            named = {fields[name].alias or name for name in method.params.extension_members}
            assert set(method.extension_members) == named, method.name


def test_every_name_of_the_table_is_one_of_a_shape() -> None:
    for method in METHODS.values():
        assert method.params.__name__ == method.params_name.partition(".")[2]
        assert method.result is not None
    assert events().keys() == EVENT_NAMES.keys()


def test_a_daemon_answers_its_first_requests_without_pydantic() -> None:
    program = (
        "import sys\n"
        "import execserver.cli, execserver.server\n"
        "from execserver.configuration.flags import add_flags\n"
        "from execserver.configuration.loading import load\n"
        "load({'listen': ['stdio'], 'session_ttl': 80.0}, {'EXECSERVER_PROCESS_TTL': '5'}, '')\n"
        "from execserver.protocol.methods import METHODS\n"
        "from execserver.rpc.params import decode_params\n"
        f"for method, params in {[(method, usual(method)) for method in QUICK]!r}:\n"
        "    decode_params(METHODS[method], params)\n"
        "decode_params(METHODS['environment/info'], None)\n"
        "print(*(name for name in sys.modules if name.startswith('pydantic')))\n"
    )
    loaded = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == ""


def test_threads_that_need_models_at_once_all_get_whole_ones() -> None:
    program = (
        "import threading\n"
        "from execserver.api.discover import _make_document\n"
        "from execserver.protocol.errors import InvalidParams\n"
        "from execserver.protocol.methods import METHODS\n"
        "from execserver.rpc.params import decode_params\n"
        "from execserver.server import load_the_rest\n"
        "barrier, failures = threading.Barrier(5), []\n"
        "def decode(*methods):\n"
        "    for method in methods:\n"
        "        decode_params(METHODS[method], {'path': 'file:///a', 'mode': 'read', 'handleId': 'h',\n"
        "            'processId': 'p', 'chunk': '', 'writeId': 'w'})\n"
        "        try:\n"
        "            decode_params(METHODS['process/start'], {'argv': []})\n"
        "        except InvalidParams:\n"
        "            pass\n"
        "def run(work, *arguments):\n"
        "    barrier.wait()\n"
        "    try:\n"
        "        work(*arguments)\n"
        "    except BaseException as error:\n"
        "        failures.append(repr(error))\n"
        "threads = [threading.Thread(target=run, args=each) for each in ((load_the_rest,), \n"
        "    (_make_document,),\n"
        "    (decode, 'fs/open', 'process/write'), (decode, 'process/write', 'fs/getMetadata'),\n"
        "    (decode, 'fs/digest', 'process/terminate'))]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "print(*failures)\n"
    )
    for _ in range(3):
        said = subprocess.run(
            [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
        )
        assert said.stdout.strip() == "", said.stdout


def test_quick_parameters_are_values() -> None:
    assert all(issubclass(kind, msgspec.Struct) for kind in QUICK.values())
