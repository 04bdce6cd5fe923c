"""The MCP server: lists the tools of a toolset, and carries out calls of them, for one host or for several.

Rules kept in this file:

1. A call waits for output for `Options.max_wait` at most, so that a host does not give up. Its command runs
   on, and `write_stdin` without input reads on.
2. A call that the host cancels kills the command that it started. A cancelled `write_stdin` only stops
   waiting.
3. A failure is a result with `isError` and a text for the model. Only an unknown tool is an error of the
   protocol.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from execclient.arguments import new_id
from execclient.errors import ExecServerError
from execclient.govern.approvals import ApprovalRequest, Review
from execclient.integrations.mcp.questions import NO_CALL, Questions
from execclient.integrations.mcp.tools import SPECS
from execclient.integrations.mcp.workspace import CannotServe, Options, Workspace
from execclient.tools.errors import TurnAborted
from execclient.tools.specs import ToolSpec, all_specs
from execprotocol import __version__

Context = ServerRequestContext[object, object]

PROGRESS_SECONDS = 5.0
"""Between two progress notifications. A host that resets its time limit at each one has at least 10 s."""

INSTRUCTIONS = (
    "Runs commands and reads and edits files on the machine of an execserver daemon, in a sandbox. A "
    "command that takes longer than one call keeps running: read on with write_stdin, its session_id and "
    "empty chars, until it reports an exit code. Send \\u0003 as chars to interrupt it."
)

SHOWN: Final[Sequence[str]] = ("exec_command", "write_stdin", "apply_patch")


class McpServer:
    """The handlers of the server.

    Args:
        options: the options of the server.
        shared: whether hosts share the commands.
    """

    def __init__(self, options: Options, *, shared: bool = False) -> None:
        self.workspace = Workspace(options, self)
        self._options = options
        self._shared = shared
        self._specs = {spec.name: spec for spec in (*(all_specs()[name] for name in SHOWN), *SPECS)}
        self._questions: dict[str, Questions] = {}
        """By the id of the call."""
        self.server = Server[object](
            "execserver",
            version=__version__,
            title="execserver",
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    async def review(self, request: ApprovalRequest) -> Review | None:
        """See `Reviewer`."""
        questions = self._questions.get(request.call_id)
        if questions is None:  # of a command that runs on after its call
            return Review("denied", NO_CALL)
        return await questions.review(request)

    async def close(self) -> None:
        """End calls, commands and the session."""
        await self.workspace.close()

    # -- handlers

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(spec) for spec in self._specs.values()])

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name not in self._specs:
            raise MCPError(
                types.INVALID_PARAMS, f"Unknown tool: {params.name}; there is {', '.join(self._specs)}"
            )
        questions = Questions(context, params.input_responses or {}, self._options.rules)
        progress = asyncio.create_task(_report_progress(context))
        try:
            return await self._carry_out(params, questions)
        except TurnAborted:
            assert questions.open is not None  # no other review ends a call
            name, form = questions.open
            return types.InputRequiredResult(input_requests={name: types.ElicitRequest(params=form)})
        except (ExecServerError, CannotServe) as error:
            return _failure(str(error))
        finally:
            progress.cancel()

    async def _carry_out(
        self, params: types.CallToolRequestParams, questions: Questions
    ) -> types.CallToolResult:
        toolset = await self.workspace.toolset("" if self._shared else _host(questions.context))
        call_id = f"call_{new_id()}"
        self._questions[call_id] = questions
        try:
            result = await toolset.call(params.name, params.arguments or {}, call_id)
        finally:
            del self._questions[call_id]
            self.workspace.save_soon()
        return types.CallToolResult.model_validate(result.to_mcp())


async def serve_stdio(options: Options) -> int:
    """Serve one host until stdin ends; returns the exit status. Raises as `Workspace.check`."""
    if not os.isatty(0):
        # ^C in the terminal of a host is sent to its servers, too, and is no message for them.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    served = McpServer(options)
    await served.workspace.check()
    try:
        async with stdio_server() as (incoming, outgoing):
            await served.server.run(incoming, outgoing, served.server.create_initialization_options())
    finally:
        await served.close()
    return 0


def _host(context: Context) -> str:
    """The name of the host; empty if it does not say."""
    client = context.session.client_params
    return "" if client is None else client.client_info.name


def _failure(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _tool(spec: ToolSpec) -> types.Tool:
    tool = types.Tool.model_validate(spec.mcp())
    reads = spec in SPECS
    # A hint for the host, which may run such tools without a question.
    tool.annotations = types.ToolAnnotations(read_only_hint=reads, open_world_hint=not reads)
    return tool


async def _report_progress(context: Context) -> None:
    """Send notifications, if the host wants them."""
    seconds = 0.0
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        seconds += PROGRESS_SECONDS
        await context.session.report_progress(seconds, message=f"running for {seconds:.0f} s")
