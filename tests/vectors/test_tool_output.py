"""The texts that a model gets, held against the reference."""

from __future__ import annotations

import re

import pytest

from execclient.tools.environment import EXEC_ENVIRONMENT
from tests.support.wire import Json
from tests.vectors.cases import load
from tests.vectors.tool_calls import MASKS, Answered, Conversations, assert_matches

VECTORS = load("tool_output")
CONVERSATIONS = Conversations(
    VECTORS.cases,
    "",
    {
        "patch-ws": ("on-request", "workspace-write"),
        "patch-ro": ("never", "read-only"),
        "patch-untrusted": ("untrusted", "workspace-write"),
    },
)

OUR_OWN_TOOLS = ("shell", "shell_command", "container.exec", "local_shell", "apply_patch")
"""The reference has none of these any more and calls them unsupported. We serve them, for hosts and models
that know them (GUARDRAILS 5.4, S0.36)."""

NO_ANSWER = ("nosuchtool", "local_shell_call")
"""For these the recording has no text: the reference's host drops them. A model that calls what is not there
is told so here."""

ENVIRONMENT = "env | sort"
"""What a command finds around it is the machine's, and some names are the reference's own: its version, its
home. The variables that the tools set are compared, and that a session and a call are named."""


@pytest.mark.parametrize(
    "case",
    VECTORS.cases,
    ids=VECTORS.ids(lambda case: f"{case['label']}/{case['tool']}/{str(case['args'])[:60]}"),
)
def test_a_model_is_told_what_the_reference_tells_it(case: Json) -> None:
    answered = CONVERSATIONS.answered(case)

    if case["tool"] in NO_ANSWER:
        assert case["output"] is None
        assert answered.output == f"unsupported call: {case['tool']}"
        return
    if case["label"] == "others" and case["tool"] in OUR_OWN_TOOLS:
        assert case["output"].startswith("unsupported ")
        assert not answered.output.startswith("unsupported ")
        return
    assert len(answered.asked) == case["asked"]
    if ENVIRONMENT in str(case["args"]):
        assert_environment(answered)
    elif case["output"] is None:
        assert_shape(answered, case["output_shape"])
    else:
        assert_matches(answered, case["output"])


def assert_environment(answered: Answered) -> None:
    variables = dict(line.split("=", 1) for line in answered.output.partition("Output:\n")[2].splitlines())
    assert {name: variables.get(name) for name in EXEC_ENVIRONMENT} == dict(EXEC_ENVIRONMENT)
    assert {"CODEX_SESSION_ID", "CODEX_THREAD_ID", "CODEX_TOOL_CALL_ID"} <= set(variables)


def assert_shape(answered: Answered, shape: Json) -> None:
    """A long text: its beginning, what is said of the cut, and how much is on each side of it."""
    header = re.escape(shape["header"])
    for mask, expression in MASKS.items():
        header = header.replace(re.escape(mask), expression)
    found = re.match(header + "Output:\n", answered.output)
    assert found, answered.output[:200]
    text = answered.output[found.end() :]
    assert text.startswith(shape["prefix"])
    head, marker, tail = text[len(shape["prefix"]) :].partition(shape["marker"])
    assert marker
    assert (len(head.encode()), len(tail.encode())) == (shape["head_bytes"], shape["tail_bytes"])
