"""The base classes of the handlers in this package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic

from execclient.tools.arguments import Parsed, parse
from execclient.tools.command_call import CommandCall
from execclient.tools.context import CallContext
from execclient.tools.errors import UnsupportedCall
from execclient.tools.payloads import FunctionPayload, LocalShellPayload, ToolPayload
from execclient.tools.registry import ToolInvocation, ToolKind
from execclient.tools.result import CallRecord


def context_of(invocation: ToolInvocation) -> CallContext:
    """The context of a call from a toolset.

    Raises:
        UnsupportedCall: the call does not come from a toolset.
    """
    if not isinstance(invocation.toolset, CallContext):
        raise UnsupportedCall(f"{invocation.tool_name} is called through a Toolset")
    return invocation.toolset


class FunctionHandler(ABC, Generic[Parsed]):
    """Handles function calls with arguments of a pydantic model."""

    kind: ToolKind = "function"
    model: type[Parsed]
    local_shell: ClassVar[bool] = False
    """Whether it also handles the shell that a model family has built in."""
    beside_others: bool = False
    """Whether calls that change nothing also run beside one that may change something."""

    def matches_kind(self, payload: ToolPayload) -> bool:
        """See `ToolHandler`."""
        return isinstance(payload, FunctionPayload) or (
            self.local_shell and isinstance(payload, LocalShellPayload)
        )

    def arguments(self, invocation: ToolInvocation) -> Parsed:
        """The arguments of a call. Raises `ArgumentError`."""
        payload = invocation.payload
        if isinstance(payload, LocalShellPayload) and isinstance(payload.params, self.model):
            return payload.params
        assert isinstance(payload, FunctionPayload)
        return parse(self.model, payload.arguments)

    async def is_mutating(self, invocation: ToolInvocation) -> bool:
        """Whether the call may change something. Raises `ArgumentError`."""
        return await self.mutates(context_of(invocation), self.arguments(invocation))

    async def handle(self, invocation: ToolInvocation) -> CallRecord:
        """Carry out the call. Raises `ToolError`."""
        return await self.call(context_of(invocation), self.arguments(invocation), invocation)

    @abstractmethod
    async def mutates(self, context: CallContext, arguments: Parsed) -> bool:
        """Whether the call may change something."""

    @abstractmethod
    async def call(self, context: CallContext, arguments: Parsed, invocation: ToolInvocation) -> CallRecord:
        """Carry out the call."""


class CommandHandler(FunctionHandler[Parsed]):
    """Handles calls that run a command."""

    async def command(self, invocation: ToolInvocation) -> CommandCall:
        """The command of a call, not started. Raises `RespondToModel`."""
        return await self.prepare(context_of(invocation), self.arguments(invocation), invocation)

    @abstractmethod
    async def prepare(
        self, context: CallContext, arguments: Parsed, invocation: ToolInvocation
    ) -> CommandCall:
        """The command of a call."""
