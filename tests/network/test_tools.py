"""Tools that programmers use reach a permitted host through the proxy, and no other one."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.network.internet import Internet
from tests.network.packages import CONTENT, WHEEL
from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import WORKSPACE
from tests.support.wire import Json, Process

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".interop/network"
PROXY: dict[str, Json] = {"enabled": True, "enableSocks5": True, "domains": {"ok.test": "allow"}}
SECONDS = 30
"""In which a tool ends; long, because of loaded machines."""

GO = str(TOOLS / "fetch")
UNDICI = str(TOOLS / "node_modules/undici/index.js")

SCRIPTS = {
    "curl": "curl -sS --fail https://HOST/",
    "curl by SOCKS": 'curl -sS --fail ${ALL_PROXY:+-x "$ALL_PROXY"} https://HOST/',
    "curl of a plain page": "curl -sS --fail http://HOST/",
    "pip": (
        f"{sys.executable} -m pip download -q --disable-pip-version-check --retries 1 --no-deps "
        f"--no-cache-dir -i https://HOST/simple -d got demo && ls got/{WHEEL}"
    ),
    "git": "git clone -q https://HOST/demo.git got && cat got/file",
    "npm": "npm install demo --no-audit --no-fund && cat node_modules/demo/index.js",
    "Node": "node --import ./proxy.mjs -e 'fetch(\"https://HOST/\").then(r => r.text()).then(console.log)'",
    "Go": f"{GO} https://HOST/",
    "Python": "python3 -c 'from urllib import request; print(request.urlopen(\"https://HOST/\").read())'",
}
SHOWN = {"pip": WHEEL, "git": CONTENT, "npm": CONTENT}
"""What a tool prints that has reached a host; the others print the answer of the server."""

CLEAR = ("403", "not allowed", "Forbidden", "SOCKS5")
"""One of these is in what a tool says about a host that is not permitted."""


def environment(internet: Internet, tree: Tree, host: str) -> dict[str, str]:
    """The authority of the certificates, as each tool is told of it."""
    authority = str(internet.authority)
    names = ("CURL_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS")
    node = os.path.dirname(shutil.which("node") or "/usr/bin/node")
    return {
        **tree.env,
        "PATH": f"{tree.env['PATH']}:{node}",
        "HOME": str(tree.ws / "home"),
        **dict.fromkeys(names, authority),
        "npm_config_cafile": authority,
        "npm_config_registry": f"https://{host}/",
        "npm_config_update_notifier": "false",
        "GIT_TERMINAL_PROMPT": "0",
    }


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    """Fail with the way out where they are not installed."""
    for needed in (GO, UNDICI):
        assert os.path.exists(needed), f"{needed} is missing: run make network-tools"
    for name in ("npm", "node", "git", "curl"):
        assert shutil.which(name), f"{name} is missing: run make network-tools"


def start(internet: Internet, host: Host, name: str, place: str, **members: Json) -> Process:
    """Start a tool, which is to get something from a host."""
    tree = host.tree()
    proxy = (Path(__file__).parent / "proxy.mjs").read_text()
    tree.add(
        {
            "ws/home/.keep": "",
            "ws/package.json": "{}",
            "ws/proxy.mjs": proxy.replace('"undici"', f'"{UNDICI}"'),
        }
    )
    if members:
        members["sandbox"] = tree.context(WORKSPACE)
    script = SCRIPTS[name].replace("HOST", place)
    return host.start(tree, ["/bin/sh", "-c", script], env=environment(internet, tree, place), **members)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_tool_reaches_the_permitted_host_only(internet: Internet, host: Host, name: str) -> None:
    managed: dict[str, Json] = {"enforceManagedNetwork": True, "networkProxy": {"proxy": PROXY}}
    begin = time.monotonic()
    denied = start(internet, host, name, "evil.test", **managed)
    permitted = start(internet, host, name, "ok.test", **managed)
    free = start(internet, host, name, "evil.test")

    done = host.finish(denied, SECONDS)
    assert time.monotonic() - begin < SECONDS
    assert done.exit_code != 0
    text = done.output.decode()
    assert any(word in text for word in CLEAR), text
    for process, secret in ((permitted, internet.permitted_secret), (free, internet.denied_secret)):
        done = host.finish(process, SECONDS)
        assert done.exit_code == 0, done
        assert SHOWN.get(name, secret) in done.output.decode(), done
