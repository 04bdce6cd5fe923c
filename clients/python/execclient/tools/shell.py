"""`shell`, also as `container.exec` and `local_shell`: a program and its arguments, run to its end."""

from __future__ import annotations

from execclient.tools.arguments import ShellArguments, ShellCommandArguments
from execclient.tools.command_call import CommandCall
from execclient.tools.context import CallContext
from execclient.tools.exec_params import DefaultTimeout, ExecParams, Timeout
from execclient.tools.function_handler import CommandHandler
from execclient.tools.registry import ToolInvocation
from execclient.tools.result import CallRecord
from execclient.tools.run_to_end import run_to_end


def expiration(timeout_ms: int | None) -> Timeout | DefaultTimeout:
    """The time limit of a call."""
    return DefaultTimeout() if timeout_ms is None else Timeout(timeout_ms / 1000)


def prepared(
    context: CallContext,
    command: tuple[str, ...],
    arguments: ShellArguments | ShellCommandArguments,
    invocation: ToolInvocation,
) -> CommandCall:
    """What is to be run, of either form of the arguments. Raises `RespondToModel`."""
    params = ExecParams(
        command=command,
        cwd=context.resolve(arguments.workdir),
        expiration=expiration(arguments.timeout_ms),
        env=context.env(invocation.call_id),
        sandbox_permissions=context.permissions(arguments.sandbox_permissions),
        justification=arguments.justification,
    )
    return context.command_call(
        invocation.call_id, invocation.tool_name, params, prefix_rule=arguments.prefix_rule
    )


class ShellHandler(CommandHandler[ShellArguments]):
    """Runs the words as they are: nothing is quoted, split or joined."""

    model = ShellArguments
    local_shell = True

    async def mutates(self, context: CallContext, arguments: ShellArguments) -> bool:
        """Unless the command is known to read only."""
        return not context.reads_only(arguments.command)

    async def prepare(
        self, context: CallContext, arguments: ShellArguments, invocation: ToolInvocation
    ) -> CommandCall:
        """What is to be run."""
        return prepared(context, arguments.command, arguments, invocation)

    async def call(
        self, context: CallContext, arguments: ShellArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """Run it."""
        return await run_to_end(context, await self.prepare(context, arguments, invocation))
