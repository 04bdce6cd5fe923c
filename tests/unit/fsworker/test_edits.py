"""Edits by a worker: the same as in this process, even if the worker dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execprotocol.errors import InternalError, InvalidRequest
from execserver.edits import transaction
from execserver.edits.api import Edits
from execserver.edits.backends import EditContext
from execserver.edits.journal import Journal
from execserver.edits.plan import Edit
from execserver.fsworker.pool import WorkerPool
from tests.support.edits import FiveFiles
from tests.support.fs_workers import BareLauncher, policy_for

PATCH = (
    ("first", "bmV3IGZpcnN0"),
    ("link", "bmV3IHNlY29uZA=="),
    ("new/deep/file", "bmV3IGZpbGU="),
    ("third", "bmV3IHRoaXJk"),
    ("gone", None),
)


@pytest.fixture
def files(tmp_path: Path) -> FiveFiles:
    return FiveFiles(tmp_path / "ws")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def edits(state: Path, pool: WorkerPool) -> Edits:
    state.mkdir(mode=0o700)
    return Edits(lambda: str(state), pool)


@pytest.fixture
def context() -> Iterator[EditContext]:
    made = EditContext()
    yield made
    made.close()


def patch(files: FiveFiles) -> list[Edit]:
    return [Edit(str(files.folder / name), text, create_parents=True) for name, text in PATCH]


def at_point(monkeypatch: pytest.MonkeyPatch, wanted: str, act: Callable[[], None]) -> None:
    """Do something when a transaction reaches a point."""
    monkeypatch.setattr(transaction, "reach", lambda name: act() if name == wanted else None)


@pytest.mark.parametrize("confined", [False, True])
async def test_a_worker_does_what_the_daemon_does(
    edits: Edits, files: FiveFiles, context: EditContext, confined: bool, state: Path
) -> None:
    policy = policy_for(files.folder) if confined else None
    digests = await edits.apply(patch(files), policy, context)
    assert [digest is None for digest in digests] == [False, False, False, False, True]
    assert files.now() == files.new
    assert os.listdir(state / "edits") == ["lock"]


async def test_more_steps_than_a_worker_is_asked_for_at_once_are_done(
    edits: Edits, files: FiveFiles, context: EditContext
) -> None:
    many = [Edit(str(files.folder / str(number)), "eA==") for number in range(150)]
    await edits.apply(many, policy_for(files.folder), context)
    await edits.apply([Edit(edit.path, None) for edit in many], policy_for(files.folder), context)
    assert files.now() == files.old


@pytest.mark.parametrize("point", ["edits-begun", "edits-recorded", "edits-done", "edits-tidy"])
async def test_a_worker_that_dies_between_two_requests_is_replaced(
    edits: Edits,
    files: FiveFiles,
    context: EditContext,
    launcher: BareLauncher,
    monkeypatch: pytest.MonkeyPatch,
    state: Path,
    point: str,
) -> None:
    at_point(monkeypatch, point, lambda: launcher.started[-1].kill())
    outcome: Exception | None = None
    try:
        await edits.apply(patch(files), policy_for(files.folder), context)
    except InternalError as error:
        outcome = error
    # Staging is not repeated; recorded steps are.
    assert files.now() == (files.old if outcome is not None else files.new)
    assert outcome is None or point == "edits-begun"
    assert os.listdir(state / "edits") == ["lock"]


async def test_what_a_pattern_denies_is_neither_written_nor_told(
    edits: Edits, files: FiveFiles, context: EditContext
) -> None:
    policy = policy_for(files.folder, deny=[f"{files.folder}/**/.env"])
    secret, link = files.folder / ".env", files.folder / "to env"
    secret.write_text("x")
    link.symlink_to(".env")
    before = files.now()
    for edit in (
        Edit(str(secret), "eA=="),
        Edit(str(secret), None),
        Edit(str(link), "eA=="),
        Edit(str(link), None, expected="0" * 64),
        Edit(str(files.folder / "new/.env"), "eA==", create_parents=True),
    ):
        with pytest.raises(InvalidRequest, match="Permission denied"):
            await edits.apply([edit], policy, context)
    assert files.now() == before
    await edits.apply([Edit(str(link), None)], policy, context)
    assert secret.read_text() == "x"


async def test_what_cannot_be_undone_is_said_and_left_to_the_next_start(
    edits: Edits,
    files: FiveFiles,
    context: EditContext,
    launcher: BareLauncher,
    pool: WorkerPool,
    monkeypatch: pytest.MonkeyPatch,
    state: Path,
) -> None:
    """No worker can be started any more once the record is there."""
    works = launcher.start

    def fails(_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    def break_it() -> None:
        launcher.started[-1].kill()
        monkeypatch.setattr(launcher, "start", fails)

    at_point(monkeypatch, "edits-recorded", break_it)
    with pytest.raises((InternalError, InvalidRequest)) as caught:
        await edits.apply(patch(files), policy_for(files.folder), context)
    assert caught.value.name == "edits_half_done"
    assert "the daemon tries to undo them again when it starts next" in caught.value.message
    monkeypatch.setattr(launcher, "start", works)
    await Edits(lambda: str(state), pool).replay()
    assert files.now() == files.old
    assert Journal(str(state)).take_unfinished(()) == ([], [], False)


async def test_a_record_that_another_daemon_works_at_is_left_to_it(
    edits: Edits,
    files: FiveFiles,
    context: EditContext,
    pool: WorkerPool,
    monkeypatch: pytest.MonkeyPatch,
    state: Path,
) -> None:
    other = Edits(lambda: str(state), pool)
    found: list[object] = []

    def inspect() -> None:
        found.append(Journal(str(state)).take_unfinished(()))

    at_point(monkeypatch, "edits-done", inspect)
    await edits.apply(patch(files), None, context)
    assert found == [([], [], True)]
    await other.replay()
    assert files.now() == files.new
    await other.close()
