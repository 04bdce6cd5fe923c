"""`fs/applyEdits`: several files are changed as one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import stat
from pathlib import Path

import pytest

from execserver.fault_points import VARIABLE
from tests.conformance.endpoint import OWN_SERVER, Endpoint
from tests.conformance.test_survive import server_pid
from tests.sandbox.profiles import READ_ROOT, WRITE_WORKSPACE, at, context, glob, restricted
from tests.support.edits import MARK, FiveFiles, picture, remove, write
from tests.support.wire import Client, Json, path_uri, wait_gone, wait_state

pytestmark = pytest.mark.skipif(not OWN_SERVER, reason="another executor has no such method")

WORKSPACE = restricted(READ_ROOT, WRITE_WORKSPACE)


def apply(client: Client, *edits: Json, **members: Json) -> list[Json]:
    """What came of edits."""
    done: list[Json] = client.call("fs/applyEdits", {"edits": list(edits), **members})["edits"]
    return done


def refusal(client: Client, *edits: Json, **members: Json) -> tuple[int, str]:
    """The error that edits give."""
    failure = client.refused("fs/applyEdits", {"edits": list(edits), **members})
    return failure.code, failure.message


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def files(here: Path) -> FiveFiles:
    return FiveFiles(here / "ws")


@pytest.fixture(params=[False, True], ids=["plain", "confined"])
def members(request: pytest.FixtureRequest, files: FiveFiles) -> Json:
    """Members of the request: nothing, or a sandbox that leaves the workspace open."""
    sandbox = context(WORKSPACE, cwd=files.folder, roots=[files.folder])
    return {"sandbox": sandbox} if request.param else {}


# -- what edits do


@pytest.mark.everywhere
@pytest.mark.statement("A1", "A5", "A6", "A8", "C50")
def test_all_edits_are_carried_out(client: Client, files: FiveFiles, members: Json) -> None:
    done = apply(client, *files.edits, **members)
    assert [each["path"] for each in done] == [edit["path"] for edit in files.edits]
    wanted = [*map(digest, ("new first", "new second", "new file", "new third")), None]
    assert [each["sha256"] for each in done] == wanted
    assert {name: what for name, what in files.now().items() if name not in GUARDED} == files.new


GUARDED = (".git", ".agents", ".codex", ".aws")
"""Empty folders that stand in a workspace for as long as its worker lives."""


@pytest.mark.statement("A4", "A11")
def test_nothing_is_changed_unless_all_is_as_expected(
    client: Client, files: FiveFiles, members: Json
) -> None:
    first, third = files.folder / "first", files.folder / "third"
    wanted, other = digest("other"), f"what is there has the SHA-256 {digest('old first')}"
    for edit, said in (
        (write(first, "x", expected={"sha256": wanted}), f"the SHA-256 {wanted}, but {other}"),
        (write(first, "x", expected={"absent": True}), f"nothing there, but {other}"),
        (remove(first, expected={"sha256": wanted}), f"the SHA-256 {wanted}, but {other}"),
        (write(third, "x", expected={"sha256": wanted}), f"the SHA-256 {wanted}, but nothing is there"),
    ):
        path = first if edit["path"] == path_uri(first) else third
        assert refusal(client, write(files.folder / "link", "x"), edit, **members) == (
            -32600,
            f"edits[1] ({path}): expected {said}; nothing is changed",
        )
    assert {name: what for name, what in files.now().items() if name not in GUARDED} == files.old


@pytest.mark.statement("A4")
def test_what_is_as_expected_is_changed(client: Client, files: FiveFiles, members: Json) -> None:
    apply(
        client,
        write(files.folder / "first", "1", expected={"sha256": digest("old first")}),
        write(files.folder / "link", "2", expected={"sha256": digest("old second")}),
        write(files.folder / "third", "3", expected={"absent": True}),
        remove(files.folder / "gone", expected={"sha256": digest("old gone")}),
        **members,
    )
    assert [(files.folder / name).read_text() for name in ("first", "second", "third")] == ["1", "2", "3"]
    assert not (files.folder / "gone").exists()


@pytest.mark.statement("A5")
def test_links_are_written_through_and_removed_themselves(client: Client, files: FiveFiles) -> None:
    (files.folder / "dangling").symlink_to("made")
    (files.folder / "chain").symlink_to("dangling")
    apply(client, write(files.folder / "chain", "x"), remove(files.folder / "link"))
    assert (files.folder / "made").read_text() == "x"
    assert os.readlink(files.folder / "chain") == "dangling"
    assert not os.path.lexists(files.folder / "link")
    assert (files.folder / "second").read_text() == "old second"


@pytest.mark.statement("A5", "F2", "A11")
def test_what_is_no_file_is_refused(client: Client, files: FiveFiles) -> None:
    (files.folder / "folder").mkdir()
    os.mkfifo(files.folder / "fifo")
    folder, fifo, nothing = (files.folder / name for name in ("folder", "fifo", "nothing"))
    before = files.now()
    for edit in (write(folder, "x"), remove(folder), write(f"{folder}/", "x")):
        code, message = refusal(client, write(files.folder / "first", "x"), edit)
        assert (code, message.rpartition(": ")[2]) == (-32603, "Is a directory (os error 21)")
    assert refusal(client, write(fifo, "x")) == (-32600, f"edits[0] ({fifo}): path `{fifo}` is not a file")
    missing = (-32004, f"edits[0] ({nothing}): No such file or directory (os error 2)")
    assert refusal(client, remove(nothing)) == missing
    assert files.now() == before
    apply(client, remove(fifo))
    assert not os.path.lexists(fifo)


@pytest.mark.statement("A6")
def test_a_file_is_replaced_with_its_mode(client: Client, files: FiveFiles, members: Json) -> None:
    first = files.folder / "first"
    first.chmod(0o4751)
    os.link(first, files.folder / "other name")
    client.call("fs/open", {"handleId": "h", "path": path_uri(first)})
    apply(client, write(first, "new"), **members)
    assert stat.S_IMODE(first.stat().st_mode) == 0o751
    assert first.read_text() == "new"
    assert (files.folder / "other name").read_text() == "old first"
    assert client.call("fs/readBlock", {"handleId": "h", "offset": 0, "len": 9})["chunk"]


@pytest.mark.statement("A6")
def test_attributes_and_owners_stay(client: Client, files: FiveFiles) -> None:
    first = files.folder / "first"
    with contextlib.suppress(OSError):  # a file system without them
        os.setxattr(first, "user.word", b"kept")
    if os.geteuid() == 0:
        os.chown(first, 1234, 2345)
    before, names = first.stat(), os.listxattr(first)
    apply(client, write(first, "new"))
    after = first.stat()
    assert (after.st_uid, after.st_gid, os.listxattr(first)) == (before.st_uid, before.st_gid, names)


@pytest.mark.statement("A7")
def test_a_new_file_can_have_the_mode_of_another(client: Client, files: FiveFiles, members: Json) -> None:
    first = files.folder / "first"
    apply(
        client,
        write(files.folder / "moved", "x", modeFrom=path_uri(first)),
        write(files.folder / "usual", "x"),
        write(files.folder / "second", "x", modeFrom=path_uri(first)),
        remove(first),
        **members,
    )
    modes = {
        name: stat.S_IMODE((files.folder / name).stat().st_mode) for name in ("moved", "usual", "second")
    }
    assert modes == {"moved": 0o640, "usual": 0o644, "second": 0o644}
    assert refusal(client, write(files.folder / "x", "x", modeFrom=path_uri(first)))[0] == -32004


@pytest.mark.statement("A8")
def test_folders_are_made_only_when_asked_for(client: Client, files: FiveFiles) -> None:
    deep = files.folder / "a/b/c"
    code, message = refusal(client, write(files.folder / "first", "x"), write(deep, "x"))
    assert (code, message) == (-32004, f"edits[1] ({deep}): No such file or directory (os error 2)")
    assert refusal(client, write(files.folder / "first/below", "x", createParents=True))[0] == -32603
    assert files.now() == files.old
    apply(
        client,
        write(deep, "c", createParents=True),
        write(files.folder / "a/b/d", "d"),
        write(files.folder / "a/e", "e"),
    )
    assert [(files.folder / "a" / name).read_text() for name in ("b/c", "b/d", "e")] == ["c", "d", "e"]


@pytest.mark.statement("A9")
def test_two_edits_of_one_place_are_refused(client: Client, files: FiveFiles, members: Json) -> None:
    folder = files.folder
    os.link(folder / "first", folder / "hard")
    (folder / "here").symlink_to(".")
    before = files.now()
    for one, two in (
        (write(folder / "first", "x"), write(folder / "first", "y")),
        (write(folder / "first", "x"), remove(f"{folder}/here/first")),
        (write(folder / "first", "x"), write(f"{folder}/here/x/../hard", "y")),
        (write(folder / "link", "x"), write(folder / "second", "y")),
        (write(folder / "new", "x"), write(folder / "new/below", "y", createParents=True)),
        (write(folder / "new/a/b", "x", createParents=True), write(f"{folder}/here/new/a", "y")),
        (remove(folder / "gone"), remove(folder / "gone")),
    ):
        code, message = refusal(client, write(folder / "third", "z"), one, two, **members)
        assert code == -32602
        assert message.startswith(("edits[1] (", "edits[2] ("))
        assert "edits[1] (" in message
        assert "edits[2] (" in message
    assert {name: what for name, what in files.now().items() if name not in GUARDED} == before
    apply(client, remove(folder / "first"), remove(folder / "hard"), **members)


@pytest.mark.statement("A10", "E23")
def test_edits_that_do_not_decode(client: Client, files: FiveFiles) -> None:
    first = files.folder / "first"
    many = [write(files.folder / str(number), "") for number in range(10_001)]
    assert refusal(client) == (-32602, "`edits` has 0 edits: 1 to 10000 are taken at a time")
    assert refusal(client, *many) == (-32602, "`edits` has 10001 edits: 1 to 10000 are taken at a time")
    for edit in (
        {**write(first, "x"), "op": "move"},
        {"op": "write", "path": path_uri(first)},
        write(first, "x", expected={"absent": False}),
        write(first, "x", expected={"sha256": "00"}),
        write(first, "x", expected={}),
        remove(first, expected={"absent": True}),
    ):
        assert refusal(client, edit)[0] == -32602, edit
    code, message = refusal(
        client, write(first, ""), {**write(files.folder / "third", ""), "dataBase64": "YQ"}
    )
    assert code == -32600
    text = f"edits[1] ({files.folder}/third): fs/applyEdits requires valid base64 dataBase64: "
    assert message.startswith(text)
    assert files.now() == files.old


@pytest.mark.statement("A10")
def test_many_edits_at_once_delay_no_other_request(endpoint: Endpoint, here: Path) -> None:
    client, other = endpoint.connect(), endpoint.connect()
    edits = [
        write(here / f"{number % 30}/{number}", str(number), createParents=True) for number in range(900)
    ]
    number = client.request("fs/applyEdits", {"edits": edits})
    while not client.answered(number):
        other.call("environment/status", timeout=10)
    client.result(number)
    assert {path.name: path.read_text() for path in here.glob("*/*")} == {str(n): str(n) for n in range(900)}


# -- whatever happens


@pytest.mark.transports("unix")
@pytest.mark.statement("A2")
@pytest.mark.parametrize(("point", "is_new"), [("edits-ready", False), ("edits-step:3", True)])
def test_a_killed_server_leaves_the_old_files_or_the_new_ones(
    endpoint: Endpoint, files: FiveFiles, members: Json, point: str, is_new: bool
) -> None:
    if members and point.startswith("edits-step"):
        point = "edits-recorded"  # an fs worker has no points
    private = endpoint.private(env={VARIABLE: point})
    client = private.connect()
    client.request("fs/applyEdits", {"edits": files.edits, **members})
    pid = server_pid(private)
    wait_state([pid], "T")
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)
    private.connect().call("environment/status")
    found = {name: what for name, what in files.now().items() if name not in GUARDED}
    assert found == (files.new if is_new else files.old)


@pytest.mark.transports("unix")
@pytest.mark.statement("A3")
@pytest.mark.parametrize(("point", "is_new"), [("edits-staged:4", False), ("edits-recorded", True)])
def test_edits_go_on_without_their_connection_once_they_are_recorded(
    endpoint: Endpoint, files: FiveFiles, point: str, is_new: bool
) -> None:
    # Long enough in the making for the end of a connection to be noticed.
    large = write(files.folder / "gone", bytes(16 << 20))
    private = endpoint.private(env={VARIABLE: point})
    client, other = private.connect(), private.connect()
    client.request("fs/applyEdits", {"edits": [*files.edits[:4], large]})
    pid = server_pid(private)
    wait_state([pid], "T")
    client.close()
    os.kill(pid, signal.SIGCONT)
    while any(path.name.startswith(MARK) for path in files.folder.iterdir()):
        other.call("environment/status")
    wanted = {**files.new, "gone": (files.old["gone"][0], bytes(16 << 20))} if is_new else files.old
    assert files.now() == wanted


@pytest.mark.transports("unix")
@pytest.mark.statement("A12")
def test_a_change_by_another_program_meanwhile_stays(endpoint: Endpoint, files: FiveFiles) -> None:
    for point, name in (("edits-begun", "first"), ("edits-ready", "third"), ("edits-recorded", "third")):
        private = endpoint.private(env={VARIABLE: point})
        client = private.connect()
        before = files.now()
        number = client.request("fs/applyEdits", {"edits": files.edits})
        pid = server_pid(private)
        wait_state([pid], "T")
        (files.folder / name).write_text(f"theirs at {point}")
        os.kill(pid, signal.SIGCONT)
        failure = client.failure(number)
        assert str(files.folder / name) in failure.message
        assert (files.folder / name).read_text() == f"theirs at {point}"
        (files.folder / name).unlink()
        before.pop(name, None)
        assert files.now() == before
        (files.folder / "first").write_text("old first")


@pytest.mark.transports("unix")
@pytest.mark.statement("A13")
def test_the_changes_are_made_one_after_the_other(endpoint: Endpoint, files: FiveFiles) -> None:
    private = endpoint.private(env={VARIABLE: "edits-step:2"})
    client = private.connect()
    number = client.request("fs/applyEdits", {"edits": files.edits})
    pid = server_pid(private)
    wait_state([pid], "T")
    assert (files.folder / "first").read_text() == "new first"
    assert (files.folder / "gone").exists()
    os.kill(pid, signal.SIGCONT)
    client.result(number)
    assert files.now() == files.new


# -- in a sandbox


@pytest.mark.statement("C54", "C51")
def test_edits_stay_within_their_sandbox(client: Client, here: Path) -> None:
    for name in ("ws/.git", "out"):
        (here / name).mkdir(parents=True)
    for name in ("ws/a", "ws/.git/config", "ws/.env", "out/a", "out/single"):
        (here / name).write_text("old")
    permissions = restricted(
        READ_ROOT, WRITE_WORKSPACE, at(here / "out/single", "write"), glob(f"{here}/**/.env")
    )
    sandbox = context(permissions, cwd=here / "ws", roots=[here / "ws"])
    before = picture(here)
    for name, error in (
        ("out/a", (-32603, "Read-only file system (os error 30)")),
        ("out/new", (-32603, "Read-only file system (os error 30)")),
        ("out/single", (-32603, "Read-only file system (os error 30)")),
        ("ws/.git/config", (-32603, "Read-only file system (os error 30)")),
        ("ws/.env", (-32600, "Permission denied (os error 13)")),
        ("ws/sub/.env", (-32600, "Permission denied (os error 13)")),
    ):
        edits = [write(here / "ws/a", "new"), write(here / name, "new", createParents=True)]
        code, message = refusal(client, *edits, sandbox=sandbox)
        assert (code, message) == (error[0], f"edits[1] ({here / name}): {error[1]}")
    unwanted = [name for name in picture(here) if name not in before and Path(name).name not in GUARDED]
    assert not unwanted
    assert (here / "ws/a").read_text() == "old"
    assert refusal(client, remove(here / "out/a"), sandbox=sandbox)[0] == -32603
    apply(client, write(here / "ws/a", "new"), write(here / "out/new", "new"))
    assert (here / "out/new").read_text() == "new"


@pytest.mark.statement("C54", "C52")
def test_a_digest_of_what_is_denied_is_not_told(client: Client, here: Path) -> None:
    (here / "denied").write_text("secret")
    (here / "link").symlink_to("denied")
    sandbox = context(
        restricted(READ_ROOT, WRITE_WORKSPACE, at(here / "denied", "deny")), cwd=here, roots=[here]
    )
    for name in ("denied", "link"):
        for edit in (write, lambda path, content, **members: remove(path, **members)):
            wrong = edit(here / name, "", expected={"sha256": digest("x")})
            assert digest("secret") not in refusal(client, wrong, sandbox=sandbox)[1]
    assert (here / "denied").read_text() == "secret"


# -- among other requests


@pytest.mark.statement("S8")
def test_edits_wait_for_what_goes_before_and_are_waited_for(client: Client, here: Path) -> None:
    for attempt in range(20):
        top = here / f"top{attempt}"
        numbers = client.pipeline(
            ("fs/createDirectory", {"path": path_uri(top / "a")}),
            ("fs/applyEdits", {"edits": [write(top / "a/b", "text"), write(top / "c", "more")]}),
            ("fs/digest", {"path": path_uri(top / "a/b")}),
            ("fs/applyEdits", {"edits": [remove(top / "a/b"), write(top / "c", "x")]}),
            ("fs/readDirectory", {"path": path_uri(top / "a")}),
        )
        assert client.result(numbers[2])["sha256"] == digest("text")
        assert client.result(numbers[4]) == {"entries": []}


@pytest.mark.transports("unix/standard")
@pytest.mark.statement("A4", "A9", "A11")
def test_errors_say_which_member_is_at_fault(client: Client, files: FiveFiles) -> None:
    first = files.folder / "first"
    for edits, code, field in (
        ([write(first, "x", expected={"absent": True})], "edit_conflict", "edits.0.expected"),
        ([write(first, "x"), remove(first)], "invalid_params", "edits.1.path"),
        ([write(first, "x"), remove(files.folder / "no")], "not_found", "edits.1.path"),
        ([{**write(first, "x"), "dataBase64": "!"}], "invalid_request", "edits.0.dataBase64"),
        ([], "invalid_params", "edits"),
    ):
        error = client.reply(client.request("fs/applyEdits", {"edits": edits}))["error"]
        assert error["data"] == {"code": code, "field": field}
