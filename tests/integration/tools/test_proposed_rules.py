"""Rules that a model proposes with a call (`prefix_rule`), at a real daemon."""

from __future__ import annotations

from pathlib import Path

from execclient.govern.approval_policy import UNTRUSTED
from execclient.govern.approvals import ApprovalRequest, Review
from execclient.govern.policy.policy import Policy
from execclient.tools.config import ToolsConfig
from tests.support.toolsets import ONE_TRANSPORT, Make, User

CALL = {"command": ["echo", "one", "two"], "prefix_rule": ["echo", "one"]}
WITH_RULES = ToolsConfig(request_rule=True)


class Agreeing:
    """Accepts whatever rule is offered, and keeps the questions."""

    def __init__(self) -> None:
        self.asked: list[ApprovalRequest] = []

    async def review(self, request: ApprovalRequest) -> Review:
        self.asked.append(request)
        return Review("approved_with_amendment", amendment=request.amendment)


@ONE_TRANSPORT
async def test_a_rule_that_is_accepted_is_written_down_and_holds_at_once(make: Make, tmp_path: Path) -> None:
    file, user = tmp_path / "default.rules", Agreeing()
    tools = make(approval=UNTRUSTED, user=user, policy=Policy(amendments=file), config=WITH_RULES)

    first = await tools.call("shell", CALL)
    second = await tools.call("shell", {"command": ["echo", "one", "three"]})

    assert (first.stdout, second.stdout) == ("one two\n", "one three\n")
    assert [request.amendment for request in user.asked] == [("echo", "one")]
    assert file.read_text() == 'prefix_rule(pattern=["echo", "one"], decision="allow")\n'


@ONE_TRANSPORT
async def test_without_the_setting_what_a_model_proposes_is_passed_over(make: Make, tmp_path: Path) -> None:
    user = User(Review("approved"))
    tools = make(approval=UNTRUSTED, user=user, policy=Policy(amendments=tmp_path / "default.rules"))

    result = await tools.call("shell", CALL)

    assert result.stdout == "one two\n"
    assert [request.amendment for request in user.asked] == [("echo", "one", "two")]
    assert not (tmp_path / "default.rules").exists()
