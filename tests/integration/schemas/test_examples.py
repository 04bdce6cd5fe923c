"""The published examples, held as one conversation with a daemon."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from execprotocol.methods import METHODS
from tests.conftest import StartServer
from tests.support.schemas import check, schema_of
from tests.support.wire import path_uri
from tools.wire_docs.examples import EXAMPLES, FOLDER, VOLATILE

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "messages.md"

WITHOUT_EXAMPLE = {
    "initialize",
    "environment/info",
    "environmentConfig/read",
    "http/request",
    "process/list",
    "process/subscribe",
    "port/open",
    "rpc.discover",
    "server/health",
}
"""Their results differ from host to host, or from run to run."""


def moved(value: Any, folder: Path) -> Any:
    """The same in another folder than that of the examples."""
    return json.loads(json.dumps(value).replace(FOLDER, path_uri(folder)))


def settled(result: dict[str, Any]) -> dict[str, Any]:
    return {name: None if name in VOLATILE else value for name, value in result.items()}


def test_the_conversation_goes_as_it_is_published(start_server: StartServer, tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    server = start_server("ws://127.0.0.1:0", cwd=folder)
    with server.connect() as client:
        for example in EXAMPLES:
            name = example.method.replace("/", ".")
            check(f"{name}.params.json", example.params)
            check(f"{name}.result.json", example.result)
            result = client.call(example.method, moved(example.params, folder))
            expected = moved(example.result, folder)
            assert settled(result) == settled(expected), f"{example.method}: {example.title}"


def test_every_method_has_an_example_or_a_reason() -> None:
    assert {example.method for example in EXAMPLES} == METHODS.keys() - WITHOUT_EXAMPLE


def test_the_document_and_the_page_have_these_examples() -> None:
    published = [
        (
            method["name"],
            {item["name"]: item["value"] for item in example["params"]},
            example["result"]["value"],
        )
        for method in schema_of("openrpc.json")["methods"]
        for example in method.get("examples", [])
    ]
    shown = [
        [json.loads(line) for line in block.splitlines()]
        for block in re.findall(r"```json\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    ]
    assert [
        (request["method"], request.get("params", {}), reply["result"]) for request, reply in shown
    ] == published
    assert sorted(map(repr, published)) == sorted(
        repr((example.method, example.params, example.result)) for example in EXAMPLES
    )
