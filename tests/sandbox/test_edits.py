"""Edits in a sandbox: nothing outside is changed, also by a new server that completes the edits of a dead
one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execserver.fault_points import VARIABLE
from tests.faults.service import Service, eventually
from tests.sandbox.host import Host
from tests.sandbox.profiles import WORKSPACE, at, context, restricted, special
from tests.sandbox_user import remove_tree
from tests.support.edits import (
    FiveFiles,
    Picture,
    kill_at_the_point,
    picture,
    records,
    remove,
    wait_stopped,
    write,
)
from tests.support.wire import PATIENCE, Json

GUARDED = (".git", ".agents", ".codex", ".aws")
"""Empty folders that exist in a workspace as long as its worker."""


class Scene:
    """A service, a workspace, and a folder outside."""

    def __init__(self, folder: Path, fault_point: str = "") -> None:
        self.folder, self.out = folder, folder / "out"
        self.files = FiveFiles(folder / "ws")
        self.out.mkdir()
        (self.out / "file").write_text("outside")
        self.service = Service("unix", folder, env={VARIABLE: fault_point} if fault_point else {})
        self.client = self.service.connect()

    @property
    def sandbox(self) -> Json:
        """Everything can be read, the workspace can be written."""
        return context(restricted(special("root", "read"), at(self.files.folder, "write")))

    def now(self) -> Picture:
        """The workspace without the worker's mount points."""
        return {name: what for name, what in self.files.now().items() if name not in GUARDED}

    @property
    def records(self) -> list[str]:
        return records(self.folder / "state/execserver")


@pytest.fixture
def make_scene() -> Iterator[Callable[..., Scene]]:
    """`make_scene()`, or `make_scene(fault_point)`."""
    # A short name: a Unix socket's path has 107 bytes. Not below /tmp, which sandboxes have of their own.
    folder = Path(tempfile.mkdtemp(prefix="edits-", dir="/var/tmp"))
    scenes: list[Scene] = []

    def make(fault_point: str = "") -> Scene:
        scenes.append(Scene(folder, fault_point))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.service.end()
    remove_tree(folder)


def test_an_edit_outside_is_refused_and_all_others_with_it(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    for path in (scene.out / "file", scene.out / "new", scene.files.folder / ".git/config"):
        edits = [*scene.files.edits, write(path, "x", createParents=True)]
        failure = scene.client.refused("fs/applyEdits", {"edits": edits, "sandbox": scene.sandbox})
        assert (failure.code, failure.message) == (
            -32603,
            f"edits[5] ({path}): Read-only file system (os error 30)",
        )
    assert scene.now() == scene.files.old
    assert (os.listdir(scene.out), (scene.out / "file").read_text()) == (["file"], "outside")
    assert scene.records == []
    scene.client.call("fs/applyEdits", {"edits": [*scene.files.edits, write(scene.out / "file", "x")]})
    assert scene.now() == scene.files.new
    assert (scene.out / "file").read_text() == "x"


@pytest.mark.parametrize(
    ("point", "is_new"),
    [("edits-begun", False), ("edits-staged:3", False), ("edits-recorded", True), ("edits-tidied", True)],
)
def test_a_killed_server_leaves_the_old_tree_or_the_new_one(
    make_scene: Callable[..., Scene], point: str, is_new: bool
) -> None:
    scene = make_scene(point)
    scene.client.request("fs/applyEdits", {"edits": scene.files.edits, "sandbox": scene.sandbox})
    kill_at_the_point(scene.service)
    scene.service.connect()
    assert scene.now() == (scene.files.new if is_new else scene.files.old)
    assert scene.records == []


def test_edits_of_a_dead_server_are_completed_in_the_same_sandbox(
    make_scene: Callable[..., Scene],
) -> None:
    scene = make_scene("edits-recorded")
    inside, outside = scene.files.folder / "sub", scene.out / "sub"
    inside.mkdir()
    (inside / "file").write_text("old")
    edits = [write(inside / "file", "new")]
    scene.client.request("fs/applyEdits", {"edits": edits, "sandbox": scene.sandbox})
    # A server without a sandbox would follow the link, and change what is outside now.
    wait_stopped(scene.service)
    inside.rename(outside)
    inside.symlink_to(outside)
    kill_at_the_point(scene.service)
    scene.service.connect()
    assert (outside / "file").read_text() == "old"
    assert picture(scene.out)["file"][1] == b"outside"
    assert len(scene.records) == 1, "it is kept, and told"
    told = ("edits of a server before", "could not be removed yet")
    assert eventually(lambda: any(text in scene.service.log for text in told), PATIENCE)


@pytest.mark.parametrize("confined", [False, True])
def test_an_ordinary_user_changes_what_is_its_own(anyones_host: Host, confined: bool) -> None:
    place = anyones_host.tree()
    place.add({"ws/readonly": "kept", "ws/others/file": "theirs", "ws/others/gone": "theirs"})
    (place.ws / "readonly").chmod(0o444)
    members = {"sandbox": place.context(WORKSPACE)} if confined else {}

    def refused(*edits: Json) -> tuple[int, str]:
        failure = anyones_host.client.refused("fs/applyEdits", {"edits": list(edits), **members})
        return failure.code, failure.message.rpartition(": ")[2]

    change = write(place.ws / "a.txt", "new")
    anyones_host.client.call("fs/applyEdits", {"edits": [change, remove(place.ws / "denied.txt")], **members})
    assert (place.ws / "a.txt").read_text() == "new"
    assert (place.ws / "a.txt").stat().st_uid == place.user.uid
    assert not (place.ws / "denied.txt").exists()
    if place.user.is_root or os.geteuid() != 0:
        return
    again = write(place.ws / "a.txt", "again")
    denied = (-32600, "Permission denied (os error 13)")
    assert refused(again, write(place.ws / "readonly", "x")) == denied
    os.chown(place.ws / "others", 0, 0)
    assert refused(again, write(place.ws / "others/file", "x")) == denied
    assert refused(again, remove(place.ws / "others/gone")) == denied
    # Its folder lets the file be replaced, and itself be written to; it would have another owner.
    os.chown(place.ws / "others/file", 0, 0)
    os.chown(place.ws / "others", place.user.uid, place.user.gid)
    (place.ws / "others/file").chmod(0o666)
    assert refused(again, write(place.ws / "others/file", "x"))[1].endswith("in place by fs/writeFile")
    assert (place.ws / "a.txt").read_text() == "new"
    assert sorted(os.listdir(place.ws / "others")) == ["file", "gone"]
