"""A model that answers by a script, over the Responses API of OpenAI, for a host that asks it by HTTP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Item = dict[str, Any]
Outputs = dict[str, str]
"""The output of each call until now, by its id."""
Step = Callable[[Outputs], Item | None]
"""What the model says next; None for the end of the turn."""


class ScriptedModel:
    """The model.

    Args:
        script: asked for each answer.
    """

    def __init__(self, script: Step) -> None:
        self.url = ""
        self.outputs: Outputs = {}
        self.tools: list[Item] = []
        """The tools that the host offered last."""
        self._script = script
        self._answers = 0

    async def respond(self, request: Request) -> Response:
        """One answer, as server-sent events."""
        body = await request.json()
        self.tools = body.get("tools", [])
        for item in body["input"]:
            if item.get("type", "").endswith("_call_output"):
                self.outputs[item["call_id"]] = _text(item["output"])
        item = self._script(self.outputs) or _message("done")
        self._answers += 1
        answer = {"id": f"response-{self._answers}", "usage": None}
        events: list[Item] = [
            {"type": "response.created", "response": answer},
            {"type": "response.output_item.done", "output_index": 0, "item": {**item, "status": "completed"}},
            {"type": "response.completed", "response": answer},
        ]
        lines = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
        return Response(lines, media_type="text/event-stream")


def call(call_id: str, name: str, namespace: str, **arguments: object) -> Item:
    """A call of a tool."""
    return {
        "type": "function_call",
        "id": f"item-{call_id}",
        "call_id": call_id,
        "name": name,
        "namespace": namespace,
        "arguments": json.dumps(arguments),
    }


@contextmanager
def serving(script: Step) -> Iterator[ScriptedModel]:
    """The model on a port of its own, until the end of the block."""
    model = ScriptedModel(script)
    app = Starlette(routes=[Route("/v1/responses", model.respond, methods=["POST"])])
    listener = socket.create_server(("127.0.0.1", 0))
    model.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],), name="model")
    thread.start()
    try:
        yield model
    finally:
        server.should_exit = True
        thread.join()


def _message(text: str) -> Item:
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "id": "message", "content": content}


def _text(output: str | Sequence[Item]) -> str:
    if isinstance(output, str):
        return output
    return "".join(str(part.get("text", "")) for part in output)
