"""Headless Chromium that opens the manual's site from its folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.expected_conditions import visibility_of_element_located
from selenium.webdriver.support.wait import WebDriverWait

SECONDS = 20.0
"""Until something appears, on a loaded machine."""

HEIGHT = 900

OPTIONS = (
    "--headless",
    "--no-sandbox",  # Chromium's own does not start for root, nor in most containers
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

NOT_YET = (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
"""What a page answers that is not ready for a click."""

_MEASURE = (Path(__file__).parent / "rendered.js").read_text()


class Rendered(TypedDict):
    """A page as it is rendered: texts that are cut, texts of too little contrast, the page's width."""

    cut: list[str]
    faint: list[str]
    width: int


class Browser:
    """One window."""

    def __init__(self, driver: Chrome, site: Path) -> None:
        self.driver = driver
        self.wait = WebDriverWait(driver, SECONDS, ignored_exceptions=NOT_YET)
        self._site = site

    def open(self, page: str, *, width: int, dark: bool) -> None:
        """Open a page of the site as a window of that width and a system with those colors show it."""
        metrics = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get((self._site / page).as_uri())

    def measure(self) -> Rendered:
        found: Rendered = self.driver.execute_script(_MEASURE)
        return found

    def scheme(self) -> str | None:
        """The name of the theme's palette: `default` is light, `slate` is dark."""
        return self.driver.find_element(By.TAG_NAME, "body").get_attribute("data-md-color-scheme")

    def visible(self, selector: str) -> WebElement:
        """The first element that a CSS selector finds, as soon as it is visible."""
        return self.wait.until(visibility_of_element_located((By.CSS_SELECTOR, selector)))

    def click(self, selector: str) -> None:
        """Click what a CSS selector finds, as soon as that is possible."""

        def clicked(driver: Chrome) -> bool:
            driver.find_element(By.CSS_SELECTOR, selector).click()
            return True

        self.wait.until(clicked)

    def errors(self) -> list[str]:
        """Messages of the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requested(self) -> list[str]:
        """The URLs that pages requested since the last call, without those inside the page itself."""
        messages = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        urls = (
            str(message["params"]["request"]["url"])
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        )
        return [url for url in urls if not url.startswith(("data:", "blob:"))]


@contextmanager
def browser(site: Path, profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile; `make browser` installs it."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium, "chromium is missing: make browser"
    assert driver, "chromedriver is missing: make browser"
    options = ChromeOptions()
    options.binary_location = chromium
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # With the path of a driver selenium looks for none, and downloads nothing.
    with Chrome(options=options, service=Service(driver)) as started:
        started.get("about:blank")
        window = Browser(started, site)
        window.requested()  # those of Chromium's own first page
        yield window
