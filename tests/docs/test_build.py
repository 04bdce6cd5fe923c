"""The manual is built without a warning, needs nothing from the net, and has no page that is not reached."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from tests.docs.commands import commands_of
from tests.docs.conftest import build
from tests.docs.pages import ROOT, blocks_of
from tools.manual_site import ROOT_PAGES

_LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?([^"'\s>]+)|<link\b[^>]*>""")
_HREF = re.compile(r"""\bhref=["']?([^"'\s>]+)""")
_URL = re.compile(r"""url\(["']?(https?:)?//|@import\s+["']?(https?:)?//""")


@pytest.mark.manual
def test_it_is_built_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()
    built = {page.relative_to(site).with_suffix(".md") for page in site.rglob("*.html")} - {Path("404.md")}
    written = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    assert built == written | {Path(page) for page in ROOT_PAGES.values()}


@pytest.mark.manual
def test_nothing_is_loaded_from_the_net(site: Path) -> None:
    loaded = []
    for page in site.rglob("*.html"):
        for tag in _LOADED.finditer(page.read_text()):
            target = tag[1] or (_HREF.search(tag[0]) or [None, ""])[1]
            canonical = "rel=canonical" in tag[0].replace('"', "")
            if re.match(r"(https?:)?//", str(target)) and not canonical:
                loaded.append(f"{page.name}: {tag[0]}")
    for style in site.rglob("*.css"):
        loaded += [f"{style.name}: {found[0]}" for found in _URL.finditer(style.read_text())]
    assert not loaded


@pytest.mark.manual
def test_the_search_works_from_a_folder(site: Path) -> None:
    """A page of file: can neither fetch the index nor start a worker: it loads both as scripts of its own."""
    script = (site / "search" / "search_index.js").read_text()
    index = json.loads(script.removeprefix("var __index = "))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert found == {str(page.relative_to(site)) for page in site.rglob("*.html")} - {"404.html"}
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # of web servers
            continue
        loaded = [str(tag[1]) for tag in _LOADED.finditer(page.read_text()) if tag[1]]
        shim, bundle = (
            next(number for number, target in enumerate(loaded) if part in target)
            for part in ("iframe-worker.js", "javascripts/bundle")
        )
        assert shim < bundle
        assert (page.parent / loaded[shim]).resolve() == site / "assets" / "iframe-worker.js"


@pytest.mark.manual
def test_each_console_block_says_which_commands_are_copied(site: Path) -> None:
    copied = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        built = (site / page.relative_to(ROOT / "docs")).with_suffix(".html").read_text()
        blocks = [block for block in blocks_of(page) if block.language == "console"]
        wanted = ["\n".join(command.text for command in commands_of(block.text)) for block in blocks]
        found = [html.unescape(text) for text in re.findall('data-copy="([^"]*)"', built)]
        assert found == wanted, page.name
        copied += found
    assert len(copied) > 100
    assert any("<<'END'\n" in text for text in copied)


_PAGE_LINE = re.compile(r"- \[[^]]+\]\(([^)]+\.md)\): \S.*[^.:]")
_OUTSIDE_FENCES = re.compile(r"^```.*?^```$|(?<=\]\()[^)#\s]+", re.DOTALL | re.MULTILINE)


@pytest.mark.manual
def test_the_index_for_models_has_each_page_with_one_line(site: Path) -> None:
    title, summary, *sections = (site / "llms.txt").read_text().split("\n\n")
    assert title == "# execserver"
    assert re.fullmatch("> .+", summary)
    listed = []
    for heading, lines in zip(sections[::2], sections[1::2], strict=True):
        assert re.fullmatch("## .+", heading)
        for line in lines.splitlines():
            page = _PAGE_LINE.fullmatch(line)
            assert page, line
            listed.append(page[1])
    pages = {str(page.relative_to(site).with_suffix(".md")) for page in site.rglob("*.html")} - {"404.md"}
    assert len(listed) == len(pages)
    assert set(listed) == pages == {str(page.relative_to(site)) for page in site.rglob("*.md")}
    assert sections[-2] == "## Optional"
    assert "(dependencies.md)" in sections[-1]


@pytest.mark.manual
def test_the_whole_text_for_models_has_the_pages_for_users_in_the_order_of_the_navigation(site: Path) -> None:
    text = "\n" + (site / "llms-full.txt").read_text()
    index = (site / "llms.txt").read_text()
    position = 0
    for page in re.findall(r"\]\((\S+\.md)\)", index.partition("## Optional")[0]):
        heading = (site / page).read_text().splitlines()[0]
        position = text.index(f"\n{heading}\n", position)
    assert "# Dependencies\n" not in text
    assert "--8<--" not in text
    assert "<!-- elsewhere" not in text


@pytest.mark.manual
def test_links_of_the_texts_for_models_lead_to_files_beside_them(site: Path) -> None:
    dead = []
    for file in [site / "llms.txt", site / "llms-full.txt", *site.rglob("*.md")]:
        for link in _OUTSIDE_FENCES.findall(file.read_text()):
            outside = link.startswith(("```", "http:", "https:"))
            if not outside and not (file.parent / link).is_file():
                dead.append(f"{file.relative_to(site)}: {link}")
    assert not dead


@pytest.mark.manual
def test_pages_for_users_and_for_developers_are_apart(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert re.findall(r'class="?md-tabs__link"?[^>]*>\s*([^<]+?)\s*<', page) == ["Start", "Use", "Develop"]


@pytest.mark.manual
def test_files_of_examples_are_not_pages(site: Path) -> None:
    assert not list(site.rglob("*.ts"))
    assert not list(site.rglob("package.json"))


def test_links_of_the_files_around_the_manual_lead_somewhere() -> None:
    dead = []
    for page in sorted(ROOT.glob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if not re.match(r"https?:|#", target) and not (ROOT / target.partition("#")[0]).exists():
                dead.append(f"{page.name}: {target}")
    assert not dead


@pytest.mark.manual
@pytest.mark.parametrize(
    "dead",
    [
        "[a page](reference/nowhere.md)",
        "[a heading](protocol.md#nowhere)",
        "[a site](/nowhere)",
        '--8<-- "nowhere.txt"',
    ],
)
def test_a_link_that_leads_nowhere_ends_the_build(dead: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for page in ("index.md", "protocol.md"):
        (tmp_path / "docs" / page).write_text(f"# A page\n\n{dead if page == 'index.md' else ''}\n")
    configuration = (ROOT / "mkdocs.yml").read_text().partition("\nhooks:\n")[0]
    (tmp_path / "mkdocs.yml").write_text(configuration)
    assert build(tmp_path, tmp_path / "site").returncode != 0
    (tmp_path / "docs" / "index.md").write_text("# A page\n")
    assert build(tmp_path, tmp_path / "site").returncode == 0
