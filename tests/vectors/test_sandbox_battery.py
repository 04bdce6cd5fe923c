"""The escape battery: what a confined command tries to do, and whether it can."""

from __future__ import annotations

import re

import pytest

from tests.sandbox.host import Host
from tests.support.wire import Json
from tests.vectors.battery import act
from tests.vectors.cases import COLUMN, load
from tests.vectors.policies import PERMISSIONS, prepare, sandbox

VECTORS = load("sandbox_battery")

WORDS = (
    b"operation not permitted",
    b"permission denied",
    b"read-only file system",
    b"seccomp",
    b"sandbox",
    b"landlock",
    b"failed to write file",
)
SIGSYS = 128 + 31

ON_A_PAIR = re.compile(r"socket\.socketpair\(\); a\.(send|getsockopt)\(")
"""Denied by the reference, and allowed here on purpose (C23 of `docs/protocol.md`): threads of asyncio and
children of Node live on it."""


@pytest.mark.parametrize("policy", sorted(PERMISSIONS))
def test_policy_lets_programs_run_at_all(host: Host, policy: str) -> None:
    tree = prepare(host, policy)
    done = host.shell(tree, "python3 -c 'print(6 * 7)' && cat a.txt", sandbox(policy, tree))
    assert (done.exit_code, done.output) == (0, b"42\na\n"), done


def test_policies_of_the_file_are_the_ones_we_know() -> None:
    named = {*VECTORS.policies, *(case["policy"] for case in VECTORS.cases)}
    assert named <= set(PERMISSIONS)


@pytest.mark.parametrize("case", VECTORS.cases, ids=VECTORS.ids(lambda case: str(case["id"])))
def test_act_ends_as_expected(host: Host, case: Json) -> None:
    verdict = act(host, case)
    expected = "allowed" if ON_A_PAIR.search(case["script"]) else case[COLUMN]
    assert ("allowed" if verdict.allowed else "denied") == expected, verdict.done
    done = verdict.done
    says_so = any(word in done.output.lower() for word in WORDS) or done.exit_code == SIGSYS
    assert done.denied is (case["policy"] != "none" and done.exit_code != 0 and says_so), done
