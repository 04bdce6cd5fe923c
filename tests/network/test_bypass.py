"""Attempts to get out of a managed network are refused, and each is successful without it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.network import attempts
from tests.network.attempts import ALL, ATTEMPTS, LIMITED, LISTED, SUCCEEDED, Attempt
from tests.network.internet import (
    ABSTRACT,
    NAMES,
    OPEN_HTTP,
    OPEN_SOCKS,
    PERMITTED,
    PERMITTED_V6,
    Arrival,
    Internet,
)
from tests.sandbox.host import Host
from tests.sandbox.profiles import WORKSPACE
from tests.support.wire import Json

PROXY: dict[str, Json] = {"enabled": True, "enableSocks5": True}
LOCAL_NAMES = [*NAMES, "hosts-file.test"]
SETTINGS: dict[str, dict[str, Json]] = {
    LISTED: {
        "domains": {name: "allow" for name in LOCAL_NAMES if not name.startswith("evil")}
        | {"*.rebinding.test": "allow"}
    },
    ALL: {"domains": {"*": "allow", "**.evil.test": "deny"}},
    LIMITED: {"domains": {"ok.test": "allow"}, "mode": "limited"},
}
LACKING = {
    errno.EPROTONOSUPPORT,
    errno.EAFNOSUPPORT,
    errno.ESOCKTNOSUPPORT,
    errno.ENOSYS,
    errno.ENOENT,
    errno.ENODEV,
    errno.EOPNOTSUPP,
    errno.EPERM,
}
"""Errors of a kernel without a feature, or with the feature turned off, outside."""

SECONDS = 60


def run(
    internet: Internet, host: Host, name: str, which: list[Attempt], members: Any
) -> dict[str, str | None]:
    """Make attempts in one command; how each got out, or null."""
    tree = host.tree()
    sandboxed = "networkProxy" in members
    facts = {
        "run": name,
        "names": [attempt.name for attempt in which],
        "outside": not sandboxed,
        "holder": internet.pid,
        "held": int((internet.folder / "held").read_text()),
        "network": os.stat(f"/proc/{internet.pid}/ns/net").st_ino,
        "victim": host.victim.pid,
        "abstract": ABSTRACT,
        "daemon": host.server.url.removeprefix("unix://"),
        **{each: str(internet.folder / each) for each in ("socket", "datagrams", "descriptors")},
    }
    program = tree.ws / "attempts.py"
    program.write_bytes(Path(attempts.__file__).read_bytes())
    variables = members.pop("variables", {})
    if sandboxed:
        members["sandbox"] = tree.context(WORKSPACE)
    process = host.start(
        tree, ["python3", str(program), json.dumps(facts)], env=tree.env | variables, **members
    )
    done = host.finish(process, SECONDS)
    assert done.exit_code == 0, done
    results = {result["name"]: result for result in map(json.loads, done.output.splitlines())}
    arrivals = internet.arrivals()
    return {
        attempt.name: way_out(internet, attempt, name, results[attempt.name], arrivals) for attempt in which
    }


def way_out(
    internet: Internet, attempt: Attempt, name: str, result: dict[str, Any], arrivals: list[Arrival]
) -> str | None:
    """How an attempt got out; null if it did not, and why if the kernel lacks what it uses."""
    if result["output"] == SUCCEEDED:
        return SUCCEEDED
    if internet.denied_secret in result["output"]:
        return "it has the answer of a denied server"
    token = attempts.token(name, attempt.name)
    for arrival in arrivals:
        if token in arrival.data and not is_permitted(attempt, arrival):
            return f"it was heard: {arrival}"
    error = result["error"]
    if attempt.may_lack and error is not None and error[0] in LACKING:
        return f"lacking: {error[1]}"
    return None


def is_permitted(attempt: Attempt, arrival: Arrival) -> bool:
    if arrival.kind == "name":
        return arrival.data.endswith(".rebinding.test")
    if arrival.to not in (PERMITTED, PERMITTED_V6):
        return False
    return attempt.rules != LIMITED or arrival.data.startswith(("GET ", "HEAD "))


def test_there_are_more_than_enough_attempts() -> None:
    assert len(ATTEMPTS) >= 60


@pytest.mark.parametrize("rules", SETTINGS)
def test_every_attempt_is_refused(internet: Internet, host: Host, rules: str) -> None:
    which = [attempt for attempt in ATTEMPTS.values() if attempt.rules == rules]
    proxy = {"networkProxy": {"proxy": PROXY | SETTINGS[rules]}, "enforceManagedNetwork": True}
    found = run(internet, host, f"in{rules}", which, proxy)
    out = {name: way for name, way in found.items() if way is not None and not way.startswith("lacking")}
    assert out == {}


@pytest.mark.parametrize("by_proxy", [False, True], ids=["directly", "by an open proxy"])
def test_every_attempt_is_successful_without_the_sandbox(
    internet: Internet, host: Host, by_proxy: bool
) -> None:
    which = [attempt for attempt in ATTEMPTS.values() if attempt.by_proxy == by_proxy]
    variables = {
        "HTTP_PROXY": f"http://127.0.0.1:{OPEN_HTTP}",
        "ALL_PROXY": f"socks5h://127.0.0.1:{OPEN_SOCKS}",
    }
    found = run(
        internet,
        host,
        "openproxy" if by_proxy else "direct",
        which,
        {"variables": variables if by_proxy else {}},
    )
    assert [name for name, way in found.items() if way is None] == []
    shown = [name for name, way in found.items() if not (way or "").startswith("lacking")]
    assert len(shown) >= 60
