"""What a child inherits."""

from __future__ import annotations

from typing import Any

import pytest

from execprotocol.model import decode
from execprotocol.process import EnvPolicy
from execserver.processes.child_environment import child_environment

OWN = {
    "HOME": "/h",
    "PATH": "/bin",
    "LANG": "C",
    "TERM": "xterm",
    "API_TOKEN": "t",
    "my_key": "k",
    "NOTIFY_SOCKET": "/run/n",
    "LISTEN_FDS": "1",
    "EXECSERVER_LISTEN": "stdio",
}


def policy(**changes: Any) -> EnvPolicy:
    members = {"inherit": "all", "ignoreDefaultExcludes": True, "exclude": [], "set": {}, "includeOnly": []}
    return decode(EnvPolicy, members | changes)


def test_without_a_policy_the_environment_is_exactly_what_was_sent() -> None:
    assert child_environment(OWN, None, {"A": "1"}) == {"A": "1"}


def test_all_inherits_everything_but_what_was_the_service_managers() -> None:
    names = set(child_environment(OWN, policy(), {}))
    assert names == {"HOME", "PATH", "LANG", "TERM", "API_TOKEN", "my_key"}


def test_core_keeps_the_core_set() -> None:
    assert set(child_environment(OWN, policy(inherit="core"), {})) == {"HOME", "PATH", "LANG"}


def test_default_excludes_drop_secrets_in_any_case() -> None:
    names = set(child_environment(OWN, policy(ignoreDefaultExcludes=False), {"B_TOKEN": "1"}))
    assert names == {"HOME", "PATH", "LANG", "TERM", "B_TOKEN"}


def test_set_comes_after_exclude_and_the_overlay_after_everything() -> None:
    variables = child_environment(
        OWN, policy(inherit="none", set={"X": "1", "Y": "2"}, exclude=["X"]), {"Y": "laid over"}
    )
    assert variables == {"X": "1", "Y": "laid over"}


def test_include_only_filters_what_was_set_but_not_the_overlay() -> None:
    variables = child_environment(OWN, policy(set={"S": "1"}, includeOnly=["h?me", "pa*"]), {"E": "e"})
    assert variables == {"HOME": "/h", "PATH": "/bin", "E": "e"}


def test_brackets_in_patterns_stand_for_themselves() -> None:
    assert "HOME" in child_environment(OWN, policy(exclude=["[H]OME"]), {})


@pytest.mark.parametrize(
    "name", ["OPENAI_IDENTITY_TOKEN_FILE", "NOTIFY_SOCKET", "LISTEN_PID", "EXECSERVER_X"]
)
def test_some_names_never_reach_a_child(name: str) -> None:
    assert child_environment({}, policy(set={name: "1"}), {name: "1", "A": "1"}) == {"A": "1"}
