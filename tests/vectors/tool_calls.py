"""Recorded tool calls, made again through a toolset at a real daemon.

Calls of one label, policy and sandbox were made in one conversation, in their order: so they are here, each
conversation in a workspace of its own with the file `a.txt`. What was masked in the recordings is filled in.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from execclient import Executor, connect
from execclient.govern.approval_policy import approval_policy
from execclient.govern.approvals import ApprovalRequest, Approvals, Review
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.rule_files import parse_rules
from execclient.govern.sandbox import sandbox_policy
from execclient.shells import BASH, Shell
from execclient.tools.config import ToolsConfig
from execclient.tools.payloads import CustomPayload, ToolPayload
from execclient.tools.toolset import Toolset
from tests.support.wire import Json, server_command

BASE = "/var/tmp"
"""Not /tmp, which a workspace policy makes writable."""

PARITY = ToolsConfig(retry_unasked=True, filter_secrets=False)
"""As the reference is, where we are stricter by default."""


@dataclass
class Answered:
    """What came of one recorded call."""

    output: str
    asked: list[ApprovalRequest] = field(default_factory=list)
    fills: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Recorder:
    """Answers every question as it was answered then."""

    decision: str = "decline"
    asked: list[ApprovalRequest] = field(default_factory=list)

    async def review(self, request: ApprovalRequest) -> Review:
        self.asked.append(request)
        if self.decision == "fn":  # the rule that was proposed
            return Review("approved_with_amendment", amendment=request.amendment)
        return Review.parse(self.decision)


def conversation(case: Json) -> str:
    """The conversation of a case."""
    return json.dumps([case["label"], case.get("policy"), case.get("sandbox")])


class Conversations:
    """The calls of a file of vectors; each conversation is held when the first of its cases is looked at.

    Args:
        cases: all of them, in their order.
        rules: the text of a rule file.
        settings: policy and sandbox of cases that do not say, by label.
    """

    def __init__(self, cases: tuple[Json, ...], rules: str, settings: Mapping[str, tuple[str, str]]) -> None:
        self._cases = cases
        self._rules = rules
        self._settings = settings

    def answered(self, case: Json) -> Answered:
        """What came of a case."""
        mine = [each for each in self._cases if conversation(each) == conversation(case)]
        index = next(number for number, each in enumerate(mine) if each is case)
        return self._held(conversation(case))[index]

    @functools.cache  # noqa: B019 - one for each module, as long as it is
    def _held(self, name: str) -> list[Answered]:
        cases = [each for each in self._cases if conversation(each) == name]
        return asyncio.run(self._hold(cases))

    async def _hold(self, cases: list[Json]) -> list[Answered]:
        with _folders() as (workspace, outside, home):
            env = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "EXECSERVER_CONFIG": ""}
            command = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), *server_command()]
            async with connect("stdio:", command=[*command, "--listen", "stdio"]) as executor:
                fills = {"OUT": str(outside), "CWD": str(workspace), "HOME": str(home)}
                return await self._talk(executor, cases, workspace, fills)

    async def _talk(
        self, executor: Executor, cases: list[Json], workspace: Path, fills: Mapping[str, str]
    ) -> list[Answered]:
        policy, sandbox = self._settings.get(cases[0]["label"], ("on-request", "danger-full-access"))
        user = Recorder()
        toolset = Toolset(
            executor,
            policy=Policy(parse_rules(self._rules, "vectors.rules"), parity=True, bypass_sandbox=True),
            approvals=Approvals(user=user, policy=approval_policy(cases[0].get("policy", policy))),
            sandbox=sandbox_policy(cases[0].get("sandbox", sandbox)),
            cwd=str(workspace),
            config=PARITY,
            shell=Shell(BASH, "/bin/bash"),
        )
        answers = []
        async with toolset:
            last_session = ""
            for case in cases:
                user.decision, user.asked = case.get("decision", "decline"), []
                marks = {f"<{name}>": value for name, value in fills.items()} | {"<ID>": last_session}
                result = await toolset.call(case["tool"], _payload(case, marks))
                last_session = result.process_id or last_session
                answers.append(Answered(result.content, user.asked, fills))
        return answers


def _payload(case: Json, marks: Mapping[str, str]) -> str | ToolPayload:
    arguments = case["args"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    for mark, value in marks.items():
        text = text.replace(f'"{mark}"', value if mark == "<ID>" else f'"{value}"').replace(mark, value)
    return CustomPayload(text) if case["tool"] == "apply_patch" and text.startswith("***") else text


@contextmanager
def _folders() -> Iterator[tuple[Path, Path, Path]]:
    root = Path(tempfile.mkdtemp(prefix="v", dir=BASE))
    try:
        folders = [root / name for name in ("ws", "out", "home")]
        for folder in folders:
            folder.mkdir()
        (folders[0] / "a.txt").write_text("hello\n")
        yield folders[0], folders[1], folders[2]
    finally:
        shutil.rmtree(root)


# -- comparing

MASKS = {
    "<HEX6>": "[0-9a-f]{6}",
    "<SECS>": r"\d+(?:\.\d+)?",
    "<ID>": r"\d+",
    "<UUID>": "[0-9a-f-]+",
    "user@host": r"\w+@[\w.-]+",
    "/dev/pts/0": r"/dev/pts/\d+",
}

COUNT = re.compile(r"Original token count: (\d+)")


def assert_matches(answered: Answered, expected: str) -> None:
    """The text is what was recorded. Where a masked path is in it, its length is ours and so is the count."""
    masked = any(f"<{name}>" in expected for name in answered.fills) or "user@host" in expected
    text = filled_text(expected, answered.fills)
    if masked and (found := COUNT.search(answered.output)):
        body = answered.output.partition("Output:\n")[2]
        assert int(found[1]) == -(-len(body.encode()) // 4)
        text = COUNT.sub(found[0], text)
    pattern = re.escape(text)
    for mask, expression in MASKS.items():
        pattern = pattern.replace(re.escape(mask), expression)
    assert re.fullmatch(pattern, answered.output), f"expected {text!r}, got {answered.output!r}"


def filled_text(text: str, fills: Mapping[str, str]) -> str:
    """A recorded text with our paths."""
    for name, value in fills.items():
        text = text.replace(f"<{name}>", value)
    return text


def filled_value(value: Json, fills: Mapping[str, str]) -> Json:
    """The same for a value of JSON."""
    return json.loads(filled_text(json.dumps(value), fills))
