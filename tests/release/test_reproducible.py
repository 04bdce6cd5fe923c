"""A release of one commit is the same to the byte, in another folder, at another time, for another user."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from execserver import __version__
from tests.docs.pages import ROOT
from tests.docs.test_stranger import repository
from tools.release import NOTES, SUMS

pytestmark = [pytest.mark.manual, pytest.mark.timeout(900)]

__all__ = ["repository"]


def make_release(folder: Path, mask: int, zone: str) -> Path:
    """`make release` of a clone, with the programs of this one; returns what was made. A version without its
    section in the changelog is rehearsed.
    """
    has_section = f"\n## {__version__} " in (folder / "CHANGELOG.md").read_text()
    notes = [] if has_section else ["--unreleased"]
    node_modules = ROOT / ".interop" / "typescript" / "node_modules"
    installed = ("--tools", ROOT / ".release" / "bin", "--node-modules", node_modules)
    subprocess.run(
        [sys.executable, "-m", "tools.release", *notes, *installed, "dist"],
        cwd=folder,
        env={**os.environ, "TZ": zone},
        umask=mask,
        check=True,
    )
    return folder / "dist" / __version__


def test_two_releases_of_one_commit_are_equal(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "a folder" / "with another name"
    subprocess.run(["git", "clone", "--quiet", repository, other], check=True)
    first = make_release(repository, 0o022, "UTC")
    time.sleep(2)  # times of zip files have steps of two seconds
    second = make_release(other, 0o077, "Asia/Tokyo")

    names = sorted(each.name for each in first.iterdir())
    assert names == sorted(
        [
            *(NOTES, SUMS, f"execclient-{__version__}.cdx.json", f"execserver-{__version__}.cdx.json"),
            *(f"execclient-{__version__}.tar.gz", f"execclient-{__version__}-py3-none-any.whl"),
            f"execclient-{__version__}.tgz",
            *(f"execserver-{__version__}.tar.gz", f"execserver-{__version__}-py3-none-any.whl"),
        ]
    )
    assert [name for name in names if (first / name).read_bytes() != (second / name).read_bytes()] == []
    sums = {name: hashlib.sha256((first / name).read_bytes()).hexdigest() for name in names if name != SUMS}
    assert (first / SUMS).read_text() == "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    with zipfile.ZipFile(first / f"execclient-{__version__}-py3-none-any.whl") as wheel:
        assert "execclient/console/static/console.js" in wheel.namelist()
    for name in ("execclient", "execserver"):
        bill = json.loads((first / f"{name}-{__version__}.cdx.json").read_text())
        assert bill["metadata"]["component"]["name"] == name
        assert {"msgspec", "cryptography", "picows"} <= {each["name"] for each in bill["components"]}
