"""When `write_stdin` writes, and how long it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from execclient.tools import write_stdin as module
from execclient.tools.arguments import WriteStdinArguments, parse
from execclient.tools.config import ToolsConfig
from execclient.tools.context import CallContext
from execclient.tools.errors import RespondToModel

PAUSE = 0.1


class Session:
    """A process that goes on; keeps what is done with it, and when by its clock, which only `sleep` moves."""

    def __init__(self, *, tty: bool) -> None:
        self.done: list[tuple[str, object, float]] = []
        self.finished = asyncio.Event()
        self.process = SimpleNamespace(write=self._write, interrupt=self._interrupt)
        params = SimpleNamespace(tty=tty, command=("sh",), cwd="/w")
        self.call = SimpleNamespace(params=params, policy=SimpleNamespace(parity=False))
        self.terminal = None
        self.exec = self
        self._now = 0.0

    def time(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self._now += seconds

    def listen(self, listener: object) -> None:
        """Nothing comes."""

    unlisten = listen

    async def collect(self, seconds: float) -> bool:
        self._note("collect", seconds)
        return False

    async def _write(self, data: str, *, whole_lines: bool) -> None:
        assert whole_lines
        self._note("write", data)

    async def _interrupt(self) -> None:
        self._note("interrupt", None)

    def _note(self, what: str, value: object) -> None:
        self.done.append((what, value, self._now))


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Carries out a call for a session."""

    async def answer(*_: object, **__: object) -> None:
        """What is made of it does not matter here."""

    async def may_type(*_: object, **__: object) -> None:
        """It is the turn that started the session."""

    monkeypatch.setattr(module, "session_answer", answer)
    monkeypatch.setattr(module, "approve_input", may_type)

    async def carried_out(session: Session, **arguments: object) -> None:
        context: Any = SimpleNamespace(
            services=SimpleNamespace(
                sessions=SimpleNamespace(use=lambda number: session), config=ToolsConfig()
            ),
            events=SimpleNamespace(begin=lambda command, cwd: None, delta=None),
            budget=lambda tokens: None,
        )
        context.wait_seconds = partial(CallContext.wait_seconds, context)
        clock = SimpleNamespace(get_running_loop=lambda: session, sleep=session.sleep)
        monkeypatch.setattr(module, "asyncio", clock)
        parsed = parse(WriteStdinArguments, {"session_id": 1000, **arguments})
        await module.write_stdin(context, parsed, "c")

    return carried_out


async def test_after_a_write_there_is_a_pause_and_the_rest_of_the_time_is_waited_for(
    call: Callable[..., Any],
) -> None:
    session = Session(tty=True)

    await call(session, chars="export FOO=bar\n", yield_time_ms=1000)

    (wrote, data, written), (collected, seconds, begun) = session.done
    assert (wrote, data, collected) == ("write", "export FOO=bar\n", "collect")
    assert begun - written >= PAUSE
    assert seconds == pytest.approx(1.0 - (begun - written))


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [({}, 5.0), ({"yield_time_ms": 100}, 5.0), ({"yield_time_ms": 10**7}, 300.0)],
)
async def test_who_only_looks_waits_for_long_and_at_once(
    call: Callable[..., Any], asked: dict[str, int], seconds: float
) -> None:
    session = Session(tty=False)

    await call(session, **asked)

    ((what, waited, _),) = session.done
    assert (what, waited) == ("collect", pytest.approx(seconds, abs=1))


@pytest.mark.parametrize(("asked", "seconds"), [(0, 0.25), (250, 0.25), (10**7, 30.0)])
async def test_who_writes_waits_within_bounds(call: Callable[..., Any], asked: int, seconds: float) -> None:
    session = Session(tty=True)

    await call(session, chars="x", yield_time_ms=asked)

    (_, _, written), (_, waited, begun) = session.done
    assert waited == pytest.approx(max(seconds - (begun - written), 0))


async def test_without_a_terminal_an_interrupt_alone_gets_through(call: Callable[..., Any]) -> None:
    session = Session(tty=False)

    with pytest.raises(RespondToModel, match="stdin is closed for this session"):
        await call(session, chars="x")
    assert session.done == []

    await call(session, chars="\x03")
    assert [what for what, _, _ in session.done] == ["interrupt", "collect"]
