"""Follows the Python blocks of a how-to page in the environment that has what they import.

On such a page each block has the comment `<!-- elsewhere: tests/third_party/NAME/test_how_to.py: REASON -->`,
also a `text` block with what the program before it prints.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.commands import matches
from tests.docs.pages import ROOT, blocks_of


def follow(page: str, url: str, folder: Path) -> int:
    """Save the files of a page, run its programs in order, and compare what they print.

    Args:
        page: its name below `docs/how-to`, without `.md`.
        url: the daemon's, as `EXECSERVER_URL`.
        folder: where the programs run.

    Returns:
        How many programs it ran.

    Raises:
        AssertionError: a program does not do what the page says; the message begins with the place.
    """
    ran, printed = 0, ""
    for block in blocks_of(ROOT / "docs/how-to" / f"{page}.md"):
        if block.language == "text" and block.place is not None:
            assert matches(block.text, printed), f"{block.where}: it printed\n{printed}"
        elif block.title is not None:
            (folder / block.title).write_text(block.text)
        elif block.language == "python":
            done = subprocess.run(
                [sys.executable, "-"],
                input=block.text,
                env={**os.environ, "EXECSERVER_URL": url},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=50,
                check=False,
            )
            assert done.returncode == 0, f"{block.where}: {done.stdout}\n{done.stderr}"
            ran, printed = ran + 1, done.stdout
    return ran
