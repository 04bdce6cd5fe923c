from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from execserver.transports.authentication import AuthenticationOptions, ConfigurationError, Credentials
from tests.support.mounts import NO_FUSE, can_hang, mounting


def credentials(folder: Path) -> Credentials:
    return Credentials(AuthenticationOptions(ws_auth="capability-token", ws_token_file="token"), base=folder)


def accepts(current: Credentials, token: str) -> bool:
    return current.refusal(f"Bearer {token}") is None


def test_what_cannot_be_used_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--ws-token-file: cannot read"):
        credentials(tmp_path)


async def test_a_reload_replaces_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old-token")
    current = credentials(tmp_path)
    (tmp_path / "token").write_text("new-token")
    assert accepts(current, "old-token")
    assert await current.reload() is None
    assert accepts(current, "new-token")
    assert not accepts(current, "old-token")


async def test_a_failed_reload_says_why_and_keeps_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old-token")
    current = credentials(tmp_path)
    (tmp_path / "token").write_text(" \n")
    assert await current.reload() == f"--ws-token-file: {tmp_path}/token is empty"
    assert accepts(current, "old-token")


@pytest.mark.skipif(not can_hang(), reason=NO_FUSE)
async def test_a_file_that_blocks_holds_up_neither_the_loop_nor_the_order_of_reloads(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    token = tmp_path / "token"
    token.write_text("old-token")
    current = credentials(tmp_path)
    with contextlib.contextmanager(mounting)(tmp_path_factory) as mount:
        token.unlink()
        token.symlink_to(mount("fuse") / "token")
        first = asyncio.create_task(current.reload())
        while not current._thread._work_queue.empty():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # its thread has begun, and hangs in the mount
        (tmp_path / "next").write_text("second-token")
        (tmp_path / "next").rename(token)
        second = asyncio.create_task(current.reload())
        await asyncio.sleep(0)
        assert accepts(current, "old-token")
        assert not first.done()
        assert not second.done()
    # The mount is gone, and what hung in it fails.
    reason = await first
    assert reason is not None
    assert reason.startswith("--ws-token-file: cannot read")
    assert await second is None
    assert accepts(current, "second-token")
