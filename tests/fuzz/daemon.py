"""The daemon that is fuzzed: a real one, with nobody's rights, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.faults.service import Service
from tests.fuzz.link import KINDS, NOBODY
from tests.fuzz.rounds import lay_out
from tests.sandbox_user import remove_tree

FLAGS = ("--session-ttl", "1", "--process-ttl", "1")
"""Sessions are left behind by the hundred."""


def unprivileged() -> list[str]:
    """What to put in front of a daemon so that it can change nothing of this machine: nobody's rights, and
    of root's only that to read, for a Python that lies in root's folder.
    """
    if os.geteuid() != 0:
        return []
    keep = "-all,+dac_read_search"
    return [
        *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"),
        *(f"--inh-caps={keep}", f"--ambient-caps={keep}", f"--bounding-set={keep}"),
    ]


@contextlib.contextmanager
def daemon(name: str) -> Iterator[tuple[Service, Path]]:
    """A daemon for a framing of `KINDS`, and the folder that messages are about. It must end well."""
    place = Path(tempfile.mkdtemp(prefix="fuzz-")).resolve()
    try:
        if os.geteuid() == 0:
            os.chown(place, NOBODY, NOBODY)
        lay_out(place / "files")
        service = Service(KINDS[name].transport, place, *FLAGS, launcher=unprivileged())
        try:
            yield service, place / "files"
        finally:
            failures = service.failures()
            status = service.end()
        assert (status, failures) == (0, [])
    finally:
        remove_tree(place)
