"""The page of a console in headless Chromium."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.docs.browser import SECONDS, Browser

DESK, TELEPHONE = 1280, 390

HEIGHT = 900

_RECORD = """
window.acts = []
const record = (name) => (...given) => { window.acts.push([name, ...given.map(String)]); return null }
window.open = record('open')
window.alert = record('alert')
window.confirm = record('confirm')
if (navigator.clipboard) {
  navigator.clipboard.writeText = record('writeText')
  navigator.clipboard.write = record('write')
}
document.execCommand = record('execCommand')
"""
"""Records what a page must never do because of a process."""


class Window:
    """The page, read and used as a person does."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.driver = browser.driver
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _RECORD})
        self.look()

    def look(self, *, width: int = DESK, dark: bool = False, still: bool = False) -> None:
        """The width of the window, the colors of the system, and whether it asks for less motion."""
        metrics = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, link: str) -> None:
        """Open a link, in a tab that has been nowhere: its session storage is its own."""
        self.browser.errors()
        self.driver.get("about:blank")
        self.driver.get(link)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text of the first element, empty if there is none."""
        found = self.driver.execute_script(
            "const found = document.querySelector(arguments[0]);"
            "return found && !found.hidden ? found.textContent : ''",
            selector,
        )
        return str(found)

    def until(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        """Wait for something on the page."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.text("body")
            time.sleep(0.05)

    def until_text(self, selector: str, text: str, seconds: float = SECONDS) -> None:
        self.until(lambda: text in self.text(selector), seconds)

    def choose(self, process_id: str) -> None:
        """Choose a process in the list, as soon as it is there."""
        self.browser.click(f"[data-process$='/{process_id}']")

    def press(self, text: str) -> None:
        """Click the visible button with a text."""

        def pressed(_: object) -> bool:
            for button in self.all("button"):
                if button.text == text and button.is_displayed():
                    button.click()
                    return True
            return False

        self.browser.wait.until(pressed, text)

    @property
    def lines(self) -> list[str]:
        """The lines that the terminal shows, without empty ones."""
        rows = self.driver.execute_script(
            "return Array.from(document.querySelectorAll('.xterm-rows > div'), (each) => each.textContent)"
        )
        return [line for row in rows if (line := str(row).replace("\xa0", " ").rstrip())]

    def until_lines(self, lines: list[str], seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while self.lines != lines:
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.05)

    def until_line(self, line: str, seconds: float = SECONDS) -> None:
        """Wait until the terminal shows a line."""
        self.until(lambda: line in self.lines, seconds)

    @property
    def position(self) -> int:
        """The position of the time line, in milliseconds."""
        return int(self.find(".position").get_attribute("value") or -1)

    def seek(self, milliseconds: int) -> None:
        """Move the time line."""
        self.driver.execute_script(
            "const range = document.querySelector('.position'); range.value = arguments[0];"
            "range.dispatchEvent(new Event('input', { bubbles: true }))",
            milliseconds,
        )

    def acts(self) -> list[Any]:
        """What the page did of all that a process must not make it do."""
        return list(self.driver.execute_script("return window.acts"))
