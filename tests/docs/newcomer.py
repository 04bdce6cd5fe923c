"""Follow a page as the user that runs this: `python -m tests.docs.newcomer PAGE PLACE`.

Blocks that run elsewhere are run here if PLACE is where. All are followed in order, in the home folder, with
the variables of this process.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from tests.docs.pages import ROOT, blocks_of
from tests.docs.reader import newcomer

SECONDS = 110.0
"""For one command: installing takes ten, several times that on a loaded machine."""


def main(page: str, place: str) -> None:
    """Raises `BlockFailed`."""
    blocks = [
        replace(block, place=None) if block.place is not None and block.place.startswith(place) else block
        for block in blocks_of(ROOT / page)
    ]
    with newcomer(dict(os.environ), SECONDS) as one:
        one.follow(blocks)


if __name__ == "__main__":
    main(*sys.argv[1:])
