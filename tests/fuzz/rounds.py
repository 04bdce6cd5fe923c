"""Rounds of mutated messages against a real daemon, and what it must be like after each.

A round is some hundred messages in one go, on one connection, decided by the seed and its number alone:
the daemon owes a known number of replies, each of its dialect, or the end of the connection, and after it
an answer to a plain question. What breaks that is a `Failure`, which says how to have it again.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.faults.service import Service
from tests.fuzz.doors import Framed
from tests.fuzz.link import KINDS, REPLY_SECONDS, Failure, Link, see
from tests.fuzz.mutations import Mutator, load
from tests.fuzz.verdicts import Judge

MESSAGES = 300
"""Of one round."""

ROUNDS_A_CONNECTION = 8
"""Then its session is left behind, and its processes with it."""

COLD = 0.1
"""Share of the rounds that begin on a connection of their own, without a handshake."""

SPARED = 0.9
"""Share of the messages that would end the connection, and are not sent: most rounds should go on."""

MOST_ATTEMPTS = 100
"""To put a fresh folder where requests still make files."""


class Fuzzing:
    """One framing, one daemon, any number of rounds.

    Args:
        name: of `KINDS`.
        service: the daemon, started in a folder that is open to everybody.
        folder: of the files that messages are about; made anew from time to time.
        seed: decides everything, with the number of a round.
    """

    def __init__(self, name: str, service: Service, folder: Path, seed: int) -> None:
        self._name = name
        self._kind = KINDS[name]
        self._service = service
        self._folder = folder
        self._seed = seed
        self._seeds = load("standard" if self._kind.standard else "lean")
        self._judge = Judge(
            folder,
            self._seeds,
            standard=self._kind.standard,
            text_framing=self._kind.transport == "unix",
        )
        self._link: Link | None = None
        self._left = 0
        self.sent = 0
        self.ended = 0
        """Connections that the daemon ended, as it should."""

    def round(self, number: int) -> None:
        """Send the messages of a round, and see what comes of them.

        Raises:
            Failure: not what must.
        """
        chance = random.Random(f"{self._seed} {self._name} {number}")
        try:
            if self._link is None or not self._left:
                self._renew(chance)
            assert self._link is not None
            if chance.random() < COLD:
                self._cold(chance)
            self._warm(self._link, chance)
            self._left -= 1
        except (Failure, OSError, ValueError) as error:
            raise Failure(
                f"{self._name}, seed {self._seed}, round {number}: {error!r}; for the fewest "
                f"messages that do it: python -m tests.fuzz.shrink {self._name} {self._seed} {number}"
            ) from error

    def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None

    # -- rounds

    def _renew(self, chance: random.Random) -> None:
        self.close()
        lay_out(self._folder)
        self._link = self.link(chance)
        self._link.handshake()
        self._left = ROUNDS_A_CONNECTION

    def _warm(self, link: Link, chance: random.Random) -> None:
        messages = self.messages(link, chance)
        self.sent += len(messages)
        ends = bool(messages) and messages[-1].ends
        midway = link.door.midway
        see(link, messages, REPLY_SECONDS)
        if ends or midway:
            self.ended += ends
            self._left = 1

    def messages(self, link: Link, chance: random.Random) -> list[Framed]:
        """Those of one round, the last one at most ending the connection."""
        link.decide_by(chance)
        mutator = Mutator(self._seeds, chance, self._folder)
        messages: list[Framed] = []
        for _ in range(MESSAGES):
            framed = link.door.frame(mutator.message())
            if framed is None or (framed.ends and chance.random() < SPARED):
                continue
            messages.append(framed)
            if framed.ends:
                break
        return messages

    def link(self, chance: random.Random) -> Link:
        """A new connection, with nothing said."""
        return Link(self._service, self._kind, self._judge, chance)

    def _cold(self, chance: random.Random) -> None:
        """Nothing of a handshake: whatever is answered, the daemon lives on."""
        link = self.link(chance)
        mutator = Mutator(self._seeds, chance, self._folder)
        messages = [mutator.message() for _ in range(chance.randrange(30))]
        framed = [link.door.frame(each) for each in messages if self._judge.harmless_in_any_dialect(each)]
        kept = [each.data for each in framed if each is not None]
        self.sent += len(kept)
        try:
            link.send(b"".join(kept))
        finally:
            link.close()


def lay_out(folder: Path) -> None:
    """The files that messages of the corpus are about, open to everybody.

    Requests of a connection that was just ended may still be at work in the old ones.
    """
    fresh = folder.with_name("fresh")
    for name in ("d", "tree/b"):
        (fresh / name).mkdir(parents=True)
    for name in ("f", "file", "large", "d/f", "tree/b/f"):
        (fresh / name).write_bytes(name.encode() * 500)
    for path in (fresh, *fresh.rglob("*")):
        path.chmod(0o777)
    for attempt in range(MOST_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            fresh.rename(folder)
        except OSError:
            if attempt == MOST_ATTEMPTS - 1:
                raise
        else:
            return
