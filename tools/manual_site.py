"""Hooks of the manual's site (`make docs`): what mkdocs and its theme do not do by themselves.

- The copy button of a console block copies the commands without prompts and output: those that the tests run.
- A flag in the text is not broken at its hyphens.
- CONTRIBUTING.md and SECURITY.md of the repository's root are pages too.
- `llms.txt` is an index of the pages for language models (https://llmstxt.org), with each page as Markdown;
  `llms-full.txt` has the pages for users in one file.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from mkdocs.utils.templates import TemplateContext

from tests.docs.commands import commands_of

ROOT = Path(__file__).resolve().parents[1]

ROOT_PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting-vulnerabilities.md",
}
"""Files of the root, and their names in the site."""

FOR_DEVELOPERS = "Develop"
"""The part of the navigation that `llms.txt` calls optional and `llms-full.txt` omits."""

_CONSOLE = re.compile(r'<div class="language-console highlight">(.*?</code>)', re.DOTALL)
_FLAG = re.compile(r"<code>(?=-[^<]{1,24}</code>)")
_TAG = re.compile(r"<[^>]+>")
_FENCE = re.compile(r"(^```.*?^```\n)", re.DOTALL | re.MULTILINE)
_SNIPPET = re.compile(r'^--8<-- "([^"]+)"\n', re.MULTILINE)
_COMMENT = re.compile(r"^<!--.*?-->\n+", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
_SENTENCE = re.compile(r"(The goal: )?(.+?)(?:[.](?=\s|$)|:?$)", re.DOTALL)
_NOTED_LINK = re.compile(r" \(\[[^]]*\]\([^)]*\)\)")
_LINK_TEXT = re.compile(r"\[([^]]*)\]\([^)]*\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are files of the root."""
    for name, uri in ROOT_PAGES.items():
        text = change_links(
            (ROOT / name).read_text(), lambda to: ROOT_PAGES.get(to, to.removeprefix("docs/"))
        )
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Say in each console block what its copy button copies, and mark flags, which should not be broken."""
    return _CONSOLE.sub(_with_commands, _FLAG.sub('<code class="flag">', content))


def _with_commands(block: re.Match[str]) -> str:
    shown = html.unescape(_TAG.sub("", block[1])).strip("\n")
    typed = "\n".join(command.text for command in commands_of(shown))
    # The theme copies the nearest `data-copy`; without one, all that the block shows.
    return f'<div class="language-console highlight" data-copy="{html.escape(typed)}">{block[1]}'


def on_page_context(
    context: TemplateContext, *, page: Page, config: MkDocsConfig, nav: Navigation
) -> TemplateContext:
    """Write the page as Markdown beside its HTML, and with the first page the files for language models."""
    site = Path(config.site_dir)
    file = site / page.file.src_uri
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(markdown_of(page))
    if page.is_homepage:
        (site / "llms.txt").write_text(index_of(nav, str(config.site_name), str(config.site_description)))
        users = (each for each in nav.pages if not is_for_developers(each))
        (site / "llms-full.txt").write_text("\n".join(map(_from_root, users)))
    return context


def index_of(nav: Navigation, name: str, summary: str) -> str:
    """The text of `llms.txt`: a heading for each section of the navigation, a line for each page."""
    text = f"# {name}\n\n> {summary}\n"
    for section, pages in groupby(nav.pages, _section_of):
        text += f"\n## {section}\n\n"
        text += "".join(f"- [{page.title}]({page.file.src_uri}): {summary_of(page)}\n" for page in pages)
    return text


def is_for_developers(page: Page) -> bool:
    """Whether a page belongs to the part of the navigation that is for developers of execserver."""
    return any(section.title == FOR_DEVELOPERS for section in page.ancestors)


def _section_of(page: Page) -> str:
    # "Optional" is a word of the format: a reader that is short of room leaves these links out.
    if is_for_developers(page):
        return "Optional"
    return str((page.parent or page).title)


def summary_of(page: Page) -> str:
    """The first sentence of a page, without links."""
    text = _FENCE.sub("", markdown_of(page))
    paragraph = next(part for part in text.split("\n\n") if part.strip() and not part.startswith("#"))
    sentence = _SENTENCE.match(_LINK_TEXT.sub(r"\1", _NOTED_LINK.sub("", " ".join(paragraph.split()))))
    assert sentence is not None
    return sentence[2][0].upper() + sentence[2][1:] if sentence[1] else sentence[2]


def markdown_of(page: Page) -> str:
    """The Markdown of a page with the files that it includes, without the comments for our tests."""
    text = _COMMENT.sub("", page.markdown or "")
    return _SNIPPET.sub(lambda found: (ROOT / found[1]).read_text(), text)


def _from_root(page: Page) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def moved(to: str) -> str:
        return posixpath.normpath(posixpath.join(folder, to)) if to else page.file.src_uri

    return change_links(markdown_of(page), moved)


def change_links(text: str, change: Callable[[str], str]) -> str:
    """A Markdown text whose links to files are changed, those in fences left alone."""

    def changed(link: re.Match[str]) -> str:
        return link[0] if "://" in link[1] else f"]({change(link[1])}{link[2] or ''})"

    parts = _FENCE.split(text)
    parts[::2] = [_LINK.sub(changed, part) for part in parts[::2]]
    return "".join(parts)
