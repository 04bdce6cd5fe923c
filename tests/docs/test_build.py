"""The manual is built without a warning, needs nothing from the net, and has no page that is not reached."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

_LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?([^"'\s>]+)|<link\b[^>]*>""")
_HREF = re.compile(r"""\bhref=["']?([^"'\s>]+)""")
_URL = re.compile(r"""url\(["']?(https?:)?//|@import\s+["']?(https?:)?//""")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    # Not --quiet: what is not logged is not counted as a warning either.
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manual") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stderr
    return folder


@pytest.mark.manual
def test_it_is_built_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()
    built = {page.relative_to(site).with_suffix(".md") for page in site.rglob("*.html")} - {Path("404.md")}
    assert built == {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}


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
    configuration = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    (tmp_path / "mkdocs.yml").write_text(configuration)
    assert build(tmp_path, tmp_path / "site").returncode != 0
    (tmp_path / "docs" / "index.md").write_text("# A page\n")
    assert build(tmp_path, tmp_path / "site").returncode == 0
