"""Changes to the dependencies of a view while the view is made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.fsworker.policy_queue import ViewDependencies, WatchedPath


def fill(folder: Path) -> None:
    (folder / "hooks").mkdir(parents=True)


def empty(folder: Path) -> None:
    folder.mkdir()


def nothing(folder: Path) -> None:
    """Leave the name free."""


@pytest.mark.parametrize(
    ("before", "after", "still_right"),
    [
        # A mount point of another daemon: covered in either state.
        (empty, empty, True),
        (nothing, empty, True),
        # The view may cover what is no longer there.
        (fill, empty, False),
        (fill, nothing, False),
        (fill, fill, False),
        (empty, fill, False),
        (nothing, fill, False),
    ],
)
def test_only_what_may_be_a_mount_point_may_change_while_a_view_is_made(
    before: Callable[[Path], None], after: Callable[[Path], None], still_right: bool, tmp_path: Path
) -> None:
    name = tmp_path / ".git"
    before(name)
    next_request = ViewDependencies([WatchedPath(str(name), follow=False, protected=True, guarded=True)])
    shutil.rmtree(name, ignore_errors=True)
    after(name)

    second = next_request.renewed()

    assert (second is not None) is still_right
    next_request.close()
    if second is not None:
        assert second.holds()
        second.close()
