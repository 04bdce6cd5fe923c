"""Who is asked what before a command runs, and what the model is told, held against the reference.

The conversations are held with everything switched to parity: rules that see no more than the reference's,
allowing rules that lift the sandbox, and a second attempt that an earlier approval covers. By default we are
stricter in each of these: `tests/unit/client/govern/policy/test_decision.py`, `tests/integration/tools`.
"""

from __future__ import annotations

import json

import pytest

from tests.support.wire import Json
from tests.vectors.cases import load
from tests.vectors.tool_calls import Conversations, assert_matches, filled_value

VECTORS = load("approvals")
CONVERSATIONS = Conversations(VECTORS.cases, VECTORS.rules, {})

LISTS_THE_OUTSIDE = "; ls <OUT>"
"""What other conversations left outside is listed by these, and each of ours has an outside of its own: only
what the call itself has written is compared."""


def name(case: Json) -> str:
    policy = case["policy"] if isinstance(case["policy"], str) else "granular"
    return f"{case['label']}/{policy}/{json.loads(case['args']).get('cmd', '?')}"


@pytest.mark.parametrize("case", VECTORS.cases, ids=VECTORS.ids(name))
def test_a_call_is_asked_about_and_answered_as_by_the_reference(case: Json) -> None:
    answered = CONVERSATIONS.answered(case)

    expected = filled_value(case["asked"], answered.fills)
    assert [request.to_json() for request in answered.asked] == [
        {member: value for member, value in each.items() if member != "method"} for each in expected
    ]
    if LISTS_THE_OUTSIDE in case["args"]:
        written = [line for line in case["output"].splitlines() if line.startswith("acc")]
        assert answered.output.splitlines()[-len(written) :] == written
        return
    assert_matches(answered, case["output"])
