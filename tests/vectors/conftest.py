"""The sandbox held against recorded cases. Run by `make vectors`, and only when this folder is asked for.

Every test runs once for a daemon of uid 0 and once for that of an ordinary user, as far as we may:
see `tests/sandbox_user.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.host import Host
from tests.sandbox_user import ALL_USERS, NOT_ROOT, user_named

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these out unless they are named: they need files that are not in this repository."""
    if not collection_path.is_relative_to(HERE):
        return None
    named = (Path(config.invocation_params.dir, argument.split("::")[0]) for argument in config.args)
    return None if any(path.resolve().is_relative_to(HERE) for path in named) else True


class Hosts:
    """One for each user, made when the first case needs it."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._failures: dict[str, Exception] = {}

    def get(self, name: str) -> Host:
        """That user's; skips the test when we cannot be that user."""
        user = user_named(name)
        if user is None:
            pytest.skip(NOT_ROOT)
        if name in self._failures:
            raise self._failures[name]
        if name not in self._hosts:
            try:
                self._hosts[name] = Host(user)
            except Exception as error:
                self._failures[name] = error
                raise
        return self._hosts[name]

    def has(self, name: str) -> bool:
        """Whether we can be that user."""
        return user_named(name) is not None

    def end(self) -> None:
        """End them all."""
        for host in self._hosts.values():
            host.end()


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """The daemons of this run."""
    hosts = Hosts()
    yield hosts
    hosts.end()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "host" in metafunc.fixturenames:
        metafunc.parametrize("host", ALL_USERS, indirect=True)


@pytest.fixture
def host(request: pytest.FixtureRequest, hosts: Hosts) -> Host:
    """The daemon of the user of this run."""
    return hosts.get(request.param)
