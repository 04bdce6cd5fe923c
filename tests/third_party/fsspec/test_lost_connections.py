"""Each change is made, at whatever byte of it the connection is cut.

With `--chaos` these tests are left out: a killed server would end connections before the byte of the cut.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from execclient import WorkspaceWrite, connect
from execclient.integrations.fsspec import ExecServerFileSystem
from tests.support.cutting_proxy import Cut, Direction, cutting
from tests.support.wire import Server

pytestmark = pytest.mark.without_chaos

CHANGES: dict[str, Callable[[ExecServerFileSystem, str], Awaitable[object]]] = {
    "create": lambda fs, at: fs._pipe_file(f"{at}/new", b"old", mode="create"),
    "replace": lambda fs, at: fs._pipe_file(f"{at}/old", b"new"),
    "copy": lambda fs, at: fs._cp_file(f"{at}/old", f"{at}/below/new"),
    "move a file": lambda fs, at: fs._mv(f"{at}/old", f"{at}/new"),
    "move a folder": lambda fs, at: fs._mv(f"{at}/full", f"{at}/below/new"),
    "move to another mount": lambda fs, at: fs._mv(f"{at}/full", f"{at}/empty/new"),
    "mkdir": lambda fs, at: fs._mkdir(f"{at}/new/below"),
    "rmdir": lambda fs, at: fs._rmdir(f"{at}/empty"),
    "rm_file": lambda fs, at: fs._rm_file(f"{at}/old"),
    "rm": lambda fs, at: fs._rm(f"{at}/full", recursive=True),
}
STEPS: dict[Direction, int] = {"to server": 90, "to client": 30}
"""Bytes between two cuts: less than a request, or a reply."""


@pytest.fixture
def short() -> Iterator[Path]:
    """For the proxy's socket."""
    with tempfile.TemporaryDirectory(prefix="exec-", dir="/tmp") as folder:
        yield Path(folder)


def make(top: Path) -> None:
    (top / "empty").mkdir(parents=True, exist_ok=True)
    for path in (*top.iterdir(), *(top / "empty").iterdir()):
        if path.is_file():
            path.unlink()
        elif path != top / "empty":
            shutil.rmtree(path)
    (top / "full").mkdir()
    (top / "old").write_bytes(b"old")
    (top / "full/file").write_bytes(b"file")


def state(top: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(top)): path.read_bytes() if path.is_file() else None for path in top.rglob("*")
    }


@pytest.mark.parametrize("direction", ["to server", "to client"])
@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_is_made_wherever_the_connection_is_cut(
    daemon: Server,
    folder: Path,
    short: Path,
    name: str,
    direction: Direction,
) -> None:
    top = folder / "top"
    # Each folder that may be written is a mount of its own in a sandbox.
    mounts = WorkspaceWrite(writable_roots=(f"{top}/empty",))
    sandbox = mounts if name == "move to another mount" else None

    async def change(cut: Cut | None) -> bool:
        """Make the change; whether the connection was cut meanwhile."""
        make(top)
        plan = [] if cut is None else [cut]
        async with cutting(daemon.url, short, lambda: plan.pop() if plan else None) as proxy:
            fs = ExecServerFileSystem(proxy.url, sandbox=sandbox, asynchronous=True, skip_instance_cache=True)
            try:
                await CHANGES[name](fs, str(top))
            finally:
                await fs._close()
            return proxy.cuts > 0

    await change(None)
    expected = state(top)
    async with connect(daemon.url) as executor:
        handshake = {"to client": len(json.dumps(executor.info)), "to server": 0}[direction]
    position = handshake
    while await change((direction, position := position + STEPS[direction])):
        assert state(top) == expected, position
    assert state(top) == expected
    assert position > handshake + 2 * STEPS[direction]
