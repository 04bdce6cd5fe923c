"""A patch of five files whose client or server is killed on the way: the old tree or the new one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from execclient import connect
from execclient.patch import Applied, apply, parse_patch, plan_at
from tests.faults.service import Serve, Service, eventually
from tests.faults.sizes import LONG
from tests.support.edits import kill_at_the_point, picture, records, wait_stopped
from tests.support.wire import PATIENCE

OLD: Mapping[str, str] = {
    "first": "one\ntwo\n",
    "second": "old\n",
    "moved": "same\nold\n",
    "gone": "away\n",
}
PATCH = """\
*** Begin Patch
*** Update File: first
@@
 one
-two
+three
*** Update File: second
@@
-old
+new
*** Update File: moved
*** Move to: there/moved
@@
-old
+new
*** Delete File: gone
*** Add File: folder/added
+added
*** End Patch"""
NEW = {
    "first": "one\nthree\n",
    "second": "new\n",
    "there/moved": "same\nnew\n",
    "folder/added": "added\n",
}

BEFORE = ("edits-begun", *(f"edits-staged:{number}" for number in range(1, 5)), "edits-ready")
AFTER = ("edits-recorded", *(f"edits-step:{number}" for number in range(1, 7)), "edits-done", "edits-tidied")
POINTS = (*BEFORE, *AFTER) if LONG else ("edits-staged:2", "edits-recorded", "edits-step:3", "edits-done")

CLIENT = """
import asyncio, sys
from execclient import connect
from execclient.patch import apply, parse_patch, plan_at

async def main(url, folder):
    async with connect(url) as executor:
        await apply(await plan_at(executor, parse_patch(sys.stdin.read()), cwd=folder), executor)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def tree(folder: Path) -> Path:
    """The tree as it is before the patch."""
    made = folder / "ws"
    made.mkdir()
    for name, text in OLD.items():
        (made / name).write_text(text)
    return made


def files(tree: Path) -> dict[str, str]:
    """What is there: all files, ours that were left behind too, if there are any."""
    return {
        name: content.decode() for name, (_, content) in picture(tree).items() if isinstance(content, bytes)
    }


async def patched(url: str, tree: Path) -> Applied:
    async with connect(url) as executor:
        return await apply(await plan_at(executor, parse_patch(PATCH), cwd=str(tree)), executor)


def begin(service: Service, tree: Path) -> subprocess.Popen[bytes]:
    """A client of its own that applies the patch; the server stops at its point."""
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, service.url, str(tree)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert client.stdin is not None
    client.stdin.write(PATCH.encode())
    client.stdin.close()
    wait_stopped(service)
    return client


@pytest.mark.parametrize("point", POINTS)
def test_a_client_that_is_killed_leaves_the_new_tree_or_the_old_one(
    serve: Serve, folder: Path, tree: Path, point: str
) -> None:
    service = serve("unix", env={"EXECSERVER_FAULT_POINT": point})
    client = begin(service, tree)

    client.kill()
    client.wait()
    service.signal_server(signal.SIGCONT)

    # It goes on to the one end or the other, with nobody to tell.
    assert eventually(lambda: not records(folder / "state" / "execserver"), PATIENCE)
    assert files(tree) in (dict(OLD), NEW)
    assert point in BEFORE or files(tree) == NEW


@pytest.mark.parametrize("point", POINTS)
async def test_a_client_whose_server_is_killed_learns_what_became_of_its_patch(
    serve: Serve, folder: Path, tree: Path, point: str
) -> None:
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": point})
    applying = asyncio.create_task(patched(service.url, tree))

    await asyncio.to_thread(kill_at_the_point, service)
    applied = await applying

    assert applied.was_atomic
    assert files(tree) == NEW
    assert records(folder / "state" / "execserver") == []
