"""What is to be run, before and after the choice of a sandbox."""

from __future__ import annotations

import asyncio
import copy

import pytest

from execclient.govern.sandbox import (
    DangerFullAccess,
    ExternalSandbox,
    ReadOnly,
    SandboxPolicy,
    WorkspaceWrite,
)
from execclient.tools.exec_params import (
    DEFAULT_TIMEOUT_SECONDS,
    Cancellation,
    DefaultTimeout,
    ExecEnv,
    ExecParams,
    Timeout,
    confined,
)

PARAMS = ExecParams(command=("make", "test"), cwd="/w/src", env={"A": "1"}, arg0="gmake")
MARKER = "CODEX_SANDBOX_NETWORK_DISABLED"


def env(policy: SandboxPolicy, platform: str = "linux") -> ExecEnv:
    return confined(PARAMS, policy, cwd="/w", workspace_roots=("/w",), platform=platform)


def test_an_empty_command_and_a_relative_folder_cannot_be() -> None:
    with pytest.raises(ValueError, match="command is empty"):
        ExecParams(command=(), cwd="/")
    with pytest.raises(ValueError, match="cwd is not absolute"):
        ExecParams(command=("ls",), cwd="src")


def test_a_time_limit_is_given_the_default_or_none_but_a_token() -> None:
    assert DEFAULT_TIMEOUT_SECONDS == 10.0
    assert ExecParams(command=("ls",), cwd="/").expiration == DefaultTimeout()
    assert [each.seconds for each in (Timeout(5), DefaultTimeout(), Cancellation(asyncio.Event()))] == [
        5,
        10.0,
        None,
    ]


@pytest.mark.parametrize("policy", [ReadOnly(), WorkspaceWrite(), DangerFullAccess(), ExternalSandbox()])
def test_choosing_a_sandbox_changes_nothing_but_what_is_started(policy: SandboxPolicy) -> None:
    before = copy.deepcopy(PARAMS)

    made = env(policy)

    assert before == PARAMS
    assert (made.command, made.cwd, made.arg0, made.expiration) == (
        PARAMS.command,
        PARAMS.cwd,
        PARAMS.arg0,
        PARAMS.expiration,
    )


def test_a_command_is_told_when_its_sandbox_has_no_network() -> None:
    assert env(WorkspaceWrite()).env == {"A": "1", MARKER: "1"}
    assert env(WorkspaceWrite(network=True)).env == {"A": "1"}
    assert env(DangerFullAccess()).env == {"A": "1"}


def test_a_sandbox_is_named_by_its_platform() -> None:
    assert env(WorkspaceWrite()).sandbox == "linuxSeccomp"
    assert env(DangerFullAccess()).sandbox == "none"
    on_a_mac = env(WorkspaceWrite(), "darwin")
    assert (on_a_mac.sandbox, on_a_mac.env["CODEX_SANDBOX"]) == ("macosSeatbelt", "seatbelt")


def test_what_the_daemon_is_told_has_the_turn_s_folder_and_not_the_command_s() -> None:
    context = env(WorkspaceWrite()).context

    assert context is not None
    assert (context["cwd"], context["workspaceRoots"]) == ("file:///w", ["file:///w"])
    assert env(DangerFullAccess()).context is None
