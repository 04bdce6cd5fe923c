"""Finds the fewest messages of a round that still fail: `python -m tests.fuzz.shrink NAME SEED ROUND`.

Each attempt is a connection of its own to one daemon, so what depends on rounds before is not found here.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.service import Service
from tests.fuzz.daemon import daemon
from tests.fuzz.doors import Framed
from tests.fuzz.link import Failure, see
from tests.fuzz.rounds import COLD, Fuzzing, lay_out

SECONDS = 5.0
"""To wait for replies that are missing."""


def fewest(messages: Sequence[Framed], fails: Callable[[list[Framed]], bool]) -> list[Framed]:
    """The messages that are left when none of them can be left out."""
    left = list(messages)
    size = len(left) // 2
    while size:
        for place in range(0, len(left), size):
            attempt = left[:place] + left[place + size :]
            if fails(attempt):
                left = attempt
                break
        else:
            size //= 2
        size = min(size, len(left))
    return left


def shrink(name: str, seed: int, number: int, service: Service, folder: Path) -> list[Framed]:
    """The fewest messages of a round that fail; none when the round does not fail by itself."""
    fuzzing = Fuzzing(name, service, folder, seed)
    chance = random.Random(f"{seed} {name} {number}")
    if chance.random() < COLD:
        fuzzing._cold(chance)
    link = fuzzing.link(chance)
    messages = fuzzing.messages(link, chance)
    link.close()

    def fails(attempt: list[Framed]) -> bool:
        lay_out(folder)
        link = fuzzing.link(chance)
        try:
            link.handshake()
            see(link, attempt, SECONDS)
        except (Failure, OSError, ValueError):
            return True
        finally:
            link.close()
        return False

    return fewest(messages, fails) if fails(messages) else []


def main() -> None:
    """The command line."""
    name, seed, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with daemon(name) as (service, folder):
        for framed in shrink(name, seed, number, service, folder):
            print(framed.data, "is owed", framed.verdicts)


if __name__ == "__main__":
    main()
