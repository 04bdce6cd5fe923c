"""A daemon in an internet of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.internet import Internet
from tests.sandbox.host import BASE, Host
from tests.sandbox_user import users


# For one module, as in `tests/sandbox`: tests of other folders look for daemons.
@pytest.fixture(scope="module")
def internet() -> Iterator[Internet]:
    """The internet of these tests."""
    if os.geteuid() != 0:
        pytest.skip(
            "the tests run as an ordinary user; an internet with names of its own is made by root only"
        )
    folder = Path(tempfile.mkdtemp(prefix="internet-", dir=BASE))
    folder.chmod(0o755)
    internet = None
    try:
        internet = Internet(folder)
        yield internet
    finally:
        if internet is not None:
            internet.end()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def host(internet: Internet) -> Iterator[Host]:
    """A daemon in it."""
    with Host(users()[0], prefix=internet.prefix) as host:
        yield host
