"""The network of `execserver run`: questions at the terminal, and the message about denied hosts."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TextIO

from execclient.commands.failures import print_message
from execclient.connection.connection import Json
from execclient.govern.network import NetworkAccess, NetworkTarget, denial_text
from execclient.results import NetworkDecision, NetworkRequest
from execprotocol.network import Decision

MAX_DENIED = 1000
"""Hosts that are remembered."""

SHOWN_DENIED = 10
"""Hosts that the message names."""

REFUSED = "the user refused"


class RunNetwork:
    """The network of one command: the `network` of its start.

    Args:
        access: the hosts of the command line. Without a terminal there is no question.
        argv: the command, for questions.
    """

    def __init__(self, access: NetworkAccess, argv: Sequence[str]) -> None:
        self._terminal = _terminal() if access.ask else None
        self._access = access if self._terminal is not None else replace(access, ask=False)
        self._command = shlex.join(argv)
        self._turn = asyncio.Lock()
        self._answers: dict[NetworkTarget, bool] = {}
        self._denied: dict[NetworkTarget, str] = {}

    def wire(self) -> Mapping[str, Json]:
        """The member `networkProxy` of the start."""
        return self._access.wire()

    async def decide(self, request: NetworkRequest) -> Decision:
        """Ask the user, once about each host."""
        target = NetworkTarget.of(request)
        async with self._turn:
            if target not in self._answers:
                self._answers[target] = await self._ask(target)
        return Decision("allow", None, "once") if self._answers[target] else Decision("deny", REFUSED, "once")

    def report(self, decision: NetworkDecision) -> None:
        """Process a decision of the proxy."""
        if decision.decision != "allow" and len(self._denied) < MAX_DENIED:
            self._denied.setdefault(NetworkTarget.of(decision), decision.reason)

    def close(self) -> None:
        """Close the terminal."""
        for stream in self._terminal or ():
            stream.close()

    @property
    def denied(self) -> list[dict[str, Json]]:
        """The hosts that were denied, for scripts."""
        return [
            {"host": target.host, "port": target.port, "protocol": target.protocol, "reason": reason}
            for target, reason in self._denied.items()
        ]

    def print_denied(self) -> None:
        """Print which hosts were denied, and the option that would allow them."""
        for target, reason in list(self._denied.items())[:SHOWN_DENIED]:
            is_unlisted = reason == "not_allowed" or (reason == "not_allowed_local" and target.is_literal)
            way_out = f"; --network-allow {target.host} allows it" if is_unlisted else ""
            print_message(f"denied by the network proxy: {target}: {denial_text(target, reason)}{way_out}")
        if len(self._denied) > SHOWN_DENIED:
            print_message(f"denied by the network proxy: {len(self._denied) - SHOWN_DENIED} more hosts")

    async def _ask(self, target: NetworkTarget) -> bool:
        from execclient.govern.terminal_approver import Lines, network_lines, quoted

        assert self._terminal is not None  # else there are no questions
        keyboard, screen = self._terminal
        lines = Lines(keyboard)
        lines.forget()
        question = ["", "The command asks for a host on the network."]
        question += [*network_lines(target), *quoted("$ ", self._command), ""]
        screen.write("\n".join(question))
        while True:
            screen.write("y: yes; n: no\n> ")
            screen.flush()
            answer = (await lines.next()).strip()
            if answer in ("y", "yes"):
                return True
            if answer in ("n", "no", ""):
                return False


def _terminal() -> tuple[TextIO, TextIO] | None:
    """The terminal of this program, for reading and for writing; None without one."""
    with suppress(OSError):
        # Escaped where the terminal's encoding lacks a character.
        screen = open("/dev/tty", "w", errors="backslashreplace")  # noqa: SIM115 - open until the end
        return open("/dev/tty"), screen
    return None
