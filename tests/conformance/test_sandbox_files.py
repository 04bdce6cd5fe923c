"""`fs/*` in a sandbox: the answers are the same within its limits, and these have errors of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sandbox.profiles import (
    MINIMAL,
    READ_ROOT,
    WRITE_WORKSPACE,
    at,
    context,
    glob,
    restricted,
    special,
    unrestricted,
)
from tests.support.wire import Client, Json, ReplyError, decode, encode, path_uri

WORKSPACE = restricted(READ_ROOT, WRITE_WORKSPACE)
OPTIONS = {"maxDepth": 4, "maxDirectories": 100, "maxEntries": 100, "followDirectorySymlinks": False}


class Files:
    """`fs/*` of one connection in one workspace, under one policy."""

    def __init__(self, client: Client, ws: Path, permissions: Json) -> None:
        self._client = client
        self.sandbox = None if permissions is None else context(permissions, cwd=ws, roots=[ws])

    def call(self, method: str, path: Path, **params: Json) -> Json:
        """The result for a path."""
        return self._client.call(f"fs/{method}", self._params(path, params))

    def refused(self, method: str, path: Path, **params: Json) -> ReplyError:
        """The error for a path."""
        return self._client.refused(f"fs/{method}", self._params(path, params))

    def _params(self, path: Path, params: Json) -> Json:
        name = "sourcePath" if "destinationPath" in params else "path"
        return {name: path_uri(path), **params, "sandbox": self.sandbox}


@pytest.fixture
def ws(here: Path) -> Path:
    """A workspace; beside it is `out`."""
    for name in ("ws/sub", "ws/.git", "out"):
        (here / name).mkdir(parents=True)
    for name in ("ws/file", "ws/sub/file", "ws/.git/config", "out/file"):
        (here / name).write_text(f"content of {name}\n")
    return here / "ws"


@pytest.mark.everywhere
@pytest.mark.statement("C50")
def test_every_method_works_where_the_policy_lets_it(client: Client, ws: Path) -> None:
    confined, plain = Files(client, ws, WORKSPACE), Files(client, ws, None)
    for method, path, params in (
        ("readFile", ws / "file", {}),
        ("getMetadata", ws / "file", {}),
        ("canonicalize", ws / "sub/../file", {}),
        ("walk", ws / "sub", {"options": OPTIONS}),
    ):
        assert confined.call(method, path, **params) == plain.call(method, path, **params), method
    listed = confined.call("readDirectory", ws)["entries"]
    # Beside these there are folders for protected names that are missing.
    assert {".git", "file", "sub"} <= {entry["fileName"] for entry in listed}
    assert confined.call("readDirectory", ws / "sub") == plain.call("readDirectory", ws / "sub")
    assert confined.call("writeFile", ws / "new", dataBase64=encode("new\n")) == {}
    assert (ws / "new").read_text() == "new\n"
    assert confined.call("createDirectory", ws / "made/deep") == {}
    assert (ws / "made/deep").is_dir()
    assert confined.call("copy", ws / "sub", destinationPath=path_uri(ws / "copy"), recursive=True) == {}
    assert (ws / "copy/file").read_text() == "content of ws/sub/file\n"
    assert confined.call("remove", ws / "copy") == {}
    assert not (ws / "copy").exists()
    assert confined.call("digest", ws / "sub/file") == plain.call("digest", ws / "sub/file")
    for overwrite, source, destination in ((False, "new", "newer"), (True, "newer", "newest")):
        moved = path_uri(ws / destination)
        assert confined.call("rename", ws / source, destinationPath=moved, overwrite=overwrite) == {}
    assert (ws / "newest").read_text() == "new\n"
    refused = [
        files.refused("rename", ws / "file", destinationPath=path_uri(ws / "newest"), overwrite=False)
        for files in (confined, plain)
    ]
    assert [(each.code, each.message) for each in refused] == [(-32603, "File exists (os error 17)")] * 2


@pytest.mark.statement("C50")
def test_handles_are_opened_under_the_policy(client: Client, ws: Path) -> None:
    files = Files(client, ws, WORKSPACE)
    files.call("open", ws / "file", handleId="r")
    block = client.call("fs/readBlock", {"handleId": "r", "offset": 0, "len": 100})
    assert decode(block["chunk"]) == b"content of ws/file\n"
    files.call("open", ws / "block", handleId="w", mode="replace")
    client.call("fs/writeBlock", {"handleId": "w", "offset": 0, "chunk": encode("block")})
    assert (ws / "block").read_text() == "block"
    failure = files.refused("open", ws.parent / "out/file", handleId="o", mode="replace")
    assert failure.code == -32603
    assert (ws.parent / "out/file").read_text()


@pytest.mark.statement("G14")
def test_a_block_is_served_under_the_sandbox_of_its_handle_and_refused_under_another(
    client: Client, ws: Path
) -> None:
    limits = {
        "r": context(restricted(READ_ROOT), cwd=ws, roots=[ws]),
        "w": context(WORKSPACE, cwd=ws, roots=[ws]),
    }
    free = context(unrestricted(network="enabled"))
    client.call("fs/open", {"handleId": "plain", "path": path_uri(ws / "file")})
    client.call("fs/open", {"handleId": "r", "path": path_uri(ws / "file"), "sandbox": limits["r"]})
    client.call(
        "fs/open",
        {"handleId": "w", "path": path_uri(ws / "block"), "mode": "replace", "sandbox": limits["w"]},
    )
    read = {"offset": 0, "len": 7}
    write = {"handleId": "w", "offset": 0, "chunk": encode("block")}
    refusals = [
        client.refused("fs/readBlock", {"handleId": "plain", **read, "sandbox": limits["r"]}),
        client.refused("fs/readBlock", {"handleId": "r", **read, "sandbox": limits["w"]}),
        client.refused("fs/writeBlock", {**write, "sandbox": limits["r"]}),
    ]
    assert [(each.code, each.message.partition(":")[0]) for each in refusals] == [
        (-32600, f"file handle `{name}` was opened under another sandbox, and cannot be limited now")
        for name in ("plain", "r", "w")
    ]
    assert (ws / "block").read_bytes() == b""
    for handle, sandbox in (("plain", None), ("plain", free), ("r", limits["r"]), ("r", None), ("r", free)):
        block = client.call("fs/readBlock", {"handleId": handle, **read, "sandbox": sandbox})
        assert decode(block["chunk"]) == b"content", (handle, sandbox)
    client.call("fs/writeBlock", {**write, "sandbox": limits["w"]})
    assert (ws / "block").read_bytes() == b"block"


@pytest.mark.statement("C50")
def test_a_large_file_is_as_without_a_sandbox(client: Client, ws: Path) -> None:
    content = os.urandom(3 << 20)
    files = Files(client, ws, WORKSPACE)
    files.call("writeFile", ws / "large", dataBase64=encode(content))
    assert (ws / "large").read_bytes() == content
    assert decode(files.call("readFile", ws / "large")["dataBase64"]) == content


READ_ONLY_DISK = (-32603, "Read-only file system (os error 30)")


@pytest.mark.everywhere
@pytest.mark.statement("C51")
@pytest.mark.parametrize("place", ["out", "ws/.git"])
def test_changes_elsewhere_fail_as_on_a_read_only_disk(
    client: Client, here: Path, ws: Path, place: str
) -> None:
    files = Files(client, ws, WORKSPACE)
    folder = here / place
    names = sorted(os.listdir(folder))
    changes: list[tuple[str, Path, dict[str, Json]]] = [
        ("writeFile", folder / names[0], {"dataBase64": encode("x")}),
        ("writeFile", folder / "new", {"dataBase64": encode("x")}),
        ("createDirectory", folder / "new/deep", {}),
        ("remove", folder / names[0], {}),
        ("open", folder / names[0], {"handleId": "h", "mode": "replace"}),
        ("copy", ws / "file", {"destinationPath": path_uri(folder / "new"), "recursive": False}),
        ("rename", folder / names[0], {"destinationPath": path_uri(folder / "new")}),
        ("rename", folder / names[0], {"destinationPath": path_uri(folder / "new"), "overwrite": False}),
    ]
    for method, path, params in changes:
        failure = files.refused(method, path, **params)
        assert (failure.code, failure.message) == READ_ONLY_DISK, method
    assert sorted(os.listdir(folder)) == names
    assert (folder / names[0]).read_text() == f"content of {place}/{names[0]}\n"


@pytest.mark.statement("C51", "C18")
def test_a_missing_protected_name_cannot_be_made(client: Client, ws: Path) -> None:
    files = Files(client, ws, WORKSPACE)
    failure = files.refused("writeFile", ws / ".codex/config.toml", dataBase64=encode("x"))
    assert (failure.code, failure.message) == READ_ONLY_DISK
    assert not (ws / ".codex/config.toml").exists()


@pytest.mark.statement("C51")
def test_what_is_not_in_the_view_does_not_exist(client: Client, ws: Path) -> None:
    files = Files(client, ws, MINIMAL)
    out = ws.parent / "out"
    for method, path, params in (
        ("readFile", out / "file", {}),
        ("getMetadata", out, {}),
        ("canonicalize", out / "file", {}),
        ("readDirectory", out, {}),
        ("open", out / "file", {"handleId": "h"}),
    ):
        failure = files.refused(method, path, **params)
        assert (failure.code, failure.message) == (-32004, "No such file or directory (os error 2)"), method
    failure = files.refused("createDirectory", out / "new")
    assert failure.code == -32603
    assert not (out / "new").exists()


@pytest.mark.statement("C51")
def test_denied_things_cannot_be_read_and_are_there(client: Client, ws: Path) -> None:
    out = ws.parent / "out"
    files = Files(
        client, ws, restricted(READ_ROOT, WRITE_WORKSPACE, at(out, "deny"), at(ws / "file", "deny"))
    )
    for method, path, params in (
        ("readFile", ws / "file", {}),
        ("readFile", out / "file", {}),
        ("readDirectory", out, {}),
        ("open", ws / "file", {"handleId": "h"}),
        ("digest", ws / "file", {}),
        ("digest", out / "file", {}),
    ):
        failure = files.refused(method, path, **params)
        assert (failure.code, failure.message) == (-32600, "Permission denied (os error 13)"), method
    assert files.call("getMetadata", ws / "file")["isFile"]
    assert files.refused("writeFile", ws / "file", dataBase64="").code in (-32600, -32603)
    assert (ws / "file").read_text()


@pytest.mark.statement("C52")
def test_patterns_hold_for_files_that_were_made_later_too(client: Client, ws: Path) -> None:
    (ws / ".env").write_text("early\n")
    files = Files(client, ws, restricted(READ_ROOT, WRITE_WORKSPACE, glob("**/.env")))
    assert files.refused("readFile", ws / ".env").code == -32600
    files.call("writeFile", ws / "sub/.env", dataBase64=encode("late\n"))
    assert (ws / "sub/.env").read_text() == "late\n"
    (ws / "link").symlink_to("sub/.env")
    for name in ("sub/.env", "link"):
        failure = files.refused("readFile", ws / name)
        assert (failure.code, failure.message) == (-32600, "Permission denied (os error 13)"), name


@pytest.mark.statement("C51", "C20", "F53")
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_denied_keeps_its_name_and_its_place(client: Client, ws: Path, overwrite: bool) -> None:
    (ws / "secret.key").write_text("secret\n")
    hidden = [at(ws / name, "deny") for name in ("file", "sub/file")]
    entries = (READ_ROOT, WRITE_WORKSPACE, *hidden, glob("**/*.key"))
    files = Files(client, ws, restricted(*entries))
    files.call("writeFile", ws / "late.key", dataBase64=encode("late\n"))
    files.call("writeFile", ws / "mine", dataBase64=encode("mine\n"))
    names = sorted(os.listdir(ws))
    for source, destination in (
        *(("file", "new"), ("secret.key", "new"), ("late.key", "new"), (".git", "new")),
        # Under another name of its folder it would be no denied path any more.
        *(("mine", "file"), ("mine", ".git"), ("sub", "new")),
    ):
        refused = files.refused(
            "rename", ws / source, destinationPath=path_uri(ws / destination), overwrite=overwrite
        )
        assert refused.code in (-32600, -32603), (source, destination)
    assert sorted(os.listdir(ws)) == names
    assert (ws / "file").read_text() == "content of ws/file\n"
    # From one of the places that are granted to what lies beside it.
    outside = path_uri(ws.parent / "out" / "new")
    assert files.refused("rename", ws / "mine", destinationPath=outside, overwrite=overwrite).code == -32603


@pytest.mark.statement("C50", "F50", "F52")
@pytest.mark.parametrize("entries", [(), (special("minimal", "read"),), (READ_ROOT,)])
def test_whatever_else_is_in_the_view_files_are_renamed(client: Client, ws: Path, entries: Json) -> None:
    files = Files(client, ws, restricted(*entries, WRITE_WORKSPACE))
    for overwrite, source, destination in ((False, "file", "new"), (True, "new", "newer")):
        moved = path_uri(ws / destination)
        assert files.call("rename", ws / source, destinationPath=moved, overwrite=overwrite) == {}
    refused = files.refused(
        "rename", ws / "sub/file", destinationPath=path_uri(ws / "newer"), overwrite=False
    )
    assert (refused.code, refused.message) == (-32603, "File exists (os error 17)")


@pytest.mark.statement("C52", "F54")
def test_patterns_hold_for_digests_too(client: Client, ws: Path) -> None:
    files = Files(client, ws, restricted(READ_ROOT, WRITE_WORKSPACE, glob("**/.env")))
    files.call("writeFile", ws / "sub/.env", dataBase64=encode("late\n"))
    (ws / "link").symlink_to("sub/.env")
    for name in ("sub/.env", "link"):
        failure = files.refused("digest", ws / name)
        assert (failure.code, failure.message) == (-32600, "Permission denied (os error 13)"), name


@pytest.mark.statement("C12")
def test_entries_that_lack_their_folder_are_refused(client: Client, ws: Path) -> None:
    for entry in (WRITE_WORKSPACE, special("current_working_directory", "read"), glob("**/.env")):
        sandbox = context(restricted(READ_ROOT, entry))
        failure = client.refused("fs/getMetadata", {"path": path_uri(ws), "sandbox": sandbox})
        assert failure.code == -32602
        assert failure.message == "file system sandbox context with dynamic permissions requires cwd"


@pytest.mark.statement("C11")
def test_the_role_tmpdir_is_what_the_context_or_the_daemon_says(client: Client, here: Path, ws: Path) -> None:
    permissions = restricted(READ_ROOT, special("tmpdir", "write"))
    written = {"path": path_uri(here / "out/new"), "dataBase64": ""}
    there = context(permissions, temporaryDirectories=[path_uri(here / "out")])
    assert client.call("fs/writeFile", {**written, "sandbox": there}) == {}
    elsewhere = context(permissions, temporaryDirectories=[path_uri(ws)])
    assert client.refused("fs/writeFile", {**written, "sandbox": elsewhere}).code == -32603


@pytest.mark.statement("C5")
def test_a_limit_of_the_network_alone_is_none_for_files(client: Client, ws: Path) -> None:
    for permissions in (unrestricted("restricted"), {"type": "external", "network": "restricted"}):
        files = Files(client, ws, permissions)
        files.call("writeFile", ws.parent / "out/file", dataBase64=encode("changed"))
        assert (ws.parent / "out/file").read_text() == "changed"


@pytest.mark.statement("C53")
def test_confined_requests_keep_the_order_of_requests(client: Client, ws: Path) -> None:
    sandbox = context(WORKSPACE, cwd=ws, roots=[ws])
    path = {"path": path_uri(ws / "turn"), "sandbox": sandbox}
    requests: list[tuple[str, Json]] = []
    for turn in range(20):
        requests += [("fs/writeFile", {**path, "dataBase64": encode(str(turn))}), ("fs/readFile", path)]
    numbers = client.pipeline(*requests)
    read = [client.result(number) for number in numbers][1::2]
    assert [decode(each["dataBase64"]) for each in read] == [b"%d" % turn for turn in range(20)]
