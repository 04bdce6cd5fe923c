"""The page `docs/reference/messages.md`, made from the OpenRPC document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

_HEAD = """\
# Messages

Every method and event of the wire, made from the models by `make schemas`. [The wire
protocol](../protocol.md) explains how they work together. The folder `schemas/` of the repository has the
same as JSON Schemas, one file for each message, and as an OpenRPC document, `schemas/openrpc.json`, which
`rpc.discover` answers too.

Parameters are an object. They may also be an array of all parameters in the order of the tables: null takes
the place of a parameter whose default is null, and a parameter with another default may be left out if no
other follows it. Parameters marked *extension* have no place in the array. Results have the members marked
*extension* only on connections that asked for them in `initialize`. Unknown members of requests are ignored.
Bytes are standard base64 with padding. Connections that speak standard JSON-RPC 2.0 get the name of an
error, as `data.code`.
"""

_RUN_BY = "<!-- elsewhere: tests/integration/schemas/test_examples.py: the examples are one conversation -->"

_SCHEMAS = "#/components/schemas/"


def reference_page(document: dict[str, Any]) -> str:
    """The page as Markdown."""
    return "\n".join(_lines(document)).rstrip() + "\n"


def _lines(document: dict[str, Any]) -> Iterator[str]:
    errors = document["components"]["errors"]
    schemas = document["components"]["schemas"]
    yield _HEAD
    yield "## Methods\n"
    for method in document["methods"]:
        yield from _method(method, schemas, errors)
    yield "## Requests of the server\n\nRequests that the daemon sends, and the client answers.\n"
    for request in document["x-server-requests"]:
        yield f"### `{request['name']}` (request of the server)\n"
        yield request["description"] + "\n"
        yield from _parameters(request["params"])
        yield from _result(request, schemas)
    yield "## Events\n\nNotifications that the daemon sends.\n"
    for event in document["x-notifications"]:
        yield from _notification(event)
    yield "## Notifications of the client\n"
    for notification in document["x-client-notifications"]:
        yield from _notification(notification)
    yield "## Objects\n\nWhat the members above refer to.\n"
    requests = [*document["methods"], *document["x-server-requests"]]
    results = {_target(request["result"]["schema"]) for request in requests}
    for name, schema in schemas.items():
        if name not in results or name == "EnvironmentInfo":
            yield from _object(name, schema)


def _method(method: dict[str, Any], schemas: dict[str, Any], errors: dict[str, Any]) -> Iterator[str]:
    yield f"### `{method['name']}`\n"
    yield method["description"] + "\n"
    yield from _parameters(method["params"])
    yield from _result(method, schemas)
    yield "| error | name | when |\n| --- | --- | --- |"
    for reference in method["errors"]:
        error = errors[reference["$ref"].rpartition("/")[2]]
        yield f"| {error['code']} | `{error['data']['code']}` | {error['message']} |"
    yield ""
    for example in method.get("examples", []):
        yield from _example(method["name"], example)


def _example(method: str, example: dict[str, Any]) -> Iterator[str]:
    request: dict[str, Any] = {"id": 1, "method": method}
    if example["params"]:
        request["params"] = {item["name"]: item["value"] for item in example["params"]}
    yield f"To {example['name']}:"
    yield f"\n{_RUN_BY}\n```json"
    for message in (request, {"id": 1, "result": example["result"]["value"]}):
        yield json.dumps(message)
    yield "```\n"


def _notification(notification: dict[str, Any]) -> Iterator[str]:
    yield f"### `{notification['name']}` (notification)\n"
    yield notification["description"] + "\n"
    yield from _parameters(notification["params"])


def _parameters(descriptors: list[dict[str, Any]]) -> Iterator[str]:
    if not descriptors:
        yield "It takes no parameters.\n"
        return
    yield "| parameter | type | | |\n| --- | --- | --- | --- |"
    for item in descriptors:
        note = "required" if item["required"] else _default(item["schema"], "only sometimes")
        yield _row(item["name"], {**item["schema"], **item}, note)
    yield ""


def _result(method: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    schema = schemas[_target(method["result"]["schema"])]
    if not schema.get("properties"):
        yield "The result is `{}`.\n"
        return
    if method["description"] != schema["description"]:
        yield f"The result: {schema['description']}\n"
    yield from _members("result", schema, "only sometimes")


def _object(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    yield schema["description"] + "\n"
    yield from _members("member", schema, "may be absent")


def _members(heading: str, schema: dict[str, Any], optional: str) -> Iterator[str]:
    required = schema.get("required", [])
    yield f"| {heading} | type | | |\n| --- | --- | --- | --- |"
    for name, member in schema.get("properties", {}).items():
        yield _row(name, member, "" if name in required else _default(member, optional))
    yield ""


def _row(name: str, member: dict[str, Any], note: str) -> str:
    notes = [note, "*extension*" if "x-extension" in member else ""]
    cells = (f"`{name}`", _type(member), ", ".join(filter(None, notes)), member.get("description", ""))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(member: dict[str, Any], without: str) -> str:
    return f"default {json.dumps(member['default'])}" if "default" in member else without


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = _target(schema)
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return _either(schema[several])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    if schema.get("contentEncoding") == "base64":
        return "base64"
    if schema.get("format") == "uri":
        return "path URI"
    return _number(schema) if kind == "integer" else str(kind)


def _either(choices: Iterable[dict[str, Any]]) -> str:
    return " or ".join(_type(choice) for choice in choices)


def _number(schema: dict[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if most in (None, 2**64 - 1):
        return {None: "integer", 0: "unsigned integer"}.get(least, f"integer from {least}")
    return f"integer {least} to {most}"


def _target(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).removeprefix(_SCHEMAS)
