"""What can wait is loaded when nothing passes between the daemon and its clients, or at last in any case."""

from __future__ import annotations

import asyncio

import pytest

from execserver import late_modules
from execserver.late_modules import LOAD_AFTER_SECONDS, quiet_moment
from execserver.telemetry.measures import measures


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Bytes that come and go in each of the moments that are waited for; nothing passes afterwards."""
    coming: list[tuple[int, int]] = []

    async def sleep(seconds: float) -> None:
        assert seconds == LOAD_AFTER_SECONDS
        received, sent = coming.pop(0)
        measures.received_bytes += received
        measures.sent_bytes += sent

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return coming


async def test_it_is_waited_while_clients_ask_or_are_told_something(moments: list[tuple[int, int]]) -> None:
    moments += [(10, 10), (0, 1), (1, 0), (0, 0), (5, 5)]
    await quiet_moment()
    assert moments == [(5, 5)]


async def test_an_idle_daemon_waits_for_one_moment(moments: list[tuple[int, int]]) -> None:
    moments += [(0, 0), (5, 5)]
    await quiet_moment()
    assert moments == [(5, 5)]


async def test_it_is_not_waited_for_ever(
    moments: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_modules, "LOAD_AT_LAST_SECONDS", 0.0)
    moments += [(1, 1)] * 3
    await quiet_moment()
    assert len(moments) >= 2
