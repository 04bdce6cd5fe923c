"""Plans carried out at a server that answers from memory, loses answers, and is interfered with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pybase64 import b64encode

from execclient.errors import NotFound, OutcomeUnknown, Refused, RequestTooLarge
from execclient.patch.apply import apply, plan_at
from execclient.patch.errors import PatchConflict, PatchFileError
from execclient.patch.parse import Patch, parse_patch
from execclient.patch.plan import Plan

Params = Mapping[str, Any]

PATCH = parse_patch(
    "*** Begin Patch\n"
    "*** Add File: new/f\n+n\n"
    "*** Update File: a\n-old a\n+new a\n"
    "*** Update File: from\n*** Move to: to\n-old name\n+new name\n"
    "*** Delete File: gone\n"
    "*** End Patch"
)
BEFORE = {"/w/a": b"old a\n", "/w/from": b"old name\n", "/w/gone": b"g\n"}
AFTER = {"/w/a": b"new a\n", "/w/to": b"new name\n", "/w/new/f": b"n\n"}


class Server:
    """Files in memory."""

    def __init__(self, *capabilities: str) -> None:
        self.capabilities = frozenset(capabilities)
        self.files = dict(BEFORE)
        self.folders = {"/w"}
        self.requests: list[tuple[str, Params]] = []
        self.before: Callable[[str, Params], None] = lambda _method, _params: None
        """Called before a request is carried out; what it raises is the answer."""
        self.lost: list[str] = []
        """Methods whose next answer is lost, after the work is done."""

    async def call(self, method: str, params: Params, *, limit: float | None = None) -> Any:
        self.requests.append((method, params))
        self.before(method, params)
        result = getattr(self, method.replace("/", "_"))(**params)
        if method in self.lost:
            self.lost.remove(method)
            raise OutcomeUnknown("lost")
        return result

    @property
    def changes(self) -> list[tuple[str, str]]:
        """The requests that change something."""
        reads = ("fs/readFile", "fs/digest", "fs/canonicalize")
        return [(method, params.get("path", "")) for method, params in self.requests if method not in reads]

    def _content(self, method: str, path: str) -> bytes:
        name = path.removeprefix("file://")
        if name not in self.files:
            raise NotFound(method, -32004, "no such file")
        return self.files[name]

    def fs_readFile(self, path: str, sandbox: Any = None) -> Any:  # noqa: N802
        return {"dataBase64": b64encode(self._content("fs/readFile", path)).decode()}

    def fs_digest(self, path: str, sandbox: Any = None) -> Any:
        return {"sha256": hashlib.sha256(self._content("fs/digest", path)).hexdigest()}

    def fs_canonicalize(self, path: str, sandbox: Any = None) -> Any:
        self._content("fs/canonicalize", path)
        return {"path": path}

    def fs_writeFile(self, path: str, dataBase64: bytes, sandbox: Any = None) -> Any:  # noqa: N802, N803
        name = path.removeprefix("file://")
        if name.rpartition("/")[0] not in self.folders:
            raise NotFound("fs/writeFile", -32004, "no such folder")
        self.files[name] = dataBase64
        return {}

    def fs_createDirectory(self, path: str, recursive: bool, sandbox: Any = None) -> Any:  # noqa: N802
        self.folders.add(path.removeprefix("file://"))
        return {}

    def fs_remove(self, path: str, recursive: bool, force: bool, sandbox: Any = None) -> Any:
        self._content("fs/remove", path)
        del self.files[path.removeprefix("file://")]
        return {}

    def fs_applyEdits(self, edits: list[Any], sandbox: Any = None) -> Any:  # noqa: N802
        for edit in edits:
            name = edit["path"].removeprefix("file://")
            found = self.files.get(name)
            digest = {"absent": True} if found is None else {"sha256": hashlib.sha256(found).hexdigest()}
            if edit["expected"] not in (None, digest):
                raise Refused("fs/applyEdits", -32600, f"{name} is not as expected")
        for edit in edits:
            name = edit["path"].removeprefix("file://")
            if edit["op"] == "remove":
                del self.files[name]
            else:
                self.files[name] = edit["dataBase64"]
        return {"edits": []}


@pytest.fixture(
    params=[(), ("fs/digest",), ("fs/digest", "fs/applyEdits")], ids=["plain", "digest", "atomic"]
)
def server(request: pytest.FixtureRequest) -> Server:
    """One for each kind that there is."""
    return Server(*request.param)


@pytest.fixture(params=[(), ("fs/digest",)], ids=["plain", "digest"])
def single(request: pytest.FixtureRequest) -> Server:
    """A server that takes one file at a time."""
    return Server(*request.param)


async def planned(server: Server, patch: Patch = PATCH) -> Plan:
    plan = await plan_at(server, patch, cwd="/w")
    server.requests.clear()
    return plan


async def test_a_patch_is_applied_and_told(server: Server) -> None:
    applied = await apply(await planned(server), server)

    assert server.files == AFTER
    assert applied.text == "Success. Updated the following files:\nA new/f\nM a\nM to\nD gone\n"
    assert [(file.kind, file.path, file.moved_from) for file in applied.files] == [
        ("add", "/w/new/f", None),
        ("update", "/w/a", None),
        ("move", "/w/to", "/w/from"),
        ("delete", "/w/gone", None),
    ]
    digests = [file.sha256 for file in applied.files]
    assert digests == [
        *(hashlib.sha256(AFTER[name]).hexdigest() for name in ("/w/new/f", "/w/a", "/w/to")),
        None,
    ]
    assert applied.was_atomic is ("fs/applyEdits" in server.capabilities)
    assert "rename from from\nrename to to\n" in applied.diff()


async def test_single_files_are_done_in_the_order_of_the_patch(single: Server) -> None:
    await apply(await planned(single), single)

    assert single.changes == [
        ("fs/writeFile", "file:///w/new/f"),
        ("fs/createDirectory", "file:///w/new"),
        ("fs/writeFile", "file:///w/new/f"),
        ("fs/writeFile", "file:///w/a"),
        ("fs/writeFile", "file:///w/to"),
        ("fs/remove", "file:///w/from"),
        ("fs/remove", "file:///w/gone"),
    ]


async def test_all_edits_go_in_one_request_with_what_they_expect() -> None:
    server = Server("fs/applyEdits")
    await apply(await planned(server), server)

    ((method, params),) = server.requests
    digests = {name: {"sha256": hashlib.sha256(content).hexdigest()} for name, content in BEFORE.items()}
    assert method == "fs/applyEdits"
    assert [
        (edit["op"], edit["path"], edit["expected"], edit.get("createParents")) for edit in params["edits"]
    ] == [
        ("write", "file:///w/new/f", {"absent": True}, True),
        ("write", "file:///w/a", digests["/w/a"], False),
        ("write", "file:///w/to", {"absent": True}, True),
        ("remove", "file:///w/from", digests["/w/from"], None),
        ("remove", "file:///w/gone", digests["/w/gone"], None),
    ]


async def test_a_path_that_is_touched_twice_is_written_once_in_a_transaction() -> None:
    server = Server("fs/applyEdits")
    patch = parse_patch(
        "*** Begin Patch\n*** Update File: a\n-old a\n+b\n*** Update File: a\n-b\n+c\n*** Add File: x\n"
        "*** Delete File: x\n*** End Patch"
    )
    plan = await plan_at(server, patch, cwd="/w", entry="applet")

    await apply(plan, server)

    assert server.files["/w/a"] == b"c\n"
    assert [edit["path"] for edit in server.requests[-1][1]["edits"]] == ["file:///w/a"]


async def test_every_request_is_within_the_sandbox(server: Server) -> None:
    sandbox = {"some": "policy"}

    await apply(await plan_at(server, PATCH, cwd="/w", sandbox=sandbox), server, sandbox=sandbox)

    assert all(params["sandbox"] == sandbox for _, params in server.requests)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("method", ["fs/writeFile", "fs/remove", "fs/applyEdits"])
async def test_a_lost_answer_does_nothing_twice(server: Server, method: str, times: int) -> None:
    plan = await planned(server)
    reference = Server(*server.capabilities)
    await apply(plan, reference)
    server.lost = [method] * times

    applied = await apply(plan, server)

    assert server.files == AFTER
    assert server.changes == reference.changes
    assert applied.text.startswith("Success")


@pytest.mark.parametrize("method", ["fs/writeFile", "fs/remove", "fs/applyEdits"])
async def test_a_lost_request_is_sent_again(server: Server, method: str) -> None:
    losses = [method]

    def lose(called: str, _params: Params) -> None:
        if called in losses:
            losses.remove(called)
            raise OutcomeUnknown("lost")

    plan = await planned(server)
    server.before = lose

    await apply(plan, server)

    assert server.files == AFTER


async def test_a_server_that_stays_out_of_reach_is_told(server: Server) -> None:
    def lose(called: str, _params: Params) -> None:
        if called in ("fs/writeFile", "fs/applyEdits"):
            raise OutcomeUnknown("lost")

    plan = await planned(server)
    server.before = lose

    with pytest.raises(OutcomeUnknown):
        await apply(plan, server)
    assert server.files == BEFORE


async def test_a_plan_that_is_carried_out_again_changes_nothing(single: Server) -> None:
    plan = await planned(single)
    await apply(plan, single)
    single.requests.clear()

    await apply(plan, single)

    assert single.files == AFTER
    assert single.changes == []


async def test_a_patch_that_was_applied_before_changes_nothing(server: Server) -> None:
    await apply(await planned(server), server)

    applied = await apply(await planned(server), server)

    assert applied.already_applied
    assert server.files == AFTER
    assert server.changes == []


async def test_a_file_that_changed_meanwhile_is_not_overwritten(server: Server) -> None:
    plan = await planned(server)
    server.files["/w/a"] = b"of another\n"

    with pytest.raises(PatchConflict, match="/w/a changed") as caught:
        await apply(plan, server)

    assert server.files["/w/a"] == b"of another\n"
    done = [edit.path for edit in caught.value.edits]
    assert done == ([] if "fs/applyEdits" in server.capabilities else ["/w/new/f"])


async def test_a_transaction_that_fails_is_told_with_its_reason() -> None:
    server = Server("fs/applyEdits")
    plan = await planned(server)

    def refuse(called: str, _params: Params) -> None:
        if called == "fs/applyEdits":
            raise Refused(called, -32600, "read-only file system")

    server.before = refuse

    with pytest.raises(PatchFileError, match="read-only file system") as caught:
        await apply(plan, server)
    assert not isinstance(caught.value, PatchConflict)


async def test_a_transaction_that_no_message_holds_is_done_file_by_file() -> None:
    server = Server("fs/applyEdits")
    plan = await planned(server)

    def too_large(called: str, _params: Params) -> None:
        if called == "fs/applyEdits":
            raise RequestTooLarge("too large")

    server.before = too_large

    applied = await apply(plan, server)

    assert not applied.was_atomic
    assert server.files == AFTER


@pytest.mark.parametrize(
    ("method", "path", "message", "done"),
    [
        ("fs/writeFile", "/w/new/f", "Failed to write file /w/new/f", 0),
        ("fs/createDirectory", "/w/new", "Failed to create parent directories for /w/new/f", 0),
        ("fs/writeFile", "/w/a", "Failed to write file /w/a", 1),
        ("fs/writeFile", "/w/to", "Failed to write file /w/to", 2),
        ("fs/remove", "/w/from", "Failed to remove original /w/from", 2),
        ("fs/remove", "/w/gone", "Failed to delete file /w/gone", 3),
    ],
)
async def test_a_failure_has_the_words_of_the_reference_and_what_was_done(
    single: Server, method: str, path: str, message: str, done: int
) -> None:
    plan = await planned(single)

    def refuse(called: str, params: Params) -> None:
        if (called, params["path"]) == (method, f"file://{path}"):
            raise Refused(called, -32600, "denied by the sandbox")

    single.before = refuse

    with pytest.raises(PatchFileError) as caught:
        await apply(plan, single)

    assert str(caught.value) == message
    assert caught.value.reason == "denied by the sandbox"
    assert caught.value.edits == plan.edits[:done]


async def test_what_could_not_be_read_is_written_without_comparison(single: Server) -> None:
    def unreadable(called: str, _params: Params) -> None:
        if called in ("fs/readFile", "fs/digest"):
            raise Refused(called, -32600, "permission denied")

    single.before = unreadable
    patch = parse_patch("*** Begin Patch\n*** Add File: a\n+new\n*** End Patch")

    await apply(await plan_at(single, patch, cwd="/w"), single)

    assert single.files["/w/a"] == b"new\n"


async def test_a_lost_transaction_is_known_by_the_files_that_can_be_read() -> None:
    server = Server("fs/applyEdits")

    def unreadable(called: str, params: Params) -> None:
        if called == "fs/readFile" and params["path"].endswith("/new/f"):
            raise Refused(called, -32600, "permission denied")

    server.before = unreadable
    server.lost = ["fs/applyEdits"]

    await apply(await planned(server), server)

    assert server.files == AFTER
    assert len(server.changes) == 1


async def test_a_path_with_a_null_byte_never_reaches_the_server(single: Server) -> None:
    patch = parse_patch("*** Begin Patch\n*** Delete File: a\0b\n*** End Patch")

    with pytest.raises(PatchFileError, match="NUL byte"):
        await plan_at(single, patch, cwd="/w")
    assert single.requests == []
