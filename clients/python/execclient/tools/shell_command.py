"""`shell_command`: a script for the user's shell, run to its end."""

from __future__ import annotations

from execclient.tools.arguments import ShellCommandArguments
from execclient.tools.command_call import CommandCall
from execclient.tools.context import CallContext
from execclient.tools.function_handler import CommandHandler
from execclient.tools.registry import ToolInvocation
from execclient.tools.result import CallRecord
from execclient.tools.run_to_end import run_to_end
from execclient.tools.shell import prepared


class ShellCommandHandler(CommandHandler[ShellCommandArguments]):
    """Hands the script to the shell of the executor's account as one word."""

    model = ShellCommandArguments

    async def mutates(self, context: CallContext, arguments: ShellCommandArguments) -> bool:
        """Unless the script is known to read only."""
        return not context.reads_only(self.argv(context, arguments))

    def argv(self, context: CallContext, arguments: ShellCommandArguments) -> tuple[str, ...]:
        """The shell with the script."""
        return context.shell.exec_args(arguments.command, login=arguments.login)

    async def prepare(
        self, context: CallContext, arguments: ShellCommandArguments, invocation: ToolInvocation
    ) -> CommandCall:
        """What is to be run."""
        return prepared(context, self.argv(context, arguments), arguments, invocation)

    async def call(
        self, context: CallContext, arguments: ShellCommandArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """Run it."""
        return await run_to_end(context, await self.prepare(context, arguments, invocation))
