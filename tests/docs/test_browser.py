"""The manual's site in a browser: on a wide and a narrow screen, in both palettes, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import title_contains

from tests.docs.browser import Browser, browser
from tests.docs.commands import commands_of
from tests.docs.pages import PICTURES, ROOT, blocks_of

pytestmark = pytest.mark.manual

DESK, TELEPHONE = 1280, 390

START = "index.html"
CONSOLE_BLOCKS = "how-to/long-running-services.html"
HERE_DOCUMENTS = "how-to/policy.html"
WIDE_TABLES = "reference/messages.html"
OTHERS = (
    "explanation/architecture.html",  # a picture
    "how-to/editor-plugin.html",  # TypeScript
    "reference/client.html",  # long names
    "seeds.html",
    "tutorial/governed-agent.html",  # Python
)


@pytest.fixture(scope="module")
def window(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(site, tmp_path_factory.mktemp("profile")) as one:
        yield one


def check(window: Browser, width: int) -> None:
    """Nothing on the page is cut or faint, nothing failed, and nothing came from elsewhere."""
    rendered = window.measure()
    assert rendered["width"] <= width
    assert not rendered["cut"]
    assert not rendered["faint"]
    assert not window.errors()
    assert not [url for url in window.requested() if not url.startswith("file:")]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESK, TELEPHONE])
@pytest.mark.parametrize("page", [START, CONSOLE_BLOCKS, WIDE_TABLES])
def test_a_page_can_be_read(page: str, width: int, dark: bool, window: Browser, tmp_path: Path) -> None:
    window.open(page, width=width, dark=dark)
    window.driver.save_screenshot(str(tmp_path / "page.png"))
    assert window.scheme() == ("slate" if dark else "default")
    check(window, width)


@pytest.mark.parametrize("page", OTHERS)
def test_other_pages_can_be_read_on_a_telephone(page: str, window: Browser) -> None:
    window.open(page, width=TELEPHONE, dark=True)
    check(window, TELEPHONE)


MISTAKES = (
    ("<pre style='width: 2000px'>a picture</pre>", "width"),
    ("<p style='width: 2000px; overflow: hidden'>a line</p>", "width"),
    ("<p style='height: 5px; overflow: hidden'>two lines</p>", "cut"),
    ("<p style='width: 50px; overflow: hidden; white-space: nowrap'>a long heading</p>", "cut"),
    ("<p style='color: #888'>a remark</p>", "faint"),
    ("<p style='opacity: 0.5'>a remark</p>", "faint"),
    ("<p style='background: #526cfe'>a <a href='#'>link</a></p>", "faint"),
)
"""Of an author, and the only check that notices it."""


def test_what_cannot_be_read_is_noticed(window: Browser) -> None:
    window.open("how-to/http.html", width=TELEPHONE, dark=False)
    article = window.visible("article")
    for mistake, noticed in MISTAKES:
        window.driver.execute_script(
            "arguments[0].insertAdjacentHTML('beforeend', arguments[1])", article, mistake
        )
        rendered = window.measure()
        window.driver.execute_script("arguments[0].lastElementChild.remove()", article)
        found = {"width": rendered["width"] > TELEPHONE, "cut": rendered["cut"], "faint": rendered["faint"]}
        assert [name for name, wrong in found.items() if wrong] == [noticed], mistake


def test_what_a_page_loads_from_elsewhere_and_its_errors_are_noticed(window: Browser) -> None:
    window.open("how-to/http.html", width=DESK, dark=False)
    window.errors()
    image = "new Image().src = 'http://127.0.0.1:9/logo.png'"  # no browser connects to that port
    window.driver.execute_script(f"{image}; setTimeout(() => {{ throw Error('of a script') }})")
    messages: list[str] = []

    def both_came(_: object) -> bool:
        messages.extend(window.errors())
        return len(messages) == 2

    window.wait.until(both_came)
    assert all(any(part in message for message in messages) for part in ("logo.png", "of a script"))
    assert "http://127.0.0.1:9/logo.png" in window.requested()


@pytest.mark.parametrize(("page", "width", "dark"), [(START, DESK, False), (CONSOLE_BLOCKS, TELEPHONE, True)])
def test_the_search_finds_pages_without_a_web_server(
    page: str, width: int, dark: bool, window: Browser
) -> None:
    window.open(page, width=width, dark=dark)
    if width == TELEPHONE:
        window.click("label.md-header__button[for=__search]")
    window.visible("input.md-search__input").send_keys("install bubblewrap")
    found = "a.md-search-result__link[href*='how-to/sandbox.html']"
    window.visible(found)
    check(window, width)
    window.click(found)
    window.wait.until(title_contains("Confine commands"))
    assert "/how-to/sandbox.html" in window.driver.current_url
    assert not window.errors()


def pasted(window: Browser) -> str:
    """What the clipboard holds."""
    window.driver.execute_script("document.body.prepend(document.createElement('textarea'))")
    area = window.driver.find_element(By.TAG_NAME, "textarea")
    area.send_keys(Keys.CONTROL, "v")
    text = area.get_property("value")
    window.driver.execute_script("arguments[0].remove()", area)
    return str(text)


@pytest.mark.parametrize("page", [CONSOLE_BLOCKS, HERE_DOCUMENTS])
def test_the_copy_button_takes_commands_without_their_output_and_programs_whole(
    page: str, window: Browser
) -> None:
    window.open(page, width=DESK, dark=False)
    source = ROOT / "docs" / page.replace(".html", ".md")
    blocks = [block for block in blocks_of(source) if block.language not in PICTURES]
    buttons = window.driver.find_elements(By.CSS_SELECTOR, ".highlight .md-code__button")
    buttons = [button for button in buttons if button.is_displayed()]
    assert len(buttons) == len(blocks) > 5
    for button, block in zip(buttons, blocks, strict=True):
        wanted = block.text
        if block.language == "console":
            wanted = "\n".join(command.text for command in commands_of(block.text))
        window.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        assert pasted(window) == wanted.rstrip(), block.where


def test_the_reader_chooses_the_colors_and_the_next_page_has_them_too(window: Browser) -> None:
    window.open(START, width=DESK, dark=True)
    assert window.scheme() == "slate"
    window.click("label[title='Use light colors']")
    assert window.scheme() == "default"
    window.open(CONSOLE_BLOCKS, width=DESK, dark=True)
    assert window.scheme() == "default"
    window.click("label[title='Use dark colors']")
    assert window.scheme() == "slate"
    window.click("label[title='Use the colors of the system']")
    window.open(CONSOLE_BLOCKS, width=DESK, dark=False)
    assert window.scheme() == "default"
