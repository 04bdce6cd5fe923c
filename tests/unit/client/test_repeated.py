"""Calls that may be made twice, and are made again after a lost connection."""

from __future__ import annotations

import asyncio

import pytest

from execclient import ExecServerError, OutcomeUnknown, SessionLost, file_session
from execclient.file_session import ATTEMPTS, repeated


class Call:
    """A call that fails a number of times, and then returns the number of its attempts."""

    def __init__(self, failures: float, error: type[ExecServerError] = OutcomeUnknown) -> None:
        self.made = 0
        self._failures = failures
        self._error = error

    async def __call__(self) -> int:
        await asyncio.sleep(0)
        self.made += 1
        if self.made <= self._failures:
            raise self._error(f"attempt {self.made}")
        return self.made


async def test_a_call_outlasts_more_lost_connections_than_attempts_if_time_is_left() -> None:
    assert await repeated(Call(10 * ATTEMPTS)) == 10 * ATTEMPTS + 1


async def test_a_slow_call_gets_all_its_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_session, "REPEAT_SECONDS", 0.0)

    assert await repeated(Call(ATTEMPTS - 1)) == ATTEMPTS
    with pytest.raises(OutcomeUnknown, match=f"attempt {ATTEMPTS}$"):
        await repeated(Call(ATTEMPTS))


async def test_a_call_that_always_fails_ends_with_its_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_session, "REPEAT_SECONDS", 0.2)
    clock = asyncio.get_running_loop().time
    begin, call = clock(), Call(float("inf"))

    with pytest.raises(OutcomeUnknown, match="attempt"):
        await repeated(call)

    assert clock() - begin >= 0.2
    assert call.made >= ATTEMPTS


async def test_only_named_errors_lead_to_another_attempt() -> None:
    once = Call(1, SessionLost)
    with pytest.raises(SessionLost):
        await repeated(once)

    assert once.made == 1
    assert await repeated(Call(1, SessionLost), after=(OutcomeUnknown, SessionLost)) == 2
