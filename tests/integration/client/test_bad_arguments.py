"""Invalid arguments, with a real daemon: no part of the call is executed."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor
from execclient.sync import connect

Given = dict[str, Any]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"timeout": "5"}, "timeout is a number of seconds, not str"),
        ({"timeout": -1}, "timeout is above 0 seconds, not -1"),
        ({"idle_timeout": "5"}, "idle_timeout is a number of seconds, not str"),
        ({"tty": True, "size": "80x24"}, "size is a pair of rows and columns"),
        ({"cwd": ""}, "cwd is empty"),
        ({"env": ["A=b"]}, "env is a mapping"),
    ],
)
async def test_nothing_is_started_with_an_argument_that_cannot_be(
    executor: Executor, tmp_path: Path, given: Given, text: str
) -> None:
    trace = tmp_path / "trace"
    for begin in (executor.run, executor.start):
        with pytest.raises((TypeError, ValueError), match=re.escape(text)):
            await begin(["touch", str(trace)], **given)
    assert await executor.processes() == []
    assert not trace.exists()
    assert (await executor.run(["touch", str(trace)])).exit_code == 0
    assert trace.exists()


async def test_output_is_not_dropped_for_a_limit_that_cannot_be(executor: Executor) -> None:
    with pytest.raises(TypeError, match="max_output_bytes is a whole number, not str"):
        await executor.run(["true"], max_output_bytes="10")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="buffer_bytes is 0 or more, not -1"):
        await executor.start(["true"], buffer_bytes=-1)
    assert await executor.processes() == []


@pytest.mark.own_daemon
async def test_an_empty_path_is_not_the_working_directory(executor: Executor, tmp_path: Path) -> None:
    """As an empty variable gives it; to remove that recursively would be a bad day."""
    kept = tmp_path / "kept"
    assert executor.cwd == str(tmp_path)
    kept.write_text("kept")
    calls: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: executor.fs.remove("", recursive=True, missing_ok=True),
        lambda: executor.fs.rename("", tmp_path / "elsewhere"),
        lambda: executor.fs.write_bytes("", b""),
        lambda: executor.fs.upload(kept, ""),
        lambda: executor.fs.download("", tmp_path / "elsewhere"),
    )
    for call in calls:
        with pytest.raises(
            ValueError, match=re.escape("path is empty; the executor's working directory is '.'")
        ):
            await call()
    assert kept.read_text() == "kept"
    assert not (tmp_path / "elsewhere").exists()


async def test_a_file_keeps_its_content_when_what_is_written_is_not_bytes(
    executor: Executor, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(TypeError, match="data is bytes, not str; write_text writes text"):
        await executor.fs.write_bytes(file, "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="data is bytes, not int"):
        await executor.fs.write_bytes(file, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="text is a str, not bytes; write_bytes writes bytes"):
        await executor.fs.write_text(file, b"bytes")  # type: ignore[arg-type]
    assert file.read_text() == "kept"


async def test_a_process_is_written_what_was_given_though_it_changes_meanwhile(executor: Executor) -> None:
    async with await executor.start(["cat"], stdin=True) as process:
        for wrong in (5, None, [1]):
            with pytest.raises(TypeError, match="data is bytes or text"):
                await process.write(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="timeout is a number of seconds, not str"):
            await process.wait("1")  # type: ignore[arg-type]
        await process.write(memoryview(b"abcdef")[::2])  # type: ignore[arg-type]
        await process.close_stdin()
        assert b"".join([data async for _, data in process]) == b"ace"


def test_code_without_a_loop_is_told_the_same(url: str) -> None:
    with connect(url) as blocking:
        with pytest.raises(TypeError, match="timeout is a number of seconds, not str; None sets no limit"):
            blocking.run(["true"], timeout="5")  # type: ignore[arg-type]
        assert blocking.run(["true"]).exit_code == 0
    with pytest.raises(TypeError, match="recovery_timeout is a number of seconds, not str"):
        connect(url, recovery_timeout="45")  # type: ignore[arg-type]
