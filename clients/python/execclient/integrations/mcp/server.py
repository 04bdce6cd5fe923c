"""The MCP server: lists the tools of a toolset, and carries out calls of them.

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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from execclient.arguments import new_id
from execclient.errors import ExecServerError
from execclient.govern.approvals import ApprovalRequest, Review
from execclient.govern.queue_approver import PendingApproval
from execclient.integrations.mcp.questions import KEY, Questions, answer, can_ask, question
from execclient.integrations.mcp.tools import SPECS
from execclient.integrations.mcp.workspace import CannotServe, Options, Workspace
from execclient.tools.result import ToolResult
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


@dataclass(eq=False)
class _Call:
    """A call that runs, over one request of the host or several."""

    params: types.CallToolRequestParams
    questions: Questions
    task: asyncio.Task[ToolResult]
    asked: PendingApproval | None = None


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
        self._waiting: dict[str, _Call] = {}
        """The calls that wait for a further request, by `requestState`."""
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
        return await self._questions[request.call_id].review(request)

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
        if params.request_state is not None:
            call = self._waiting.pop(params.request_state, None)
            if call is None or (call.params.name, call.params.arguments) != (params.name, params.arguments):
                return _failure("the question was withdrawn, as the server was started again: call it again")
            self._answered(call, params.input_responses or {})
        else:
            call = self._begin(context, params)
        progress = asyncio.create_task(_report_progress(context))
        try:
            return await self._until_result(context, call)
        except asyncio.CancelledError:
            call.task.cancel()
            await asyncio.wait({call.task})
            raise
        finally:
            progress.cancel()

    def _begin(self, context: Context, params: types.CallToolRequestParams) -> _Call:
        call_id = f"call_{new_id()}"
        questions = Questions(can_ask(context.session), self._options.rules)
        self._questions[call_id] = questions
        task = asyncio.create_task(self._carry_out(call_id, params, "" if self._shared else _host(context)))
        task.add_done_callback(lambda _: self._questions.pop(call_id))
        return _Call(params, questions, task)

    async def _carry_out(self, call_id: str, params: types.CallToolRequestParams, host: str) -> ToolResult:
        toolset = await self.workspace.toolset(host)
        return await toolset.call(params.name, params.arguments or {}, call_id)

    async def _until_result(
        self, context: Context, call: _Call
    ) -> types.CallToolResult | types.InputRequiredResult:
        while True:
            asking = asyncio.create_task(call.questions.waiting.get())
            await asyncio.wait({call.task, asking}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                asking.cancel()
                self.workspace.save_soon()
                return _result(call.task)
            call.asked = asking.result()
            form = question(call.asked.request)
            if not context.session.can_send_request:
                state = new_id()
                self._waiting[state] = call
                call.task.add_done_callback(partial(self._withdrawn, state))
                return types.InputRequiredResult(input_requests={KEY: form}, request_state=state)
            assert isinstance(form.params, types.ElicitRequestFormParams)
            result = await context.session.elicit_form(
                form.params.message, form.params.requested_schema, context.request_id
            )
            call.asked.answer(answer(result))

    def _withdrawn(self, state: str, _: object) -> None:
        self._waiting.pop(state, None)

    @staticmethod
    def _answered(call: _Call, responses: types.InputResponses) -> None:
        response = responses.get(KEY)
        assert call.asked is not None
        if isinstance(response, types.ElicitResult):
            call.asked.answer(answer(response))


def _result(task: asyncio.Task[ToolResult]) -> types.CallToolResult:
    try:
        return types.CallToolResult.model_validate(task.result().to_mcp())
    except (ExecServerError, CannotServe) as error:
        return _failure(str(error))


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
