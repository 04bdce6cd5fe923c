"""Batches of directories and small files: `fs/putFiles` and `fs/getFiles`."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from tests.support.wire import Client, Json, at_most, decode, encode, path_uri

MAX_ENTRIES, MAX_BYTES = 1000, 4 << 20
DONE = {"inPlace": False}
NOT_FOUND = {"code": -32004, "message": "No such file or directory (os error 2)"}
LONG_AGO = 1_000_000_000_123_456_789


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def file(path: Path, data: bytes, **members: Json) -> dict[str, Json]:
    """An entry for a file."""
    return {"path": path_uri(path), "permissions": 0o644, "dataBase64": encode(data), **members}


def folder(path: Path, permissions: int = 0o755) -> dict[str, Json]:
    """An entry for a directory."""
    return {"path": path_uri(path), "permissions": permissions}


def put(client: Client, *entries: dict[str, Json], **members: Json) -> list[dict[str, Json]]:
    return list(client.call("fs/putFiles", {"entries": entries, **members})["entries"])


def get(client: Client, *paths: Path, **members: Json) -> list[dict[str, Json]]:
    params = {"paths": [path_uri(path) for path in paths], **members}
    return list(client.call("fs/getFiles", params)["entries"])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.everywhere
@pytest.mark.statement("F60", "F63")
def test_a_tree_is_made_in_one_request_and_can_be_made_again(client: Client, here: Path) -> None:
    entries = [
        folder(here / "d", 0o700),
        folder(here / "d/empty"),
        file(here / "d/a b", b"1", sha256=sha256(b"1")),
        file(here / "d/\udcff", b""),
    ]
    for _ in range(2):
        assert put(client, *entries) == [DONE] * 4
        assert sorted(os.listdir(here / "d")) == sorted(["empty", "a b", "\udcff"])
        assert (mode(here / "d"), mode(here / "d/empty")) == (0o700, 0o755)
        assert ((here / "d/a b").read_bytes(), (here / "d/\udcff").read_bytes()) == (b"1", b"")


@pytest.mark.statement("F60", "F61", "F62", "F63", "F2")
def test_an_entry_that_fails_keeps_no_other_from_being_carried_out(client: Client, here: Path) -> None:
    os.mkfifo(here / "fifo")
    (here / "d").mkdir()
    for name in ("old", "plain"):
        (here / name).write_text(name)
    with at_most(5):
        outcomes = put(
            client,
            file(here / "no/x", b"x"),
            file(here / "d", b"x"),
            file(here / "fifo", b"x"),
            file(here / "old", b"damaged", sha256=sha256(b"sent")),
            folder(here / "plain"),
            folder(here / "no/d"),
            file(here / "plain/x", b"x"),
            file(here / "good", b"good"),
        )
    errors = [outcome.get("error", {}) for outcome in outcomes]
    assert [error.get("code") for error in errors] == [
        -32004, -32603, -32600, -32603, -32603, -32004, -32603, None,
    ]  # fmt: skip
    assert errors[0] == errors[5] == NOT_FOUND
    assert errors[2]["message"] == f"path `{here}/fifo` is not a file"
    assert sha256(b"damaged") in errors[3]["message"]
    assert errors[4]["message"] == "File exists (os error 17)"
    assert {name: (here / name).read_text() for name in ("old", "plain", "good")} == {
        "old": "old", "plain": "plain", "good": "good",
    }  # fmt: skip
    assert sorted(os.listdir(here)) == ["d", "fifo", "good", "old", "plain"]


@pytest.mark.everywhere
@pytest.mark.statement("F61")
def test_modes_and_times_of_new_and_replaced_files(client: Client, here: Path) -> None:
    (here / "link").symlink_to("old")
    times = {"modifiedAtNs": LONG_AGO, "accessedAtNs": 5}
    for keep_mode, wanted in ((True, 0o640), (False, 0o777)):
        (here / "old").write_text("old")
        (here / "old").chmod(0o640)
        os.link(here / "old", here / f"other {keep_mode}")
        entries = [
            file(here / "link", b"new", **{"permissions": 0o777, **times}),
            file(here / f"new {keep_mode}", b"new", **{"permissions": 0o777, **times}),
        ]
        assert put(client, *entries, keepMode=keep_mode) == [DONE, DONE]
        assert (mode(here / "old"), mode(here / f"new {keep_mode}")) == (wanted, 0o777)
        for name in ("old", f"new {keep_mode}"):
            status = (here / name).stat()
            assert (status.st_mtime_ns, status.st_atime_ns) == (LONG_AGO, 5)
            assert (here / name).read_bytes() == b"new"
        # The file was replaced, and not written to.
        assert (here / f"other {keep_mode}").read_text() == "old"
        (here / f"other {keep_mode}").unlink()
    assert (here / "link").is_symlink()


@pytest.mark.statement("F61", "F49")
def test_what_cannot_be_replaced_is_written_in_place(client: Client, here: Path, irreplaceable: Path) -> None:
    inode = irreplaceable.stat().st_ino
    for data in (b"new", b"something longer", b""):
        entry = file(irreplaceable, data, sha256=sha256(data), permissions=0o600, modifiedAtNs=LONG_AGO)
        assert put(client, entry) == [{"inPlace": True}]
        status = irreplaceable.stat()
        assert (irreplaceable.read_bytes(), status.st_ino, status.st_mtime_ns) == (data, inode, LONG_AGO)
        assert mode(irreplaceable) == 0o600
    assert os.listdir(here / "closed") == ["file"]


@pytest.mark.statement("F64", "U7", "B1")
def test_a_batch_that_is_refused_does_nothing(client: Client, here: Path) -> None:
    good = file(here / "f", b"x")
    refused: list[tuple[int, str, dict[str, Json]]] = [
        (-32602, "fs/putFiles", {"entries": []}),
        (-32602, "fs/putFiles", {"entries": [good] * (MAX_ENTRIES + 1)}),
        (-32602, "fs/putFiles", {"entries": [good, {**good, "dataBase64": "?"}]}),
        (-32602, "fs/putFiles", {"entries": [good, {**good, "sha256": "0"}]}),
        (-32602, "fs/putFiles", {"entries": [good, {**good, "permissions": 0o10000}]}),
        (-32602, "fs/putFiles", {"entries": [good, {"path": path_uri(here)}]}),
        (-32600, "fs/putFiles", {"entries": [good, {**good, "path": "file://host/f"}]}),
        (-32600, "fs/putFiles", {"entries": [good, {**good, "dataBase64": encode(bytes(MAX_BYTES))}]}),
        (-32602, "fs/getFiles", {"paths": []}),
        (-32602, "fs/getFiles", {"paths": [path_uri(here)] * (MAX_ENTRIES + 1)}),
        (-32600, "fs/getFiles", {"paths": [path_uri(here)], "maxBytes": MAX_BYTES + 1}),
        (-32600, "fs/getFiles", {"paths": [path_uri(here), "file://host/f"]}),
    ]
    for code, method, params in refused:
        assert client.refused(method, params).code == code, params
    assert not (here / "f").exists()
    assert put(client, *[{**good, "dataBase64": ""}] * MAX_ENTRIES) == [DONE] * MAX_ENTRIES
    assert put(client, {**good, "dataBase64": encode(bytes(MAX_BYTES))}) == [DONE]
    assert len(decode(get(client, here / "f")[0]["dataBase64"])) == MAX_BYTES


@pytest.mark.everywhere
@pytest.mark.statement("F65", "F20", "F21", "F23")
def test_paths_are_described_and_small_files_read(client: Client, here: Path) -> None:
    (here / "d").mkdir(mode=0o750)
    (here / "a").write_bytes(b"12345")
    (here / "a").chmod(0o640)
    os.utime(here / "a", ns=(7, LONG_AGO))
    (here / "link").symlink_to("a")
    (here / "dangling").symlink_to("nowhere")
    os.mkfifo(here / "fifo")
    with at_most(5):
        a, link, d, fifo, *missing = get(
            client, *(here / name for name in ("a", "link", "d", "fifo", "dangling", "no", "a/x"))
        )
    content = {"dataBase64": encode(b"12345"), "sha256": sha256(b"12345")}
    described = {
        "isDirectory": False, "isFile": True, "isSymlink": False, "size": 5, "permissions": 0o640,
        "modifiedAtNs": LONG_AGO, "accessedAtNs": a["accessedAtNs"], **content,
    }  # fmt: skip
    assert a == described
    assert link == {**described, "isSymlink": True, "accessedAtNs": link["accessedAtNs"]}
    assert (d["isDirectory"], d["permissions"], "dataBase64" in d) == (True, 0o750, False)
    assert (fifo["isDirectory"], fifo["isFile"], "dataBase64" in fifo) == (False, False, False)
    assert missing[:2] == [{"error": NOT_FOUND}] * 2
    assert missing[2]["error"]["code"] == -32603


@pytest.mark.statement("F65")
def test_contents_come_as_long_as_they_fit(client: Client, here: Path) -> None:
    for name, size in (("a", 6), ("b", 5), ("c", 4), ("empty", 0)):
        (here / name).write_bytes(b"x" * size)
    paths = [here / name for name in ("a", "b", "c", "empty")]
    for limit, expected in ((10, "ac-"), (9, "a-"), (5, "b-"), (3, "-"), (0, "-"), (15, "abc-")):
        found = get(client, *paths, maxBytes=limit)
        names = "".join(name for name, each in zip("abc-", found, strict=True) if "dataBase64" in each)
        assert names == expected, limit
        assert [each["size"] for each in found] == [6, 5, 4, 0]


@pytest.mark.statement("F66")
def test_files_without_a_size_are_read_to_their_end(client: Client, here: Path) -> None:
    version = Path("/proc/version").read_bytes()
    found, cut = get(client, Path("/proc/version")), get(client, Path("/proc/version"), maxBytes=5)
    assert (decode(found[0]["dataBase64"]), found[0]["sha256"]) == (version, sha256(version))
    assert "dataBase64" not in cut[0]


@pytest.mark.statement("F60", "S8")
def test_batches_keep_the_order_of_their_paths(client: Client, here: Path) -> None:
    (here / "d").mkdir()
    numbers = []
    for turn in range(20):
        entries = [file(here / f"d/{name}", b"%d" % turn) for name in range(50)]
        numbers.append(client.request("fs/putFiles", {"entries": entries}))
        numbers.append(client.request("fs/getFiles", {"paths": [path_uri(here / "d/7")]}))
    for turn, (putting, getting) in enumerate(zip(numbers[::2], numbers[1::2], strict=True)):
        client.result(putting)
        assert decode(client.result(getting)["entries"][0]["dataBase64"]) == b"%d" % turn
