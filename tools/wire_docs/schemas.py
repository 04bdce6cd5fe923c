"""Write the schemas of the wire and the reference of its messages, or check that they are current.

`python -m tools.wire_docs.schemas [--check] SCHEMAS REFERENCE ANSWER`: the folder of the JSON Schemas
(one file a message, and `openrpc.json` for all of them), and what is made from the same source: the page of
the manual, and the answer to `rpc.discover`. With `--check` nothing is written; the exit status says whether
all are what would be written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from execprotocol.methods import EVENTS, METHODS, SERVER_REQUESTS
from execserver.rpc.codec import encode_json
from tools.wire_docs.error_object import ErrorObject
from tools.wire_docs.generated import split_check, write_or_check
from tools.wire_docs.json_schema import message_schema, positions
from tools.wire_docs.openrpc import CLIENT_NOTIFICATIONS, openrpc_document
from tools.wire_docs.reference import reference_page


def message_schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """The path below the folder, and the schema, of every message."""
    for method in METHODS.values():
        name = method.name.replace("/", ".")
        params = message_schema(f"{method.name} params", method.params)
        if not method.takes_nothing:
            params["x-positions"] = positions(method.params)
        yield f"{name}.params.json", params
        yield f"{name}.result.json", message_schema(f"{method.name} result", method.result)
    for event, shape in EVENTS.items():
        yield f"events/{event.replace('/', '.')}.json", message_schema(event, shape)
    for name, request in SERVER_REQUESTS.items():
        path = f"server-requests/{name.replace('/', '.')}"
        yield f"{path}.params.json", message_schema(f"{name} params", request.params)
        yield f"{path}.result.json", message_schema(f"{name} result", request.result)
    for name, model in CLIENT_NOTIFICATIONS.items():
        yield f"notifications/{name}.json", message_schema(name, model)
    yield "error.json", message_schema("error", ErrorObject)


def main(argv: list[str]) -> int:
    """Write or check all of them."""
    arguments = split_check(argv, "tools.wire_docs.schemas [--check] SCHEMAS REFERENCE ANSWER", 3)
    if arguments is None:
        return 2
    (folder, page, answer), check = arguments
    document = openrpc_document()
    schemas = {**dict(message_schemas()), "openrpc.json": document}
    wanted = {folder / name: _text(schema) for name, schema in schemas.items()}
    wanted[page] = reference_page(document)
    wanted[answer] = encode_json(document).decode()
    tools = folder / "tools"  # of the client library, written by `tools.tool_schemas`
    others = (path for path in folder.rglob("*.json") if path.parent != tools)
    return write_or_check(wanted, "the models", check=check, others=others)


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
