"""Every forbidden act works without a sandbox: a denial that nobody could miss proves nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sandbox.host import Host
from tests.support.wire import Json
from tests.vectors.battery import act_without_sandbox, lacking, showing
from tests.vectors.cases import COLUMN, Vectors, load
from tests.vectors.conftest import Hosts

BATTERY = load("sandbox_battery")
FORBIDDEN = Vectors(
    BATTERY.stem, {}, tuple(case for case in BATTERY.cases if "denied" in (case["expect"], case[COLUMN]))
)

CONFINEMENT = ("NoNewPrivs", "Seccomp", "CapEff", "CapBnd")
"""Lines of `/proc/PID/status` that tell whether the kernel limits a process."""


def limits_of(status: str) -> dict[str, str]:
    return {name: re.search(rf"^{name}:\s*(\S+)", status, re.M)[1] for name in CONFINEMENT}  # type: ignore[index]


def test_command_without_a_sandbox_is_not_limited_at_all(hosts: Hosts) -> None:
    host = hosts.get("root")
    done = host.shell(host.tree(), "cat /proc/self/status")
    assert limits_of(done.output.decode()) == limits_of(Path("/proc/self/status").read_text())
    assert done.sandbox_type == "none"


@pytest.mark.parametrize("case", FORBIDDEN.cases, ids=FORBIDDEN.ids(lambda case: str(case["id"])))
def test_forbidden_act_works_without_a_sandbox(host: Host, hosts: Hosts, case: Json) -> None:
    how = showing(case)
    if how is not None and how.not_as_root and host.user.is_root:
        host = hosts.get("user")
    verdict = act_without_sandbox(host, case)
    if not verdict.allowed and not host.user.is_root:
        # Not for everybody even without a sandbox: then for root.
        if not hosts.has("root"):
            pytest.skip(f"only root can do it anyway, and we are not root: {verdict.done}")
        verdict = act_without_sandbox(hosts.get("root"), case)
    if not verdict.allowed:
        # Root, with every capability and no filter (shown above), cannot do it: this machine cannot.
        pytest.skip(f"nobody can do it on this machine: {lacking(case) or verdict.done}")
