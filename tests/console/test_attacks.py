"""Pages of other origins, wrong tokens and hostile processes: none of them changes anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from execclient.sync import Executor
from tests.console.client import address_of, token_of
from tests.console.conftest import Start
from tests.console.window import Window

HERE = Path(__file__).parent


@contextmanager
def other_site(body: str) -> Iterator[str]:
    """A web server at another port of this machine; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{site.server_port}/"
        finally:
            site.shutdown()
            thread.join()


def test_a_page_of_another_origin_gets_nothing_even_with_a_valid_token(
    window: Window, start_console: Start
) -> None:
    console = start_console()
    attack = (HERE / "attack.html").read_text()
    attack = attack.replace("ADDRESS", address_of(console.link)).replace("TOKEN", token_of(console.link))
    with other_site(attack) as url:
        window.open(url)
        window.until(lambda: window.driver.title.startswith("{"))
        found = window.driver.execute_script("return results")
    assert found == dict.fromkeys(
        ("read", "opaque", "posted", "socket", "other name", "frame", "script"), "no"
    )
    assert "another origin was refused" in console.log
    assert token_of(console.link) not in console.log
    # The token still counts: no attempt has used it up.
    window.open(console.link)
    window.until_text(".state", "connected")


@pytest.mark.parametrize("which", ["wrong", "used", "none"])
def test_a_link_that_does_not_count_shows_nothing(window: Window, start_console: Start, which: str) -> None:
    console = start_console()
    link = f"http://{address_of(console.link)}/"
    if which == "wrong":
        link += "#token=guessed"
    if which == "used":
        window.open(console.link)
        window.until_text(".state", "connected")
        window.driver.execute_script("sessionStorage.clear()")
        link = console.link
    window.open(link)

    window.until_text("[role=alert]", "used before" if which != "none" else "Open the link")
    assert window.text("main") == ""


@pytest.mark.parametrize("options", [(), ("--write",)], ids=["read only", "write"])
def test_the_output_of_a_hostile_process_stays_output(
    window: Window,
    executor: Executor,
    start_console: Start,
    options: tuple[str, ...],
    no_errors: None,
) -> None:
    window.open(start_console(*options).link)
    window.until_text(".state", "connected")
    process = executor.start(["python3", HERE / "hostile.py"], tty=True)
    window.choose(process.id)

    window.until(lambda: any("hacked>bold</b>" in line for line in window.lines))
    window.until_line("got 0 bytes")
    assert window.driver.title == "execserver console"
    assert window.acts() == []
    assert window.driver.execute_script("return window.hacked") is None
    assert not window.all("#hacked, body img")
    assert len(window.driver.window_handles) == 1


def test_links_of_a_process_are_shown_and_not_opened(
    window: Window, executor: Executor, start_console: Start, no_errors: None
) -> None:
    link = r"\033]8;;http://127.0.0.1:1/aim\033\\click here\033]8;;\033\\"
    process = executor.start(["sh", "-c", f"printf '{link}'; sleep 60"])
    window.open(start_console().link)
    window.choose(process.id)
    window.until_lines(["click here"])
    rows = window.find(".xterm-screen")

    def pointing() -> ActionChains:
        # At the first line, whose elements xterm replaces at any time.
        left, top = -rows.size["width"] // 2 + 20, -rows.size["height"] // 2 + 8
        return ActionChains(window.driver).move_to_element_with_offset(rows, left, top)

    pointing().perform()
    window.until_text(".remark", "Link (not opened): http://127.0.0.1:1/aim")
    pointing().click().perform()
    pointing().key_down(Keys.CONTROL).click().key_up(Keys.CONTROL).perform()
    assert window.acts() == []
    assert len(window.driver.window_handles) == 1


def test_names_of_a_process_cannot_change_the_page(
    window: Window, executor: Executor, start_console: Start, no_errors: None
) -> None:
    name = "<img src=x onerror='window.hacked = 1'>\u202egnp.\x1b[31m"
    process = executor.start(["sh", "-c", "sleep 60", name], id="a<b>id")
    window.open(start_console().link)
    window.until_text(".process .command", "<img src=x onerror=")
    window.find(".process").click()
    window.until_text(".heading h2", "\\u202egnp.\\u001b[31m")
    assert window.driver.execute_script("return window.hacked") is None
    assert process.id == "a<b>id"


def test_a_line_of_10_mb_leaves_the_page_usable(
    window: Window, executor: Executor, start_console: Start, no_errors: None
) -> None:
    script = "head -c 10000000 /dev/zero | tr '\\0' x; sleep 1; printf '\\n'; echo the end"
    process = executor.start(["sh", "-c", script])
    other = executor.start(["echo", "another"])
    window.open(start_console().link)
    window.driver.execute_script(
        "window.longest = 0; let before = performance.now();"
        "setInterval(() => { const now = performance.now();"
        "window.longest = Math.max(window.longest, now - before); before = now }, 10)"
    )
    window.choose(process.id)
    window.until(lambda: window.lines[-1:] == ["the end"], 40)
    assert window.driver.execute_script("return window.longest") < 3000
    window.choose(other.id)
    window.until_lines(["another"])
