"""An agent whose model is a script: `python agent.py` asks you, and with `--yes` a program that agrees.

A model of your own replaces `ScriptedModel`; nothing else has to change.
"""

import asyncio
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from execclient import connect
from execclient.govern.approval_policy import ON_REQUEST
from execclient.govern.approvals import ACCEPT, ApprovalRequest, Approvals, Review
from execclient.govern.policy import Policy, PrefixRule, RuleSet
from execclient.govern.sandbox import WorkspaceWrite
from execclient.govern.terminal_approver import TerminalApprover, visible
from execclient.tools import Toolset
from execclient.tools.errors import TurnAborted
from execclient.tools.events import CallBegin, CallDecided, CallEnd, OutputDelta, ToolEvent

Item = dict[str, Any]
RULES = RuleSet((PrefixRule((("git",), ("push",)), "forbidden", justification="people push, models do not"),))


def script() -> Generator[tuple[str, Item], str, str]:
    """What the model does: a call goes out at each `yield`, and what it reads of it comes back."""
    yield "exec_command", {"cmd": "ls; cat notes.txt"}
    asked = yield "exec_command", {"cmd": "sh configure", "tty": True, "yield_time_ms": 1000}
    if running := re.search(r"running with session ID (\d+)", asked):
        session = {"session_id": int(running[1]), "yield_time_ms": 5000}
        yield "write_stdin", {**session, "chars": "demo\n"}
    cleaned = yield "exec_command", {"cmd": "rm -rf build"}
    yield "exec_command", {"cmd": "git push"}
    share = {"cmd": "cp notes.txt ../shared/"}
    shared = yield "exec_command", share
    if "Read-only file system" in shared:
        why = "The notes belong in the shared folder. May I put them there?"
        share |= {"sandbox_permissions": "require_escalated", "justification": why}
        shared = yield "exec_command", share
    results = {"the build is removed": cleaned, "the notes are shared": shared}
    return ", ".join(("" if "code 0" in output else "NOT: ") + claim for claim, output in results.items())


class ScriptedModel:
    """In a model's place: gets the tools and the conversation, and looks at the last output only."""

    def __init__(self) -> None:
        self.script: Generator[tuple[str, Item], Any, str] = script()

    def respond(self, conversation: list[Item], tools: list[Item]) -> Item:
        try:
            name, arguments = self.script.send(conversation[-1].get("output"))
        except StopIteration as end:
            return {"type": "message", "role": "assistant", "content": end.value}
        assert name in [tool["name"] for tool in tools]
        call_id = f"call_{len(conversation)}"
        return {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps(arguments)}


async def run_turn(model: ScriptedModel, toolset: Toolset, task: str) -> str:
    """The loop: ask the model, carry out what it calls, show it what came of that."""
    conversation: list[Item] = [{"type": "message", "role": "user", "content": task}]
    while True:
        item = model.respond(conversation, toolset.specs("openai"))
        conversation.append(item)
        if item["type"] == "message":
            return str(item["content"])
        result = await toolset.call(item["name"], item["arguments"], item["call_id"])
        conversation.append(result.to_openai())


class Screen:
    """Shows what becomes of the calls. Output comes in any pieces, so it is shown when a call ends."""

    output = b""

    def __call__(self, event: ToolEvent) -> None:
        match event:
            case CallBegin():
                print(f"\n{event.tool}: {visible(shlex.join(event.command))}")
            case CallDecided():
                who = event.source if event.decided_by is None else f"{event.source}, then {event.decided_by}"
                told = event.reason or ("in the sandbox" if event.sandboxed else "WITHOUT THE SANDBOX")
                print(f"  {event.decision} ({who}): {visible(told)}")
            case OutputDelta():
                self.output += event.chunk
            case CallEnd():
                for line in self.output.decode(errors="replace").splitlines():
                    print(f"  | {visible(line)}")
                self.output = b""
                code = "still running" if event.process_id else f"exit code {event.exit_code}"
                print(f"  -> {event.failure or code}")


class Yes:
    """A program in the place of a person; it agrees to everything."""

    async def review(self, request: ApprovalRequest) -> Review:
        return ACCEPT


async def main(base: Path) -> None:
    project, shared = base / "project", base / "shared"
    for folder in (project / "build", shared):
        folder.mkdir(parents=True)
    (project / "notes.txt").write_text("version 2 is faster\n")
    (project / "configure").write_text('printf "Name? "; read name; echo "name = $name" | tee config\n')

    user = Yes() if "--yes" in sys.argv else TerminalApprover(sys.stdin, sys.stdout)
    # Folders for temporary files could be written by default, and here everything is in one of them.
    sandbox = WorkspaceWrite(exclude_tmpdir=True, exclude_slash_tmp=True)
    async with (
        connect("stdio:") as executor,
        Toolset(
            executor,
            policy=Policy(RULES),
            approvals=Approvals(user=user, policy=ON_REQUEST),
            sandbox=sandbox,
            cwd=str(project),
            events=Screen(),
        ) as toolset,
    ):
        try:
            print("\nThe model:", await run_turn(ScriptedModel(), toolset, "Clean up, and share the notes."))
        except TurnAborted:
            print("\nYou ended the turn.")
    for folder in (project, shared):
        print(f"{folder.name}:", *sorted(path.name for path in folder.iterdir()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="agent-") as made:
        asyncio.run(main(Path(made)))
