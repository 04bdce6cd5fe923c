"""Confined commands and file requests, end to end, without any recorded vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.sandbox.host import Host, Tree
from tests.sandbox_user import ALL_USERS, NOT_ROOT, user_named, users

MakeHost = Callable[..., Host]


# For one module: a daemon that lived longer would be seen by tests of membership.
@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A daemon of our own user."""
    with Host(users()[0]) as host:
        yield host


@pytest.fixture(scope="module", params=ALL_USERS)
def anyones_host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """A daemon of uid 0, and one of an ordinary user, if the test may start it."""
    user = user_named(request.param)
    if user is None:
        pytest.skip(NOT_ROOT)
    with Host(user) as host:
        yield host


@pytest.fixture
def tree(host: Host) -> Tree:
    """A fresh workspace of that daemon's."""
    return host.tree()


@pytest.fixture
def make_host() -> Iterator[MakeHost]:
    """Start further daemons, which end with the test: `make_host("--flag", env=...)`."""
    hosts: list[Host] = []

    def make(*flags: str, env: dict[str, str] | None = None, prefix: Sequence[str] = ()) -> Host:
        hosts.append(Host(users()[0], *flags, env=env, prefix=prefix))
        return hosts[-1]

    yield make
    for host in hosts:
        host.end()
