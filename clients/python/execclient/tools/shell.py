"""The tools that run a command to its end.

`shell`, also as `container.exec` and `local_shell`, runs a program with its arguments; `shell_command` runs a
script in the user's shell; `run_shell_command`, of the profile `co`, runs a script in `sh`.
"""

from __future__ import annotations

from dataclasses import replace

from execclient.connection.connection import Json
from execclient.govern.policy.safe import co_safe
from execclient.tools.arguments import RunShellCommandArguments, ShellArguments, ShellCommandArguments
from execclient.tools.command_call import CommandCall
from execclient.tools.context import CallContext
from execclient.tools.environment import CO_ENVIRONMENT, co_environment
from execclient.tools.exec_params import DefaultTimeout, ExecParams, Timeout
from execclient.tools.function_handler import CommandHandler
from execclient.tools.registry import ToolInvocation
from execclient.tools.result import CallRecord, ToolResult
from execclient.tools.run_to_end import run_to_end


def expiration(timeout_ms: int | None) -> Timeout | DefaultTimeout:
    """The time limit of a call."""
    return DefaultTimeout() if timeout_ms is None else Timeout(timeout_ms / 1000)


def shell_call(
    context: CallContext,
    command: tuple[str, ...],
    arguments: ShellArguments | ShellCommandArguments,
    invocation: ToolInvocation,
) -> CommandCall:
    """The command of a call with either form of arguments. Raises `RespondToModel`."""
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
    """Runs a program with its arguments: nothing is quoted, split or joined."""

    model = ShellArguments
    local_shell = True

    async def mutates(self, context: CallContext, arguments: ShellArguments) -> bool:
        """True unless the command is known to only read."""
        return not context.reads_only(arguments.command)

    async def prepare(
        self, context: CallContext, arguments: ShellArguments, invocation: ToolInvocation
    ) -> CommandCall:
        """The command to run."""
        return shell_call(context, arguments.command, arguments, invocation)

    async def call(
        self, context: CallContext, arguments: ShellArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """Run the command to its end."""
        return await run_to_end(context, await self.prepare(context, arguments, invocation))


class ShellCommandHandler(CommandHandler[ShellCommandArguments]):
    """Runs a script in the user's shell, to which it is passed as one word."""

    model = ShellCommandArguments

    async def mutates(self, context: CallContext, arguments: ShellCommandArguments) -> bool:
        """True unless the script is known to only read."""
        return not context.reads_only(self.argv(context, arguments))

    def argv(self, context: CallContext, arguments: ShellCommandArguments) -> tuple[str, ...]:
        """The command line of the shell with the script."""
        return context.shell.exec_args(arguments.command, login=arguments.login)

    async def prepare(
        self, context: CallContext, arguments: ShellCommandArguments, invocation: ToolInvocation
    ) -> CommandCall:
        """The command to run."""
        return shell_call(context, self.argv(context, arguments), arguments, invocation)

    async def call(
        self, context: CallContext, arguments: ShellCommandArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """Run the command to its end."""
        return await run_to_end(context, await self.prepare(context, arguments, invocation))


TRY_SHORTER = "Use a shorter command, or give it more time."
TRY_OTHERWISE = "Try a different approach."


class RunShellCommandHandler(CommandHandler[RunShellCommandArguments]):
    """Runs a script in `sh` with a small environment, and ends it gently. The turn's sandbox applies."""

    model = RunShellCommandArguments

    async def mutates(self, context: CallContext, arguments: RunShellCommandArguments) -> bool:
        """True unless the script is in the list of safe commands."""
        return not co_safe(arguments.cmd, context.services.config.shell_safe_commands)

    async def prepare(
        self, context: CallContext, arguments: RunShellCommandArguments, invocation: ToolInvocation
    ) -> CommandCall:
        """The command to run."""
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
        """Run the command to its end."""
        call = await self.prepare(context, arguments, invocation)
        record = await run_to_end(context, call, gently=True)
        failure = record.failure
        if failure is None or failure.kind == "rejected":
            return record
        # The kernel will deny the same thing the next time.
        terminal = failure.kind == "denied"
        return replace(record, failure=replace(failure, terminal=terminal))


def outcome(result: ToolResult) -> str | dict[str, Json]:
    """A result in the form for agents of the profile `co`: the output, or a display for a terminal failure.

    Raises:
        ToolError: the model should try something else; the message says what.
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
