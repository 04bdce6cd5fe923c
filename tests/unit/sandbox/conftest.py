"""A workspace, daemons that make mount points in it, and sandboxes made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.mount_points.registry import MountPoints
from tests.support.mounts import Mount, mounting
from tests.unit.sandbox.mount_point_daemons import Daemon
from tests.unit.sandbox.rig import Rig


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    return folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def points(state: Path) -> Iterator[MountPoints]:
    points = MountPoints(str(state))
    yield points
    points.close()


@pytest.fixture
def daemons(state: Path) -> Iterator[list[Daemon]]:
    """Two daemons of the same user."""
    both = [Daemon(state), Daemon(state)]
    yield both
    for daemon in both:
        daemon.kill()


@pytest.fixture
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    yield from mounting(tmp_path_factory)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder of all files, a path without links."""
    return tmp_path.resolve()


@pytest.fixture
def rig(base: Path) -> Iterator[Rig]:
    made = Rig(base / "state")
    yield made
    made.close()
