from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from execserver.credentials import Credentials
from execserver.transports.authentication import AuthenticationOptions, ConfigurationError


def credentials(folder: Path) -> Credentials:
    return Credentials(AuthenticationOptions(ws_auth="capability-token", ws_token_file="token"), base=folder)


def accepts(current: Credentials, token: str) -> bool:
    return current.refusal(f"Bearer {token}") is None


def test_what_cannot_be_used_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--ws-token-file: cannot read"):
        credentials(tmp_path)


async def test_a_reload_replaces_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    current = credentials(tmp_path)
    (tmp_path / "token").write_text("new")
    assert accepts(current, "old")
    assert await current.reload() is None
    assert accepts(current, "new")
    assert not accepts(current, "old")


async def test_a_failed_reload_says_why_and_keeps_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    current = credentials(tmp_path)
    (tmp_path / "token").write_text(" \n")
    assert await current.reload() == f"--ws-token-file: {tmp_path}/token is empty"
    assert accepts(current, "old")


async def test_a_file_that_blocks_holds_up_neither_the_loop_nor_the_order_of_reloads(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    current = credentials(tmp_path)
    (tmp_path / "token").unlink()
    os.mkfifo(tmp_path / "token")
    first = asyncio.create_task(current.reload())
    # Opens when the first reload reads, which it does in a thread; then a file takes the FIFO's place.
    writer = await asyncio.to_thread(os.open, tmp_path / "token", os.O_WRONLY)
    (tmp_path / "next").write_text("second")
    (tmp_path / "next").rename(tmp_path / "token")
    second = asyncio.create_task(current.reload())
    await asyncio.sleep(0)
    assert accepts(current, "old")
    assert not first.done()
    os.write(writer, b"first")
    os.close(writer)
    assert await first is None
    assert await second is None
    # The second one has the last word, though its file could be read at once.
    assert accepts(current, "second")
