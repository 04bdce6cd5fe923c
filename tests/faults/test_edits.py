"""The server is killed at each step of a change of five files: the old tree or the new one, nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.service import Serve
from tests.faults.sizes import LONG
from tests.support.edits import FiveFiles, kill_at_the_point, records, remove, wait_stopped

BEFORE = (
    "edits-begun",
    *(f"edits-staging:{number}" for number in range(1, 5)),
    *(f"edits-staged:{number}" for number in range(1, 5)),
    "edits-ready",
)
"""Points at which nothing is recorded: the old tree."""

AFTER = (
    "edits-recorded",
    *(f"edits-step:{number}" for number in range(1, 6)),
    "edits-done",
    "edits-tidy",
    "edits-tidied",
    "edits-over",
)
"""Points behind the record: the new tree."""

SOME = ("edits-begun", "edits-staging:3", "edits-staged:4", "edits-ready")
SOME_AFTER = ("edits-recorded", "edits-step:1", "edits-step:4", "edits-done", "edits-tidied")


def _state(folder: Path) -> Path:
    return folder / "state" / "execserver"


@pytest.mark.parametrize("point", BEFORE if LONG else SOME)
def test_before_the_record_a_killed_server_leaves_the_old_tree(
    serve: Serve, folder: Path, point: str
) -> None:
    files = FiveFiles(folder / "ws")
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": point})
    service.connect().request("fs/applyEdits", {"edits": files.edits})
    kill_at_the_point(service)
    client = service.connect()
    assert files.now() == files.old
    assert records(_state(folder)) == []
    client.call("fs/applyEdits", {"edits": files.edits})
    assert files.now() == files.new


@pytest.mark.parametrize("client_is_gone", [False, True] if LONG else [True])
@pytest.mark.parametrize("point", AFTER if LONG else SOME_AFTER)
def test_behind_the_record_a_killed_server_leaves_the_new_tree(
    serve: Serve, folder: Path, point: str, client_is_gone: bool
) -> None:
    files = FiveFiles(folder / "ws")
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": point})
    client = service.connect()
    client.request("fs/applyEdits", {"edits": files.edits})
    if client_is_gone:
        wait_stopped(service)
        client.close()
    kill_at_the_point(service)
    service.connect()
    assert files.now() == files.new
    assert records(_state(folder)) == []


def test_the_next_service_ends_what_a_dead_one_has_begun(serve: Serve, folder: Path) -> None:
    """Both are killed, as by a power cut: nobody takes over."""
    files = FiveFiles(folder / "ws")
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": "edits-step:2"})
    service.connect().request("fs/applyEdits", {"edits": files.edits})
    wait_stopped(service)
    os.kill(service.pid, signal.SIGKILL)
    service.signal_server(signal.SIGKILL)
    assert service.server_ended(10)
    assert files.now() not in (files.old, files.new)
    serve("unix").connect()
    assert files.now() == files.new
    assert records(_state(folder)) == []


@pytest.mark.parametrize("fault", ["directory", "other file", "gone"])
def test_a_step_that_cannot_be_done_is_undone_with_all_before_it(
    serve: Serve, folder: Path, fault: str
) -> None:
    files = FiveFiles(folder / "ws")
    service = serve("unix", env={"EXECSERVER_FAULT_POINT": "edits-recorded"})
    client = service.connect()
    number = client.request("fs/applyEdits", {"edits": files.edits})
    wait_stopped(service)
    target = files.folder / "third"
    if fault == "directory":
        target.mkdir()
        (target / "of somebody else").touch()
    elif fault == "other file":
        target.write_text("of somebody else")
    else:
        target = files.folder / "gone"
        target.unlink()
        target.mkdir()
    theirs = {name: what for name, what in files.now().items() if not name.startswith(".execserver")}
    service.signal_server(signal.SIGCONT)
    failure = client.failure(number)
    assert failure.message.endswith("; nothing is changed")
    assert str(target) in failure.message
    assert files.now() == theirs
    assert records(_state(folder)) == []


@pytest.mark.parametrize("point", ["", "edits-back", "edits-undone-step:2", "edits-tidied"])
def test_a_server_that_is_killed_while_it_undoes_leaves_the_old_tree(
    serve: Serve, folder: Path, point: str
) -> None:
    files = FiveFiles(folder / "ws")
    # A mount point cannot be removed, and nothing tells that before.
    mounted = files.folder / "mounted"
    mounted.write_text("old")
    old = files.now()
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    script = f'mount --bind {files.folder}/stays {mounted} && exec "$@"'
    launcher = [*unshare, "/bin/sh", "-c", script, "sh"]
    service = serve("unix", may_fail=True, launcher=launcher, env={"EXECSERVER_FAULT_POINT": point})
    client = service.connect()
    number = client.request("fs/applyEdits", {"edits": [*files.edits, remove(mounted)]})
    if point:
        kill_at_the_point(service)
        service.connect()
    else:
        message = f"{mounted}: Device or resource busy (os error 16); nothing is changed"
        assert client.failure(number).message == message
    assert files.now() == old
    assert records(_state(folder)) == []
