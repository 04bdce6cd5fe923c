"""`fs/watch`, `fs/watchRead` and `fs/unwatch`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.conformance.endpoint import Endpoint
from tests.sandbox.profiles import READ_ROOT, at, context, glob, restricted
from tests.support.name_mirror import NameMirror, names_below, native
from tests.support.wire import PATIENCE, Client, Json, Server, path_uri


class Watched:
    """A watch, and the changes that were sent for it."""

    def __init__(self, client: Client, root: Path, watch_id: str = "w", **params: Json) -> None:
        self.client = client
        self.root = root
        self.id = watch_id
        self._sentinels = 0
        self.result = client.call("fs/watch", {"watchId": watch_id, "path": path_uri(root), **params})

    @property
    def events(self) -> list[Json]:
        """The parameters of its events."""
        return [
            note["params"]
            for note in self.client.notifications
            if note["method"] == "fs/changed" and note["params"]["watchId"] == self.id
        ]

    @property
    def changes(self) -> list[Json]:
        """All changes that were sent."""
        return [change for event in self.events for change in event["changes"]]

    @property
    def said(self) -> list[str]:
        """The changes as `created a/b`, or `renamed a to b`; those of sentinels are left out."""
        spoken = []
        for change in self.changes:
            path = self._below(change["path"])
            if "sentinel" not in path:
                came_from = f"{self._below(change['from'])} to " if "from" in change else ""
                spoken.append(f"{change['kind']} {came_from}{path}")
        return spoken

    def settled(self) -> list[str]:
        """What was said until now: a change that follows has been sent."""
        self._sentinels += 1
        name = f"sentinel{self._sentinels}"
        (self.root / name).touch()
        self.wait(lambda: any(change["path"].endswith(name) for change in self.changes))
        return self.said

    def wait(self, done: Json) -> None:
        """Wait for changes."""
        self.client.wait_until(done, what=f"changes beside {self.said}")

    def read(self, after_seq: int = 0, **params: Json) -> Json:
        """A page of its log."""
        return self.client.call("fs/watchRead", {"watchId": self.id, "afterSeq": after_seq, **params})

    def _below(self, uri: str) -> str:
        return native(uri).removeprefix(str(self.root)).lstrip("/")


@pytest.fixture
def watching(endpoint: Endpoint) -> Client:
    """A connection that takes events of watches."""
    return endpoint.connect(extensions=True)


@pytest.fixture
def tree(here: Path) -> Path:
    """A tree to watch; beside it is `out`."""
    for name in ("tree/sub/deep", "out"):
        (here / name).mkdir(parents=True)
    for name in ("tree/file", "tree/sub/file", "out/file"):
        (here / name).write_text(f"{name}\n")
    return here / "tree"


def overwrite(path: Path, text: str) -> None:
    """Write over the beginning of a file: one event, where `write_text` makes one for its truncation too."""
    with open(path, "r+b", buffering=0) as file:
        file.write(text.encode())


# -- what is reported


@pytest.mark.everywhere
@pytest.mark.statement("M10", "M11", "M12")
def test_changes_are_numbered_and_sent(watching: Client, tree: Path) -> None:
    watched = Watched(watching, tree)
    assert watched.result == {"watchId": "w", "mode": "inotify", "nextSeq": 1}
    (tree / "sub/deep/new").touch()
    watched.settled()
    overwrite(tree / "sub/deep/new", "content")
    watched.settled()
    (tree / "sub/deep/new").chmod(0o600)
    watched.settled()
    (tree / "file").unlink()
    assert watched.settled() == [
        "created sub/deep/new", "modified sub/deep/new", "modified sub/deep/new", "removed file",
    ]  # fmt: skip
    seq = 1
    for event in watched.events:
        assert event["firstSeq"] == seq
        assert "ended" not in event
        seq += len(event["changes"])
    assert not any(change["isDirectory"] for change in watched.changes)


@pytest.mark.statement("M10")
def test_a_file_is_watched_through_its_replacements(watching: Client, tree: Path) -> None:
    watched = Watched(watching, tree / "file")
    (tree / "other").write_text("new")
    (tree / "other").rename(tree / "file")
    watched.wait(lambda: len(watched.changes) == 1)
    overwrite(tree / "file", "in place")
    watched.wait(lambda: len(watched.changes) == 2)
    assert [change["kind"] for change in watched.changes] == ["created", "modified"]
    assert {native(change["path"]) for change in watched.changes} == {str(tree / "file")}


@pytest.mark.statement("M10")
def test_without_recursion_only_the_directory_itself_is_watched(watching: Client, tree: Path) -> None:
    watched = Watched(watching, tree, recursive=False)
    (tree / "sub/deep/new").touch()
    (tree / "sub/new").touch()
    (tree / "new").touch()
    assert [said for said in watched.settled() if said != "modified sub"] == ["created new"]


@pytest.mark.statement("M10", "M12")
def test_links_are_followed_in_the_path_and_not_below_it(watching: Client, tree: Path) -> None:
    link = tree.parent / "link"
    link.symlink_to(tree)
    (tree / "outside").symlink_to(tree.parent / "out")
    watched = Watched(watching, link)
    (tree.parent / "out/new").touch()
    (tree / "sub/new").touch()
    (tree / "sub/to-out").symlink_to(tree.parent / "out")
    assert watched.settled() == ["created sub/new", "created sub/to-out"]
    assert native(watched.changes[0]["path"]) == f"{link}/sub/new"
    assert not watched.changes[1]["isDirectory"]


@pytest.mark.statement("M10")
def test_names_that_are_no_utf8_are_exact(watching: Client, tree: Path) -> None:
    watched = Watched(watching, tree)
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff\n%")).touch()
    watched.wait(lambda: watched.changes)
    assert watched.changes[0]["path"] == path_uri(tree) + "/%FF%0A%25"


@pytest.mark.statement("M10")
def test_paths_that_cannot_be_watched_are_refused(watching: Client, tree: Path) -> None:
    params: dict[str, Json] = {"watchId": "w"}
    assert watching.refused("fs/watch", {**params, "path": path_uri(tree / "no")}).code == -32004
    assert watching.refused("fs/watch", {**params, "path": "file://host/x"}).code == -32600
    assert watching.call("fs/watch", {**params, "path": path_uri(tree)})["nextSeq"] == 1


@pytest.mark.statement("M13")
def test_renames_are_pairs_within_the_tree(watching: Client, tree: Path) -> None:
    watched = Watched(watching, tree)
    (tree / "file").rename(tree / "sub/deep/moved")
    (tree / "sub").rename(tree / "dir")
    (tree / "dir/deep/later").touch()
    assert watched.settled() == [
        "renamed file to sub/deep/moved", "renamed sub to dir", "created dir/deep/later",
    ]  # fmt: skip
    assert [change["isDirectory"] for change in watched.changes[:2]] == [False, True]


@pytest.mark.statement("M13")
def test_renames_over_the_edge_of_the_tree(watching: Client, tree: Path) -> None:
    (tree.parent / "out/below").mkdir()
    (tree.parent / "out/below/file").touch()
    watched = Watched(watching, tree)
    (tree.parent / "out/below").rename(tree / "in")
    watched.settled()
    (tree / "sub").rename(tree.parent / "out/sub")
    watched.settled()
    (tree.parent / "out/sub/unseen").touch()
    (tree / "in/seen").touch()
    assert watched.settled() == ["created in", "created in/file", "removed sub", "created in/seen"]


@pytest.mark.statement("M14")
def test_entries_of_new_directories_are_never_missed(watching: Client, tree: Path) -> None:
    watched, mirror = Watched(watching, tree), NameMirror(tree)
    for number in range(40):
        folder = tree / f"new{number}/a/b/c"
        folder.mkdir(parents=True)
        (folder / "file").touch()
        (folder.parent / "file").touch()
        if number % 4 == 0:
            (tree / f"new{number}").rename(tree / f"moved{number}")
        elif number % 4 == 1:
            shutil.rmtree(tree / f"new{number}/a/b")
    watched.settled()
    mirror.apply(watched.changes)
    assert mirror.names == names_below(tree)
    assert mirror.gaps == 0


@pytest.mark.statement("M16")
def test_repeated_changes_are_one(watching: Client, tree: Path) -> None:
    watched = Watched(watching, tree)
    with (tree / "file").open("r+b", buffering=0) as file:
        for round_number in range(3000):
            file.write(b"%d" % round_number)
            if round_number % 100 == 0:
                (tree / "temporary").touch()
                (tree / "temporary").unlink()
    said = watched.settled()
    assert said.count("modified file") < 1000
    assert said.count("removed temporary") >= 1
    assert [each for each in said if "temporary" in each][-1] == "removed temporary"


# -- what is left out


@pytest.mark.statement("M17")
def test_ignored_paths_are_not_reported(watching: Client, tree: Path) -> None:
    (tree / ".gitignore").write_text("*.o\n/build/\n!kept.o\n")
    (tree / "sub/.ignore").write_text("here\n")
    (tree / "build").mkdir()
    watched = Watched(watching, tree)
    for name in ("a.o", "kept.o", "build/x", "sub/here", "here", "sub/a.c"):
        (tree / name).touch()
    assert watched.settled() == ["created kept.o", "created here", "created sub/a.c"]
    everything = Watched(watching, tree, "all", ignoreRules=False)
    (tree / "b.o").touch()
    assert everything.settled() == ["created b.o"]


@pytest.mark.statement("M17")
def test_changed_rules_take_effect(watching: Client, tree: Path) -> None:
    (tree / ".gitignore").write_text("sub\n")
    watched = Watched(watching, tree)
    (tree / "sub/unseen").touch()
    overwrite(tree / ".gitignore", "*.o\n")
    watched.wait(lambda: "gap " in watched.said)
    (tree / "sub/seen").touch()
    (tree / "sub/x.o").touch()
    assert watched.settled()[-1] == "created sub/seen"
    (tree / ".gitignore").unlink()
    watched.wait(lambda: watched.said.count("gap ") == 2)
    (tree / "sub/y.o").touch()
    assert watched.settled()[-1] == "created sub/y.o"
    assert "created sub/unseen" not in watched.said


@pytest.mark.statement("M17")
def test_rules_of_the_repository_above_the_root(watching: Client, tree: Path) -> None:
    (tree / ".git/info").mkdir(parents=True)
    (tree / ".git/info/exclude").write_text("*.tmp\n")
    (tree / ".gitignore").write_text("/sub/out/\n")
    (tree.parent / ".gitignore").write_text("*.c\n")  # of another repository, if any
    watched = Watched(watching, tree / "sub")
    (tree / "sub/out").mkdir()
    (tree / "sub/out/x").touch()
    (tree / "sub/a.tmp").touch()
    (tree / "sub/a.c").touch()
    assert watched.settled() == ["created a.c"]


@pytest.mark.statement("M18")
def test_excluded_directories(watching: Client, tree: Path) -> None:
    (tree / "sub/.git").mkdir()
    watched = Watched(watching, tree, excludeDirs=[".git", "node_modules", "tree"])
    (tree / "sub/.git/x").touch()
    (tree / "node_modules").mkdir()
    (tree / "node_modules/x").touch()
    (tree / "sub/node_modules").touch()  # a file
    assert watched.settled() == ["created sub/node_modules"]
    error = watching.refused("fs/watch", {"watchId": "v", "path": path_uri(tree), "excludeDirs": ["a/b"]})
    assert error.code == -32600
    assert "excludeDirs" in error.message


# -- the log


@pytest.mark.statement("M19")
def test_the_log_is_read_in_pages(watching: Client, tree: Path) -> None:
    watched = Watched(watching, tree)
    for number in range(10):
        (tree / f"n{number}").touch()
        watched.settled()
    page = watched.read(maxChanges=7)
    assert (page["firstSeq"], len(page["changes"]), page["nextSeq"], page["ended"]) == (1, 7, 8, None)
    rest = watched.read(7)
    assert rest["firstSeq"] == 8
    assert page["changes"] + rest["changes"] == watched.changes
    last = rest["nextSeq"] - 1
    assert watched.read(last) == {"firstSeq": last + 1, "changes": [], "nextSeq": last + 1, "ended": None}
    error = watching.refused("fs/watchRead", {"watchId": "w", "afterSeq": last + 1, "waitMs": 60_000})
    assert error.code == -32600
    assert "another watch" in error.message


@pytest.mark.statement("M19", "M23")
def test_a_read_waits_for_a_change_and_delays_nothing(watching: Client, tree: Path) -> None:
    watched = Watched(watching, tree)
    waiting = [watching.request("fs/watchRead", {"watchId": "w", "waitMs": 60_000}) for _ in range(100)]
    began = time.monotonic()
    assert watched.read(waitMs=50)["changes"] == []
    assert time.monotonic() - began >= 0.05
    (tree / "new").touch()
    for number in waiting:
        assert native(watching.result(number)["changes"][0]["path"]) == str(tree / "new")
    late = watching.request("fs/watchRead", {"watchId": "w", "afterSeq": 1, "waitMs": 60_000})
    assert watching.call("fs/unwatch", {"watchId": "w"}) == {}
    assert watching.failure(late).code == -32600
    assert watching.call("fs/unwatch", {"watchId": "w"}) == {}
    sent = len(watched.events)
    (tree / "unseen").touch()
    Watched(watching, tree, "v").settled()
    assert len(watched.events) == sent


@pytest.mark.statement("M20")
def test_a_cursor_before_the_log_gets_a_gap(endpoint: Endpoint, tree: Path) -> None:
    own = endpoint.private()
    watching = own.connect(extensions=True)
    deep = tree.joinpath(*["d" * 200] * 15)
    deep.mkdir(parents=True)
    watched = Watched(watching, tree)
    program = program_of(own.server)
    server = program.parent()
    assert server is not None
    watching.pause()  # so that events cannot be sent
    for number in range(7000):  # 22 MB of changes, and fewer events than the kernel queues
        os.close(os.open(deep / f"n{number}", os.O_CREAT | os.O_WRONLY))
    used, quiet, deadline = -1.0, 0, time.monotonic() + PATIENCE
    while quiet < 2 and time.monotonic() < deadline:  # until it has received all of them
        time.sleep(1)
        before, used = used, sum(sum(each.cpu_times()[:2]) for each in (program, server))
        asleep = {each.status() for each in (program, server)} == {psutil.STATUS_SLEEPING}
        quiet = quiet + 1 if asleep and used == before else 0
    watching.resume()
    watched.wait(lambda: any("n6999" in change["path"] for change in watched.changes))
    gap = {"kind": "gap", "path": path_uri(tree), "isDirectory": True}
    page = watched.read(0)
    assert page["changes"][0] == gap
    assert page["firstSeq"] > 1
    jumps = [number for number, event in enumerate(watched.events) if event["changes"][0] == gap]
    assert jumps
    for number in jumps:  # several, of one change or more, if some are dropped while the first are sent
        before, jump = watched.events[number - 1 : number + 1]
        assert jump["firstSeq"] >= before["firstSeq"] + len(before["changes"])
    created = [change["path"] for change in watched.changes if change != gap]
    assert len(created) == len(set(created)) < 7000


@pytest.mark.statement("M21", "M23")
def test_a_watch_outlives_its_connection(endpoint: Endpoint, tree: Path) -> None:
    first = endpoint.connect(extensions=True)
    watched, mirror = Watched(first, tree), NameMirror(tree)
    (tree / "one").touch()
    watched.settled()
    for event in watched.events:
        mirror.apply_event(event)
    session = first.session_id
    first.close()
    (tree / "two").touch()
    (tree / "sub/two").mkdir()
    second = endpoint.connect(resume=session, extensions=True)
    watched.client = second
    (tree / "sub/two/three").touch()
    watched.settled()
    for event in watched.events:
        mirror.apply_event(event)
    assert mirror.names == names_below(tree)
    assert mirror.gaps == 0
    attached = second.call("fs/watch", {"watchId": "w", "path": path_uri(tree), "ifExists": "attach"})
    assert attached["nextSeq"] == mirror.next_seq


@pytest.mark.statement("M11", "M21")
def test_a_connection_without_extensions_reads_only(endpoint: Endpoint, tree: Path) -> None:
    client = endpoint.connect()
    watched = Watched(client, tree)
    (tree / "new").touch()
    assert native(watched.read(waitMs=10_000)["changes"][0]["path"]) == str(tree / "new")
    assert not watched.events


@pytest.mark.statement("M22")
def test_ids_are_unique_in_a_session_and_bounded(watching: Client, tree: Path) -> None:
    params: dict[str, Json] = {"watchId": "w", "path": path_uri(tree), "excludeDirs": ["x"]}
    watching.call("fs/watch", params)
    assert watching.refused("fs/watch", params).code == -32600
    assert watching.call("fs/watch", {**params, "ifExists": "attach"})["mode"] == "inotify"
    for member, value in (("path", path_uri(tree / "sub")), ("recursive", False), ("excludeDirs", [])):
        error = watching.refused("fs/watch", {**params, "ifExists": "attach", member: value})
        assert error.code == -32600
        assert f"`{member}`" in error.message
    for wrong in ("", "ü" * 33):
        assert watching.refused("fs/watch", {**params, "watchId": wrong}).code == -32600
    for number in range(31):
        watching.call("fs/watch", {"watchId": f"w{number}", "path": path_uri(tree), "recursive": False})
    error = watching.refused("fs/watch", {"watchId": "more", "path": path_uri(tree)})
    assert error.code == -32600
    assert "fs/unwatch" in error.message
    watching.call("fs/unwatch", {"watchId": "w7"})
    watching.call("fs/watch", {"watchId": "more", "path": path_uri(tree), "ignoreRules": False})


@pytest.mark.statement("S10")
def test_requests_about_one_watch_are_in_order(watching: Client, tree: Path) -> None:
    numbers = []
    for _ in range(3):
        numbers += watching.pipeline(
            ("fs/watch", {"watchId": "w", "path": path_uri(tree), "ignoreRules": False}),
            ("fs/watchRead", {"watchId": "w"}),
            ("fs/unwatch", {"watchId": "w"}),
        )
    assert [watching.result(number) for number in numbers][2::3] == [{}] * 3


# -- faults


def program_of(server: Server) -> psutil.Process:
    """The one program of a watch below a server's supervisor."""
    found = []
    for child in psutil.Process(server.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("the daemon is gone" in argument for argument in child.cmdline()[:12]):
                found.append(child)
    (program,) = found
    return program


@pytest.mark.statement("M15")
def test_an_overflow_of_the_queue_is_a_gap(endpoint: Endpoint, tree: Path) -> None:
    own = endpoint.private()
    watched = Watched(own.connect(extensions=True), tree)
    mirror = NameMirror(tree)
    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        limit = int(file.read())
    program = program_of(own.server)
    program.send_signal(signal.SIGSTOP)
    try:
        for number in range(limit // 2 + 100):
            (tree / f"n{number % 50}").touch()
            (tree / f"n{number % 50}").unlink()
        (tree / "made/in/between").mkdir(parents=True)
    finally:
        program.send_signal(signal.SIGCONT)
    watched.wait(lambda: "gap " in watched.said)
    (tree / "made/in/between/later").touch()
    watched.settled()
    for event in watched.events:
        mirror.apply_event(event)
    assert mirror.names == names_below(tree)


@pytest.mark.statement("M15")
@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every directory")
def test_a_directory_that_cannot_be_read_is_a_gap(watching: Client, tree: Path) -> None:
    (tree / "sub/deep").chmod(0)
    try:
        watched = Watched(watching, tree)
        watched.wait(lambda: watched.said)
        assert watched.said == ["gap sub/deep"]
    finally:
        (tree / "sub/deep").chmod(0o700)


@pytest.mark.statement("M26")
@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_the_end_of_the_root_ends_the_watch(watching: Client, tree: Path, how: str) -> None:
    watched = Watched(watching, tree)
    if how == "renamed":
        tree.rename(tree.parent / "elsewhere")
    else:
        shutil.rmtree(tree)
    watched.wait(lambda: watched.events and "ended" in watched.events[-1])
    last = watched.events[-1]
    assert last["ended"] == "rootRemoved"
    page = watched.read(0)
    assert (page["ended"], page["message"]) == ("rootRemoved", last["message"])
    if how == "removed":
        assert "removed sub/deep" in watched.said
        assert watched.read(0, maxChanges=1)["ended"] is None


@pytest.mark.statement("M26")
def test_the_last_changes_of_a_removed_root_are_reported(endpoint: Endpoint, tree: Path) -> None:
    names = [f"{'n' * 200}{number}" for number in range(1000)]  # events of more than one read
    for name in names:
        (tree / name).touch()
    own = endpoint.private()
    watched = Watched(own.connect(extensions=True), tree)
    program = program_of(own.server)
    program.send_signal(signal.SIGSTOP)
    try:
        (tree / "file").rename(tree.parent / "out/moved")
        shutil.rmtree(tree)
    finally:
        program.send_signal(signal.SIGCONT)
    watched.wait(lambda: watched.events and "ended" in watched.events[-1])
    removed = ["file", "sub", "sub/deep", "sub/file", *names]
    assert sorted(watched.said) == sorted(f"removed {name}" for name in removed)


@pytest.mark.statement("M26")
def test_a_killed_program_ends_the_watch(endpoint: Endpoint, tree: Path) -> None:
    own = endpoint.private()
    watched = Watched(own.connect(extensions=True), tree)
    (tree / "new").touch()
    watched.wait(lambda: watched.changes)
    program_of(own.server).kill()
    watched.wait(lambda: "ended" in watched.events[-1])
    assert watched.events[-1]["ended"] == "failed"
    assert watched.read(0)["ended"] == "failed"
    watched.client.call("fs/unwatch", {"watchId": "w"})
    assert Watched(watched.client, tree).result["nextSeq"] == 1


@pytest.mark.statement("M21")
def test_a_killed_server_forgets_its_watches(endpoint: Endpoint, tree: Path) -> None:
    own = endpoint.private()
    first = own.connect(extensions=True)
    Watched(first, tree)
    program = program_of(own.server)
    server = program.parent()
    assert server is not None
    server.kill()
    first.wait_end()
    second = own.connect(resume=first.session_id, extensions=True)
    assert second.refused("fs/watchRead", {"watchId": "w"}).code == -32600
    assert Watched(second, tree).result["nextSeq"] == 1
    psutil.wait_procs([program], timeout=10)
    assert not program.is_running()


@pytest.mark.statement("M24")
def test_limits_of_inotify_are_errors_with_a_way_out(here: Path, environment: dict[str, str]) -> None:
    lower = 'echo 30 > /proc/sys/user/max_inotify_watches && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "sh", "-c", lower, "sh")
    for number in range(40):
        (here / f"many/{number}").mkdir(parents=True)
    (here / "few").mkdir()
    listen = f"unix://{here}/socket"
    with (
        Server(listen, env=environment, cwd=here, prefix=prefix) as server,
        server.connect(extensions=True) as client,
    ):
        error = client.refused("fs/watch", {"watchId": "m", "path": path_uri(here / "many")})
        assert error.code == -32600
        assert "sysctl user.max_inotify_watches=" in error.message
        watched = Watched(client, here / "few")
        for number in range(40):
            (here / f"few/{number}").mkdir()
        watched.wait(lambda: watched.events and "ended" in watched.events[-1])
        assert watched.events[-1]["ended"] == "watchLimit"
        assert "sysctl" in watched.events[-1]["message"]
        assert watched.said[-1] == "gap "


@pytest.mark.statement("M20", "M21")
def test_a_client_that_does_not_read_costs_no_memory(endpoint: Endpoint, tree: Path) -> None:
    own = endpoint.private()
    client = own.connect(extensions=True)
    watched = Watched(client, tree)
    server = program_of(own.server).parent()
    assert server is not None
    client.pause()
    before = server.memory_info().rss
    names = [tree / f"{'x' * 100}{number}" for number in range(200)]
    until = time.monotonic() + 4
    while time.monotonic() < until:
        for name in names:
            name.touch()
        for name in names:
            name.unlink()
    assert server.memory_info().rss - before < 64 << 20
    client.resume()
    watched.settled()


# -- sandboxes


@pytest.mark.statement("M27")
def test_a_sandboxed_watch_shows_what_a_read_may_see(watching: Client, tree: Path) -> None:
    (tree / "secret").mkdir()
    (tree / "denied").touch()
    sandbox = context(
        restricted(
            READ_ROOT,
            at(tree / "secret", "deny"),
            at(tree / "denied", "deny"),
            glob(f"{tree}/**/*.env", "deny"),
        ),
        cwd=tree,
        roots=[tree],
    )
    watched = Watched(watching, tree, sandbox=sandbox)
    (tree / "secret/x").touch()
    (tree / "denied").write_text("x")
    (tree / "sub/later.env").touch()
    (tree / "shown").touch()
    watched.settled()
    (tree / "denied").rename(tree / "moved")
    (tree / "sub/file").rename(tree / "sub/file.env")
    (tree / "new").mkdir()
    (tree / "new/deep").touch()
    assert watched.settled() == [
        "created shown", "created moved", "removed sub/file", "created new", "created new/deep",
    ]  # fmt: skip
    params = {"watchId": "s", "path": path_uri(tree / "secret"), "sandbox": sandbox}
    assert watching.refused("fs/watch", params).code in (-32600, -32004)


@pytest.mark.statement("M27")
def test_denials_hold_by_every_name_of_a_folder(watching: Client, tree: Path) -> None:
    link = tree.parent / "link"
    link.symlink_to(tree)
    (tree / "denied").touch()
    sandbox = context(restricted(READ_ROOT, at(tree / "denied", "deny")), cwd=tree, roots=[tree])
    watched = Watched(watching, link, sandbox=sandbox)
    (tree / "denied").write_text("x")
    (tree / "shown").touch()
    assert watched.settled() == ["created shown"]
