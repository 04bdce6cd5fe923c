from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT7

from execprotocol.errors import RpcError
from execprotocol.methods import EVENTS, METHODS, SERVER_REQUESTS
from execserver import __version__
from tests.support.schemas import params_schema, result_schema, schema_of
from tools.wire_docs.method_errors import ERRORS
from tools.wire_docs.openrpc import openrpc_document

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openrpc_document()


@pytest.fixture(scope="module")
def meta_schema() -> Draft7Validator:
    """What an OpenRPC document has to look like, by its authors."""
    for_schemas = json.loads((DATA / "json-schema-tools-meta-schema.json").read_text())
    # It is referred to with and without the slash at its end.
    address = for_schemas["$id"]
    resource = DRAFT7.create_resource(for_schemas)
    registry: Registry[Any] = Registry().with_resources(
        [(address, resource), (address.rstrip("/"), resource)]
    )
    return Draft7Validator(json.loads((DATA / "openrpc-meta-schema.json").read_text()), registry=registry)


def method_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(method for method in document["methods"] if method["name"] == name)
    return found


def references_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references_in, value.values()))
    return set[str]().union(*map(references_in, value)) if isinstance(value, list) else set()


def test_the_document_is_what_the_meta_schema_says(
    document: dict[str, Any], meta_schema: Draft7Validator
) -> None:
    assert [error.message for error in meta_schema.iter_errors(document)] == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: document.pop("info"),
        lambda document: document.update(openrpc="9.9"),
        lambda document: document.update(somethingElse=1),
        lambda document: document["methods"][0].pop("params"),
        lambda document: document["methods"][0].update(paramStructure="somehow"),
        lambda document: document["methods"][0]["params"][0].pop("schema"),
        lambda document: document["methods"][0]["params"][0]["schema"].update(type="path"),
        lambda document: document["components"]["schemas"]["Metadata"].update(properties=[]),
        lambda document: document["components"]["errors"]["BadParams"].pop("code"),
    ],
)
def test_a_broken_document_is_not(document: dict[str, Any], meta_schema: Draft7Validator, spoil: Any) -> None:
    broken = copy.deepcopy(document)
    spoil(broken)
    assert not meta_schema.is_valid(broken)


def test_every_method_and_event_is_there(document: dict[str, Any]) -> None:
    assert [method["name"] for method in document["methods"]] == list(METHODS)
    assert [request["name"] for request in document["x-server-requests"]] == list(SERVER_REQUESTS)
    assert [event["name"] for event in document["x-notifications"]] == list(EVENTS)
    assert [item["name"] for item in document["x-client-notifications"]] == ["initialized"]
    assert document["info"]["version"] == __version__


def test_every_reference_leads_somewhere_and_nothing_is_left_over(document: dict[str, Any]) -> None:
    targets = {
        f"#/components/{kind}/{name}" for kind, parts in document["components"].items() for name in parts
    }
    assert references_in(document) == targets


@pytest.mark.parametrize("name", METHODS)
def test_parameters_stand_in_the_order_of_the_array_form(document: dict[str, Any], name: str) -> None:
    method = method_of(document, name)
    by_position = [item["name"] for item in method["params"] if "x-extension" not in item]
    assert by_position == params_schema(name).get("x-positions", [])
    required = [item["required"] for item in method["params"]]
    assert required == sorted(required, reverse=True), "OpenRPC has required parameters first"
    assert {item["name"] for item in method["params"] if item["required"]} == set(
        params_schema(name).get("required", [])
    )


@pytest.mark.parametrize("name", METHODS)
def test_parameters_and_results_are_those_of_the_single_files(document: dict[str, Any], name: str) -> None:
    method = method_of(document, name)
    schema = params_schema(name)
    described = {item["name"]: item.get("description") for item in method["params"]}
    assert described == {
        key: member.get("description") for key, member in schema.get("properties", {}).items()
    }
    result = document["components"]["schemas"][method["result"]["schema"]["$ref"].rpartition("/")[2]]
    single = result_schema(name)
    assert result.get("properties", {}).keys() == single.get("properties", {}).keys()
    assert result.get("required") == single.get("required")


def test_all_schemas_of_the_document_are_json_schemas(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for method in document["methods"]:
        for item in method["params"]:
            Draft202012Validator.check_schema(item["schema"])


def test_every_method_says_what_it_does_and_how_it_fails(document: dict[str, Any]) -> None:
    for method in document["methods"]:
        assert method["summary"].endswith("."), method["name"]
        assert len(method["summary"].split()) >= 4, method["name"]
        assert method["description"].startswith(method["summary"])
        assert {"$ref": "#/components/errors/BadParams"} in method["errors"]
    assert {"$ref": "#/components/errors/NotReady"} not in method_of(document, "rpc.discover")["errors"]
    assert {"$ref": "#/components/errors/NotReady"} not in method_of(document, "initialize")["errors"]
    assert {"$ref": "#/components/errors/SessionAttached"} in method_of(document, "initialize")["errors"]


def test_the_error_object_has_every_number_that_there_is() -> None:
    assert {error.code for error in RpcError.__subclasses__()} == set(
        schema_of("error.json")["properties"]["code"]["enum"]
    )


def test_every_error_name_is_one_that_the_server_has() -> None:
    in_source = {
        node.value
        for package in ("execserver", "clients/python/execprotocol")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {error.name for error in ERRORS.values()} <= in_source
    assert all(error.when.endswith(".") for error in ERRORS.values())


def test_a_server_that_starts_does_not_load_what_makes_the_document() -> None:
    code = "import sys, execserver.server; execserver.late_modules.load_late_modules(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert "execserver.api.handshake" in loaded
    assert not [name for name in loaded if name.partition(".")[0] == "tools"]
