"""The wire as an OpenRPC document: `schemas/openrpc.json`, and the answer to `rpc.discover`.

OpenRPC knows requests of a client only. What else is sent stands in extensions of the document:
`x-server-requests`, in the form of `methods`, are sent by the daemon and answered by the client;
`x-notifications`, without a result, are sent by the daemon, `x-client-notifications` by the
client. A parameter or member with `x-extension` is only for
connections that asked for it in `initialize`, and has no place in the array form of parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from execprotocol.handshake import InitializedParams
from execprotocol.methods import EVENTS, METHODS, SERVER_REQUESTS, Method, ServerRequest
from execprotocol.model import Params
from execserver import __version__
from tools.wire_docs.examples import Example, examples_of
from tools.wire_docs.json_schema import (
    Schema,
    description,
    method_description,
    positions,
    shared_schemas,
)
from tools.wire_docs.method_errors import ERRORS, errors_of

OPENRPC_VERSION = "1.3.2"
CLIENT_NOTIFICATIONS: dict[str, type[Params]] = {"initialized": InitializedParams}

_SCHEMAS = "#/components/schemas/"
_ERRORS = "#/components/errors/"

_ABOUT = """\
Runs commands and edits files on one machine for programs elsewhere, such as AI agents.

A connection begins with the request `initialize` and the notification `initialized`. Parameters are an \
object, or an array of all members in the order given here, where null stands for a member whose default \
that is, and only members at the end with another default may be left out; members with `x-extension` \
cannot be given in an array. Members of requests that are not known are \
ignored. Paths are `file:` URIs, bytes are standard base64 with padding, numbers are integers written \
without a fraction. Notifications of the daemon are listed in `x-notifications`, those of the client in \
`x-client-notifications`. `x-server-requests` are requests of the daemon, which the client answers; their \
ids are integers from 1 on each connection, in a space of their own. Error objects hold the number and a \
sentence; on connections that speak standard JSON-RPC 2.0 their `data.code` is a name to match on, and \
`data.field` the parameter at fault.
"""


def openrpc_document() -> dict[str, Any]:
    """The whole document, made anew from the models."""
    shapes = [shape for method in METHODS.values() for shape in (method.params, method.result)]
    shapes += [shape for request in SERVER_REQUESTS.values() for shape in request]
    schemas = shared_schemas([*shapes, *EVENTS.values(), *CLIENT_NOTIFICATIONS.values()], _SCHEMAS)
    document = {
        "openrpc": OPENRPC_VERSION,
        "info": {"title": "execserver", "version": __version__, "description": _ABOUT.strip()},
        "methods": [_method(method, schemas) for method in METHODS.values()],
        "x-server-requests": [
            _server_request(name, request, schemas) for name, request in SERVER_REQUESTS.items()
        ],
        "x-notifications": [_notification(name, shape, schemas) for name, shape in EVENTS.items()],
        "x-client-notifications": [
            _notification(name, shape, schemas) for name, shape in CLIENT_NOTIFICATIONS.items()
        ],
    }
    used = _reachable(document, schemas)
    document["components"] = {
        "schemas": {name: schemas[name] for name in sorted(used)},
        "errors": {
            key: {"code": error.code, "message": error.when, "data": {"code": error.name}}
            for key, error in ERRORS.items()
        },
    }
    return document


def _method(method: Method, schemas: dict[str, Schema]) -> dict[str, Any]:
    summary, text = method_description(method)
    result = method.result
    described: dict[str, Any] = {
        "name": method.name,
        "summary": summary,
        "description": text,
        "tags": [{"name": method.name.partition("/")[0] if "/" in method.name else "connection"}],
        "paramStructure": "either",
        "params": _content_descriptors(_in_order(method.params, schemas), schemas[method.params.__name__]),
        "result": _result(result),
        "errors": [{"$ref": _ERRORS + key} for key in errors_of(method)],
    }
    examples = [_example(example) for example in examples_of(method.name)]
    return {**described, "examples": examples} if examples else described


def _result(shape: Any) -> dict[str, Any]:
    return {
        "name": shape.__name__,
        "description": description(shape)[1],
        "schema": {"$ref": _SCHEMAS + shape.__name__},
    }


def _server_request(name: str, request: ServerRequest, schemas: dict[str, Schema]) -> dict[str, Any]:
    return {**_notification(name, request.params, schemas), "result": _result(request.result)}


def _example(example: Example) -> dict[str, Any]:
    return {
        "name": example.title,
        "params": [{"name": name, "value": value} for name, value in example.params.items()],
        "result": {"name": "result", "value": example.result},
    }


def _notification(name: str, shape: type, schemas: dict[str, Schema]) -> dict[str, Any]:
    schema = schemas[shape.__name__]
    summary, text = description(shape)
    return {
        "name": name,
        "summary": summary,
        "description": text,
        "paramStructure": "by-name",
        "params": _content_descriptors(schema.get("properties", {}), schema),
    }


def _in_order(model: type[Params], schemas: dict[str, Schema]) -> list[str]:
    """The members as they stand in the array form, then those that have no place in it."""
    by_position = positions(model)
    every = schemas[model.__name__].get("properties", {})
    return [*by_position, *(name for name in every if name not in by_position)]


def _content_descriptors(names: Iterable[str], schema: Schema) -> list[dict[str, Any]]:
    required = schema.get("required", [])
    descriptors = []
    for name in names:
        member = dict(schema["properties"][name])
        descriptor = {"name": name, "required": name in required}
        for key in ("description", "x-extension"):
            if key in member:
                descriptor[key] = member.pop(key)
        descriptors.append({**descriptor, "schema": member})
    return descriptors


def _reachable(document: Any, schemas: dict[str, Schema]) -> set[str]:
    """The schemas that the document refers to, directly or through others."""
    found: set[str] = set()
    waiting = list(_references(document))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _references(schemas[name])
    return found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, str) and value.startswith(_SCHEMAS):
        yield value.removeprefix(_SCHEMAS)
