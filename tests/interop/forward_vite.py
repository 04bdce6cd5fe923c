"""vite's dev server at the executor, and Chromium at a forwarded port: hot updates reach the page, which does
not load anew, while connections are cut and the relay is killed. `make forward-vite` runs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

from execclient import NetworkAccess, WorkspaceWrite
from execclient.sync import Executor, connect
from tests.conftest import StartServer
from tests.docs.browser import SECONDS, browser
from tests.integration.relay.test_client_over_relay import Place, new_tokens
from tests.support.relay_service import RelayService
from tests.support.servers import free_ports

pytestmark = pytest.mark.timeout(120)

INSIDE = {"sandbox": WorkspaceWrite(), "network": NetworkAccess(allow=("example.com",))}
"""A sandbox with a network of its own."""

MODULES = Path(__file__).resolve().parents[2] / ".interop" / "forward" / "node_modules"

DOWN_SECONDS = 2.0
"""How long a killed relay is away."""

SAVE_SECONDS = 0.3
"""Between two changes of a file: vite takes those within 0.1 s for one."""

LARGE = 24 << 20

PAGE = '<!doctype html><title>page</title><p id="text"></p><script type="module" src="/main.js"></script>'

MAIN = """
import { text } from './text.js'

const show = (text) => { document.querySelector('#text').textContent = text }
show(text)
import.meta.hot.accept('./text.js', (changed) => show(changed.text))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A page whose text comes from a module of its own."""
    assert (MODULES / "vite").is_dir(), "vite is missing: make forward-vite"
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "index.html").write_text(PAGE)
    (folder / "main.js").write_text(MAIN)
    (folder / "package.json").write_text(json.dumps({"name": "page", "private": True, "type": "module"}))
    (folder / "public").mkdir()
    (folder / "public" / "large").write_bytes(os.urandom(LARGE))
    say(folder, "one")
    return folder


@pytest.fixture
def chrome(tmp_path: Path) -> Iterator[Chrome]:
    with browser(tmp_path, tmp_path / "profile") as window:
        yield window.driver


def say(project: Path, text: str) -> None:
    """Change the module that has the text, as an editor does."""
    new = project / "text.js.new"
    new.write_text(f"export const text = {json.dumps(text)}\n")
    new.replace(project / "text.js")


@contextmanager
def served(executor: Executor, project: Path, **options: Any) -> Iterator[int]:
    """vite, at a port of the executor."""
    node = shutil.which("node")
    assert node
    port = free_ports(1)[0]
    flags = ["--host", "127.0.0.1", "--port", str(port), "--strictPort", "--clearScreen", "false"]
    argv = [node, str(MODULES / "vite" / "bin" / "vite.js"), *flags]
    with executor.start(argv, cwd=project, **options) as vite:
        wait_listening(executor, vite.id, port)
        yield port


def wait_listening(executor: Executor, process_id: str, port: int) -> None:
    with executor.watch_ports() as events:
        for event in events:
            if (event.listening, event.port.process_id, event.port.port) == (True, process_id, port):
                return


def wait_shown(chrome: Chrome, text: str) -> None:
    """Wait until the page shows the text."""
    deadline = time.monotonic() + SECONDS
    while (shown := chrome.execute_script("return document.querySelector('#text')?.textContent")) != text:
        assert time.monotonic() < deadline, shown
        time.sleep(0.02)


def wait_connected(chrome: Chrome) -> None:
    """Wait until the page has the WebSocket by which it learns of changes."""
    deadline = time.monotonic() + SECONDS
    messages: list[str] = []
    while not any("[vite] connected." in each for each in messages):
        assert time.monotonic() < deadline, messages
        messages += [entry["message"] for entry in chrome.get_log("browser")]
        time.sleep(0.02)


def follow(chrome: Chrome, url: str, project: Path, cuts: Mapping[str, Callable[[], object]]) -> None:
    """Open the page, and change its text: once as it is, and once after each cut."""
    chrome.get(url)
    wait_shown(chrome, "one")
    wait_connected(chrome)
    chrome.execute_script("window.opened = true")
    say(project, "two")
    wait_shown(chrome, "two")
    for name, cut in cuts.items():
        time.sleep(SAVE_SECONDS)
        cut()
        say(project, name)
        wait_shown(chrome, name)
    assert chrome.execute_script("return window.opened"), "the page has loaded anew"


def digest_at(url: str) -> str:
    with urllib.request.urlopen(url, timeout=SECONDS) as response:
        return hashlib.file_digest(response, "sha256").hexdigest()


def digest_of(project: Path) -> str:
    return hashlib.sha256((project / "public" / "large").read_bytes()).hexdigest()


@pytest.mark.parametrize("options", [{}, INSIDE], ids=["unconfined", "sandbox"])
def test_a_page_is_updated_over_a_connection_that_is_cut(
    options: dict[str, Any], start_server: StartServer, project: Path, chrome: Chrome, tmp_path: Path
) -> None:
    server = start_server(f"unix://{tmp_path}/s")
    with (
        connect(server.url) as executor,
        served(executor, project, **options) as port,
        executor.forward(port, local_port=0) as forwarded,
    ):
        cuts = {f"cut {number}": executor.drop_connection for number in range(5)}
        follow(chrome, forwarded.url, project, cuts)
        assert digest_at(f"{forwarded.url}large") == digest_of(project)
        assert executor.recoveries == len(cuts)


def test_a_page_is_updated_through_a_relay_that_is_killed_and_restarted(
    project: Path, chrome: Chrome, tmp_path: Path
) -> None:
    with RelayService(tmp_path / "relay") as relay:
        place = Place(relay, "box", new_tokens(relay, "box"))

        def restart() -> None:
            relay.kill()
            time.sleep(DOWN_SECONDS)
            relay.start()

        with (
            place.executor(),
            connect(place.url, token=place.token, recovery_timeout=60) as executor,
            served(executor, project) as port,
            executor.forward(port, local_port=0) as forwarded,
        ):
            follow(chrome, forwarded.url, project, {"once": restart, "twice": restart})
            assert digest_at(f"{forwarded.url}large") == digest_of(project)
            assert executor.recoveries >= 2
