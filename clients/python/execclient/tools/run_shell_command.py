"""`run_shell_command`, of the profile `co`: a script for `sh`, in a small environment, ended gently."""

from __future__ import annotations

from dataclasses import replace

from execclient.connection.connection import Json
from execclient.govern.policy.safe import co_safe
from execclient.tools.arguments import RunShellCommandArguments
from execclient.tools.command_call import CommandCall
from execclient.tools.context import CallContext
from execclient.tools.environment import CO_ENVIRONMENT, co_environment
from execclient.tools.exec_params import ExecParams, Timeout
from execclient.tools.function_handler import CommandHandler
from execclient.tools.registry import ToolInvocation
from execclient.tools.result import CallRecord, ToolResult
from execclient.tools.run_to_end import run_to_end

TRY_SHORTER = "Use a shorter command, or give it more time."
TRY_OTHERWISE = "Try a different approach."


class RunShellCommandHandler(CommandHandler[RunShellCommandArguments]):
    """Approval is what guards it; the sandbox of the turn holds all the same."""

    model = RunShellCommandArguments

    async def mutates(self, context: CallContext, arguments: RunShellCommandArguments) -> bool:
        """Unless the script is on the list."""
        return not co_safe(arguments.cmd, context.services.config.shell_safe_commands)

    async def prepare(
        self, context: CallContext, arguments: RunShellCommandArguments, invocation: ToolInvocation
    ) -> CommandCall:
        """What is to be run."""
        config = context.services.config
        params = ExecParams(
            command=("sh", "-c", arguments.cmd),
            cwd=context.cwd,
            expiration=Timeout(min(arguments.timeout, config.shell_max_timeout)),
            env=co_environment(dependencies=config.dependency_env, explicit=config.env),
        )
        return context.command_call(
            invocation.call_id, invocation.tool_name, params, environment=CO_ENVIRONMENT
        )

    async def call(
        self, context: CallContext, arguments: RunShellCommandArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """Run it."""
        call = await self.prepare(context, arguments, invocation)
        record = await run_to_end(context, call, gently=True)
        failure = record.failure
        if failure is None or failure.kind == "rejected":
            return record
        # What the kernel does not permit it will not permit the next time either.
        terminal = failure.kind == "denied"
        return replace(record, failure=replace(failure, terminal=terminal))


def outcome(result: ToolResult) -> str | dict[str, Json]:
    """A result as that profile's agents take it: the output, or a display that ends the matter.

    Raises:
        ToolError: it makes sense that the model tries something else; the message says what.
    """
    failure = result.failure
    if failure is None:
        return result.aggregated_output
    if failure.terminal:
        return {"display": result.aggregated_output or failure.message, "error": True}
    advice = TRY_SHORTER if failure.kind == "timeout" else TRY_OTHERWISE
    output = f"\n{result.aggregated_output}" if result.aggregated_output else ""
    advised = replace(failure, message=f"{failure.message}. {advice}{output}")
    replace(result, failure=advised).check()
    raise AssertionError("a failure raises")
