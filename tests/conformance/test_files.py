"""Files: URIs, reading, writing, metadata, listing, removing, copying."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import socket
import stat
import time
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.support.servers import open_files
from tests.support.wire import PATIENCE, Client, Json, ReplyError, at_most, encode, path_uri

NOT_FOUND = (-32004, "No such file or directory (os error 2)")
NOT_A_DIRECTORY = (-32603, "Not a directory (os error 20)")
IS_A_DIRECTORY = (-32603, "Is a directory (os error 21)")
EXISTS = (-32603, "File exists (os error 17)")


@pytest.fixture
def tree(here: Path) -> Path:
    """A folder with one of each kind."""
    (here / "d" / "sub").mkdir(parents=True)
    (here / "a.txt").write_text("hello")
    (here / "d" / "y").write_text("y")
    (here / "d" / "sub" / "x").write_text("x")
    (here / "link").symlink_to("a.txt")
    (here / "dirlink").symlink_to("d")
    (here / "dangling").symlink_to("nowhere")
    os.mkfifo(here / "fifo")
    return here


def refusal(client: Client, method: str, path: Path | str, **members: Json) -> tuple[int, str]:
    failure = client.refused(method, {"path": path_uri(path), **members})
    return failure.code, failure.message


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


# -- path URIs


@pytest.mark.everywhere
@pytest.mark.statement("U1", "U2")
def test_spellings_that_are_accepted(client: Client, here: Path) -> None:
    (here / "a b").write_text("xyz")
    uri = path_uri(here / "a b")
    for spelling in (
        uri,
        uri.replace("file://", "FILE://"),
        uri.replace("file://", "file://localhost"),
        uri.replace("file://", "file:"),
        uri.replace("file:///", "file:"),
        uri.replace("%20", " "),
        uri.replace("a%20b", "%61%20%62"),
        uri.replace("a%20b", "no/../a%20b"),
        uri.replace("a%20b", "no/%2e%2E/./a%20b"),
        uri.replace("a%20b", "%2e/a%20b"),
        uri + "/",
    ):
        assert client.call("fs/getMetadata", {"path": spelling})["size"] == 3, spelling
    assert client.call("fs/getMetadata", {"path": "file:///../../etc"})["isDirectory"]


@pytest.mark.statement("U3", "U4", "U5", "U6", "E11")
@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("/abs", "invalid URI: relative URL without a base"),
        ("rel/ative", "invalid URI: relative URL without a base"),
        ("", "invalid URI: relative URL without a base"),
        ("http://x/y", "unsupported path URI scheme `http`"),
        ("HTTPS://x/y", "unsupported path URI scheme `https`"),
        ("file:///x?y", "query parameters are not allowed in path URIs"),
        ("file:///x?", "query parameters are not allowed in path URIs"),
        ("file:///x#y", "fragments are not allowed in path URIs"),
        ("file:///a%00b", "'file:///a%00b' is invalid on 'linux'"),
    ],
)
def test_what_is_no_path_uri(client: Client, uri: str, text: str) -> None:
    failure = client.refused("fs/getMetadata", {"path": uri})
    assert (failure.code, failure.message) == (-32602, text)


@pytest.mark.statement("U3")
@pytest.mark.parametrize("value", [5, None, [], {"path": "/"}])
def test_path_of_another_type(client: Client, value: Json) -> None:
    assert client.refused("fs/getMetadata", {"path": value}).code == -32602


@pytest.mark.statement("U7")
@pytest.mark.parametrize("uri", ["file://elsewhere/x", "file:///C:/x", "file:///c%3A/x"])
def test_paths_of_other_hosts(client: Client, uri: str) -> None:
    failure = client.refused("fs/getMetadata", {"path": uri})
    if uri == "file:///c%3A/x":
        assert failure.code in {-32004, -32600}
    else:
        assert (failure.code, failure.message) == (-32600, f"'{uri}' is invalid on 'linux'")


@pytest.mark.statement("U8")
def test_spelling_of_uris_that_we_write(client: Client, here: Path) -> None:
    (here / "sp ace é#?%").touch()
    result = client.call("fs/canonicalize", {"path": path_uri(here / "sp ace é#?%")})
    assert result["path"] == path_uri(here) + "/sp%20ace%20%C3%A9%23%3F%25"


@pytest.mark.statement("U1", "U9")
def test_names_that_are_not_utf8(client: Client, here: Path) -> None:
    raw = os.fsencode(here) + b"/bad\xff"
    with open(raw, "wb") as file:
        file.write(b"1234")
    uri = path_uri(here) + "/bad%FF"
    assert client.call("fs/getMetadata", {"path": uri})["size"] == 4
    assert client.call("fs/canonicalize", {"path": uri}) == {"path": uri}
    entries = client.call("fs/readDirectory", {"path": path_uri(here)})["entries"]
    assert [entry["fileName"] for entry in entries] == ["bad\ufffd"]


# -- metadata


@pytest.mark.everywhere
@pytest.mark.statement("F20", "F21")
def test_metadata_of_each_kind(client: Client, tree: Path) -> None:
    os.chdir(tree)
    make_socket(tree / "socket")
    expected = {
        "a.txt": (False, True, False, 5),
        "link": (False, True, True, 5),
        "d": (True, False, False, None),
        "dirlink": (True, False, True, None),
        "fifo": (False, False, False, 0),
        "socket": (False, False, False, 0),
        "/dev/null": (False, False, False, 0),
    }
    for name, (directory, file, link, size) in expected.items():
        found = client.call("fs/getMetadata", {"path": path_uri(tree / name)})
        assert set(found) == {
            "isDirectory",
            "isFile",
            "isSymlink",
            "size",
            "createdAtMs",
            "modifiedAtMs",
        }
        kind = (found["isDirectory"], found["isFile"], found["isSymlink"])
        assert kind == (directory, file, link), name
        assert size is None or found["size"] == size


@pytest.mark.statement("F22")
def test_times_are_cut_to_milliseconds(client: Client, here: Path) -> None:
    (here / "f").touch()
    os.utime(here / "f", ns=(1, 1_600_000_000_123_999_999))
    found = client.call("fs/getMetadata", {"path": path_uri(here / "f")})
    assert found["modifiedAtMs"] == 1_600_000_000_123
    assert isinstance(found["createdAtMs"], int)
    assert found["createdAtMs"] >= 0


@pytest.mark.everywhere
@pytest.mark.statement("F23", "I1", "I2", "I4")
def test_metadata_of_what_is_not_there(client: Client, tree: Path) -> None:
    for name in ("missing", "missing/x", "dangling"):
        assert refusal(client, "fs/getMetadata", tree / name) == NOT_FOUND
    assert refusal(client, "fs/getMetadata", tree / "a.txt" / "x") == NOT_A_DIRECTORY


@pytest.mark.statement("I3", "I4")
def test_other_io_errors(client: Client, here: Path) -> None:
    assert refusal(client, "fs/getMetadata", here / ("n" * 300))[0] == -32603
    (here / "loop").symlink_to("loop")
    assert refusal(client, "fs/getMetadata", here / "loop")[0] == -32603
    assert refusal(client, "fs/readFile", "/proc/self/mem")[0] == -32603
    # No user may remove this one: of root it is the file that refuses, of others already the folder.
    text = "Operation not permitted (os error 1)" if os.geteuid() == 0 else "Permission denied (os error 13)"
    assert refusal(client, "fs/remove", "/proc/version", recursive=False) == (-32600, text)


@pytest.mark.statement("I3")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_permission_denied(client: Client, here: Path) -> None:
    (here / "locked").mkdir(0)
    text = "Permission denied (os error 13)"
    assert refusal(client, "fs/readFile", here / "locked" / "x") == (-32600, text)


@pytest.mark.statement("F24")
def test_canonicalize(client: Client, tree: Path) -> None:
    base = path_uri(tree)
    for name, wanted in (
        ("a.txt", "/a.txt"),
        ("link", "/a.txt"),
        ("dirlink", "/d"),
        ("dirlink/sub/../y", "/d/y"),
        ("fifo", "/fifo"),
        ("d/", "/d"),
    ):
        assert client.call("fs/canonicalize", {"path": f"{base}/{name}"}) == {"path": base + wanted}
    for name in ("missing", "dangling"):
        assert refusal(client, "fs/canonicalize", tree / name) == NOT_FOUND
    assert client.call("fs/canonicalize", {"path": "file:///"}) == {"path": "file:///"}


@pytest.mark.everywhere
@pytest.mark.statement("F25")
def test_read_directory(client: Client, tree: Path) -> None:
    entries = client.call("fs/readDirectory", {"path": path_uri(tree)})["entries"]
    assert all(set(entry) == {"fileName", "isDirectory", "isFile"} for entry in entries)
    kinds = {entry["fileName"]: (entry["isDirectory"], entry["isFile"]) for entry in entries}
    assert kinds == {
        "a.txt": (False, True),
        "d": (True, False),
        "link": (False, True),
        "dirlink": (True, False),
        "fifo": (False, False),
    }
    assert refusal(client, "fs/readDirectory", tree / "missing") == NOT_FOUND
    assert refusal(client, "fs/readDirectory", tree / "a.txt") == NOT_A_DIRECTORY
    assert client.call("fs/readDirectory", {"path": path_uri(tree / "dirlink")})["entries"]


# -- reading and writing


@pytest.mark.everywhere
@pytest.mark.statement("F1", "B1")
def test_read_file(client: Client, tree: Path) -> None:
    for name in ("a.txt", "link"):
        assert client.call("fs/readFile", {"path": path_uri(tree / name)}) == {"dataBase64": "aGVsbG8="}
    (tree / "empty").touch()
    assert client.call("fs/readFile", {"path": path_uri(tree / "empty")}) == {"dataBase64": ""}


@pytest.mark.statement("F1", "F23", "I2")
def test_read_of_what_is_not_there(client: Client, tree: Path) -> None:
    for name in ("missing", "dangling"):
        assert refusal(client, "fs/readFile", tree / name) == NOT_FOUND
    assert refusal(client, "fs/readFile", tree / "a.txt" / "x") == NOT_A_DIRECTORY


@pytest.mark.statement("F2")
def test_only_files_are_read(client: Client, tree: Path) -> None:
    with at_most(5):
        for path in (tree / "d", tree / "dirlink", tree / "fifo", Path("/dev/null"), Path("/dev/zero")):
            assert refusal(client, "fs/readFile", path) == (-32600, f"path `{path}` is not a file")
    os.chdir(tree)
    make_socket(tree / "socket")
    assert refusal(client, "fs/readFile", tree / "socket")[0] == -32603


@pytest.mark.statement("F3")
def test_file_that_is_too_large_is_not_even_read(client: Client, here: Path) -> None:
    with (here / "sparse").open("wb") as file:
        file.truncate((512 << 20) + 1)
    text = "file is too large to read: limit is 536870912 bytes"
    with at_most(5):
        assert refusal(client, "fs/readFile", here / "sparse") == (-32600, text)


@pytest.mark.statement("F4")
def test_files_that_report_no_size(client: Client) -> None:
    data = client.call("fs/readFile", {"path": "file:///proc/version"})["dataBase64"]
    assert data == encode(Path("/proc/version").read_bytes())
    data = client.call("fs/readFile", {"path": "file:///proc/kallsyms"}, timeout=40)["dataBase64"]
    assert len(data) > 4096


@pytest.mark.everywhere
@pytest.mark.statement("F10")
def test_write_file_makes_and_replaces(client: Client, here: Path) -> None:
    path = here / "f"
    for content in (b"abc\0\xff", b"Z", b"", b"longer again"):
        params = {"path": path_uri(path), "dataBase64": encode(content)}
        assert client.call("fs/writeFile", params) == {}
        assert path.read_bytes() == content


@pytest.mark.statement("F10")
def test_write_file_keeps_inode_mode_and_links(client: Client, tree: Path) -> None:
    target = tree / "a.txt"
    target.chmod(0o751)
    inode = target.stat().st_ino
    client.call("fs/writeFile", {"path": path_uri(tree / "link"), "dataBase64": encode("new")})
    assert (tree / "link").is_symlink()
    assert target.read_text() == "new"
    assert (target.stat().st_ino, stat.S_IMODE(target.stat().st_mode)) == (inode, 0o751)
    client.call("fs/writeFile", {"path": path_uri(tree / "dangling"), "dataBase64": encode("D")})
    assert (tree / "nowhere").read_text() == "D"


@pytest.mark.statement("F10")
def test_mode_of_a_new_file_follows_the_umask(client: Client, here: Path) -> None:
    client.call("fs/writeFile", {"path": path_uri(here / "f"), "dataBase64": ""})
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((here / "f").stat().st_mode) == 0o666 & ~mask


@pytest.mark.statement("F11", "F12")
def test_write_file_errors(client: Client, tree: Path) -> None:
    assert refusal(client, "fs/writeFile", tree / "d", dataBase64="") == IS_A_DIRECTORY
    assert refusal(client, "fs/writeFile", tree / "no" / "f", dataBase64="") == NOT_FOUND
    assert refusal(client, "fs/writeFile", tree / "a.txt" / "f", dataBase64="") == NOT_A_DIRECTORY
    for bad in ("!!", "YQ", "_-8="):
        code, text = refusal(client, "fs/writeFile", tree / "new", dataBase64=bad)
        assert code == -32600
        assert text.startswith("fs/writeFile requires valid base64 dataBase64: ")
    assert refusal(client, "fs/writeFile", tree / "new", dataBase64=5)[0] == -32602
    assert not (tree / "new").exists()


@pytest.mark.everywhere
@pytest.mark.statement("F1", "F10")
def test_megabytes_there_and_back(client: Client, here: Path) -> None:
    content = os.urandom(3 << 20)
    path = {"path": path_uri(here / "big")}
    client.call("fs/writeFile", {**path, "dataBase64": encode(content)})
    assert (here / "big").read_bytes() == content
    assert client.call("fs/readFile", path)["dataBase64"] == encode(content)


@pytest.mark.statement("F13")
def test_create_directory(client: Client, tree: Path) -> None:
    def create(name: str, **members: Json) -> Json:
        return client.call("fs/createDirectory", {"path": path_uri(tree / name), **members})

    assert create("new/and/below") == {}
    assert (tree / "new/and/below").is_dir()
    assert create("new", recursive=True) == {}
    assert create("single", recursive=False) == {}
    with pytest.raises(ReplyError, match="File exists"):
        create("single", recursive=False)
    for recursive in (True, False):
        assert refusal(client, "fs/createDirectory", tree / "a.txt", recursive=recursive) == EXISTS
    assert refusal(client, "fs/createDirectory", tree / "x/y", recursive=False) == NOT_FOUND


# -- removing


@pytest.mark.everywhere
@pytest.mark.statement("F30", "F31")
def test_remove(client: Client, tree: Path) -> None:
    def remove(name: str, **members: Json) -> Json:
        return client.call("fs/remove", {"path": path_uri(tree / name), **members})

    assert remove("link") == {}
    assert remove("dirlink", recursive=True) == {}
    assert remove("dangling") == {}
    assert (tree / "a.txt").exists()
    assert (tree / "d" / "y").exists()
    full = (-32603, "Directory not empty (os error 39)")
    assert refusal(client, "fs/remove", tree / "d", recursive=False) == full
    assert remove("d") == {}
    assert remove("fifo", recursive=False) == {}
    (tree / "e").mkdir()
    assert remove("e", recursive=False, force=False) == {}
    assert sorted(os.listdir(tree)) == ["a.txt"]


@pytest.mark.statement("F32")
def test_force_hides_only_that_nothing_is_there(client: Client, tree: Path) -> None:
    for name in ("missing", "missing/deep/down"):
        assert client.call("fs/remove", {"path": path_uri(tree / name)}) == {}
        assert refusal(client, "fs/remove", tree / name, force=False) == NOT_FOUND
    assert refusal(client, "fs/remove", tree / "a.txt" / "x", force=True) == NOT_A_DIRECTORY


# -- copying


def copy(client: Client, source: Path, destination: Path, recursive: bool = False) -> tuple[int, str]:
    """The outcome of a copy: 0, or code and text of the error."""
    params = {
        "sourcePath": path_uri(source),
        "destinationPath": path_uri(destination),
        "recursive": recursive,
    }
    try:
        assert client.call("fs/copy", params) == {}
    except ReplyError as error:
        return error.code, error.message
    return 0, ""


DONE = (0, "")


@pytest.mark.everywhere
@pytest.mark.statement("F40")
def test_copy_of_a_file(client: Client, here: Path) -> None:
    (here / "s").write_text("data")
    (here / "s").chmod(0o754)
    (here / "old").write_text("much longer old content")
    for name, recursive in (("new", False), ("old", False), ("third", True)):
        assert copy(client, here / "s", here / name, recursive) == DONE
        assert (here / name).read_text() == "data"
        assert stat.S_IMODE((here / name).stat().st_mode) == 0o754


@pytest.mark.statement("F40")
def test_copy_through_a_link(client: Client, here: Path) -> None:
    (here / "s").write_text("new")
    (here / "target").write_text("old")
    (here / "link").symlink_to("target")
    assert copy(client, here / "s", here / "link") == DONE
    assert (here / "link").is_symlink()
    assert (here / "target").read_text() == "new"


@pytest.mark.statement("F41", "F23")
def test_places_that_take_no_file(client: Client, tree: Path) -> None:
    assert copy(client, tree / "a.txt", tree / "d") == IS_A_DIRECTORY
    assert copy(client, tree / "a.txt", tree / "no" / "f") == NOT_FOUND
    assert copy(client, tree / "missing", tree / "f") == NOT_FOUND


@pytest.mark.statement("F42")
def test_links_are_copied_as_links(client: Client, tree: Path) -> None:
    for name, target in (("link", "a.txt"), ("dangling", "nowhere"), ("dirlink", "d")):
        for recursive in (False, True):
            destination = tree / f"{name}-{recursive}"
            assert copy(client, tree / name, destination, recursive) == DONE
            assert os.readlink(destination) == target
    assert copy(client, tree / "link", tree / "link-True") == EXISTS
    assert copy(client, tree / "link", tree / "a.txt") == EXISTS


@pytest.mark.statement("F43", "F44")
def test_copy_of_a_directory(client: Client, tree: Path) -> None:
    (tree / "d" / "inside").symlink_to("../a.txt")
    os.mkfifo(tree / "d" / "fifo")
    (tree / "d" / "y").chmod(0o640)
    needs = (-32600, "fs/copy requires recursive: true when sourcePath is a directory")
    assert copy(client, tree / "d", tree / "d2") == needs
    for name in ("d2", "made/on/the/way"):
        assert copy(client, tree / "d", tree / name, recursive=True) == DONE
        assert sorted(os.listdir(tree / name)) == ["inside", "sub", "y"]
        assert (tree / name / "sub" / "x").read_text() == "x"
        assert os.readlink(tree / name / "inside") == "../a.txt"
        assert stat.S_IMODE((tree / name / "y").stat().st_mode) == 0o640
    assert copy(client, tree / "d", tree / "d2", recursive=True) == EXISTS
    assert copy(client, tree / "d", tree / "a.txt", recursive=True) == EXISTS


@pytest.mark.statement("F45")
def test_directory_into_itself(client: Client, tree: Path) -> None:
    text = "fs/copy cannot copy a directory to itself or one of its descendants"
    for name in ("d", "d/inner", "d/sub/deep/er", "dirlink/inner"):
        assert copy(client, tree / "d", tree / name, recursive=True) == (-32600, text), name
    assert sorted(os.listdir(tree / "d")) == ["sub", "y"]


@pytest.mark.statement("F46")
def test_special_files_are_not_copied(client: Client, tree: Path) -> None:
    text = "fs/copy only supports regular files, directories, and symlinks"
    with at_most(5):
        for source in (tree / "fifo", Path("/dev/null")):
            assert copy(client, source, tree / "new") == (-32600, text)
            assert copy(client, source, tree / "new", recursive=True) == (-32600, text)


@pytest.mark.statement("F47")
def test_file_onto_itself_keeps_its_content(client: Client, tree: Path) -> None:
    os.link(tree / "a.txt", tree / "hard")
    for destination in ("a.txt", "link", "hard", "d/../a.txt"):
        assert copy(client, tree / "a.txt", tree / destination)[0] == -32600, destination
    assert (tree / "a.txt").read_text() == "hello"


def rename(client: Client, source: Path, destination: Path, **members: Json) -> tuple[str, dict[str, Json]]:
    return "fs/rename", {"sourcePath": path_uri(source), "destinationPath": path_uri(destination), **members}


@pytest.mark.everywhere
@pytest.mark.statement("F50", "G9")
def test_rename_moves_the_name(client: Client, here: Path) -> None:
    (here / "file").write_text("text")
    (here / "link").symlink_to("file")
    (here / "folder").mkdir()
    (here / "folder" / "inside").write_text("in")
    client.call("fs/open", {"handleId": "h", "path": path_uri(here / "file")})
    inode = (here / "file").stat().st_ino
    for name in ("link", "file", "folder"):
        assert client.call(*rename(client, here / name, here / f"new {name}")) == {}
        assert not os.path.lexists(here / name)
    assert (here / "new file").stat().st_ino == inode
    assert os.readlink(here / "new link") == "file"
    assert (here / "new folder" / "inside").read_text() == "in"
    assert client.call("fs/readBlock", {"handleId": "h", "offset": 0, "len": 9})["chunk"] == encode("text")


@pytest.mark.statement("F50")
def test_two_names_of_one_file_stay(client: Client, here: Path) -> None:
    (here / "one").write_text("text")
    os.link(here / "one", here / "two")
    assert client.call(*rename(client, here / "one", here / "two")) == {}
    assert client.call(*rename(client, here / "one", here / "one")) == {}
    assert sorted(os.listdir(here)) == ["one", "two"]


@pytest.mark.statement("F51")
def test_rename_replaces_like_by_like(client: Client, here: Path) -> None:
    (here / "file").write_text("new")
    (here / "old").write_text("old")
    for name in ("empty", "full", "folder"):
        (here / name).mkdir()
    (here / "full" / "file").touch()
    assert client.call(*rename(client, here / "file", here / "old")) == {}
    assert (here / "old").read_text() == "new"
    failure = client.refused(*rename(client, here / "folder", here / "full"))
    assert (failure.code, failure.message) == (-32603, "Directory not empty (os error 39)")
    for source, destination in (("old", "empty"), ("folder", "old")):
        assert client.refused(*rename(client, here / source, here / destination)).code == -32603
    assert client.call(*rename(client, here / "folder", here / "empty")) == {}
    assert sorted(os.listdir(here)) == ["empty", "full", "old"]


@pytest.mark.everywhere
@pytest.mark.statement("F52")
def test_rename_to_a_free_place_only(client: Client, here: Path) -> None:
    (here / "file").write_text("new")
    (here / "old").write_text("old")
    (here / "dangling").symlink_to("nowhere")
    (here / "empty").mkdir()
    (here / "folder").mkdir()
    for source, destination in (
        *(("file", name) for name in ("old", "dangling", "empty", "file")),
        *(("folder", name) for name in ("empty", "old")),
    ):
        failure = client.refused(*rename(client, here / source, here / destination, overwrite=False))
        assert (failure.code, failure.message) == (-32603, "File exists (os error 17)")
    assert (here / "old").read_text() == "old"
    for name in ("file", "folder", "dangling"):
        assert client.call(*rename(client, here / name, here / f"new {name}", overwrite=False)) == {}
    assert sorted(os.listdir(here)) == ["empty", "new dangling", "new file", "new folder", "old"]


@pytest.mark.statement("F53", "I2")
@pytest.mark.parametrize("overwrite", [False, True])
def test_rename_of_what_cannot_be(client: Client, here: Path, overwrite: bool) -> None:
    (here / "file").touch()
    (here / "folder").mkdir()
    for source, destination in (("nothing", "new"), ("file", "no/such/folder")):
        request = rename(client, here / source, here / destination, overwrite=overwrite)
        assert client.refused(*request).code == -32004
    failure = client.refused(*rename(client, here / "folder", here / "folder" / "in", overwrite=overwrite))
    assert (failure.code, failure.message) == (-32600, "Invalid argument (os error 22)")
    elsewhere = Path("/dev/shm") / f"{here.name}-{os.getpid()}"
    failure = client.refused(*rename(client, here / "file", elsewhere, overwrite=overwrite))
    assert (failure.code, failure.message) == (-32603, "Invalid cross-device link (os error 18)")
    assert sorted(os.listdir(here)) == ["file", "folder"]


@pytest.mark.everywhere
@pytest.mark.statement("F54")
@pytest.mark.parametrize("size", [0, 1, 1 << 20, (3 << 20) + 1])
def test_digest_is_of_the_whole_file(client: Client, here: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    (here / "file").write_bytes(content)
    (here / "link").symlink_to("file")
    for name in ("file", "link"):
        result = client.call("fs/digest", {"path": path_uri(here / name)})
        assert result == {"sha256": hashlib.sha256(content).hexdigest(), "size": size}


@pytest.mark.statement("F54", "F4")
def test_digest_of_a_file_that_reports_no_size(client: Client) -> None:
    content = Path("/proc/version").read_bytes()
    result = client.call("fs/digest", {"path": path_uri("/proc/version")})
    assert result == {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


@pytest.mark.statement("F54", "F2")
def test_digest_of_what_is_no_file(client: Client, here: Path) -> None:
    os.mkfifo(here / "fifo")
    for path in (here, here / "fifo", Path("/dev/null")):
        failure = client.refused("fs/digest", {"path": path_uri(path)})
        assert (failure.code, failure.message) == (-32600, f"path `{path}` is not a file")
    assert client.refused("fs/digest", {"path": path_uri(here / "nothing")}).code == -32004


@pytest.mark.statement("F54", "S4")
@pytest.mark.transports("unix")
def test_digest_of_an_endless_file_delays_no_request_and_ends_with_its_connection(
    endpoint: Endpoint, here: Path
) -> None:
    private = endpoint.private()
    with open(here / "sparse", "wb") as file:
        file.truncate(1 << 42)
    leaving, staying = private.connect(), private.connect()
    numbers = [leaving.request("fs/digest", {"path": path_uri(here / "sparse")}) for _ in range(2)]
    for client in (leaving, staying):
        assert client.start("/bin/true").wait_closed().exit_code == 0
    assert not any(map(leaving.answered, numbers))
    deadline = time.monotonic() + PATIENCE
    while not (found := [pid for pid in descendants(private.server.pid) if holds(pid, here / "sparse")]):
        assert time.monotonic() < deadline, "it is never read"
        time.sleep(0.01)
    server = found[0]  # a child that it has just forked is behind it
    leaving.close()
    deadline = time.monotonic() + PATIENCE
    while holds(server, here / "sparse"):
        assert time.monotonic() < deadline, "it is still read"
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    found = [*children]
    for child in children:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += descendants(child)
    return found


def holds(pid: int, path: Path) -> bool:
    """Whether a process has a file open."""
    with contextlib.suppress(FileNotFoundError):
        return str(path.resolve()) in open_files(pid)
    return False


# -- whole copies, modes and times


@pytest.mark.statement("F48")
def test_a_copy_replaces_the_file_that_is_there(client: Client, here: Path) -> None:
    (here / "s").write_text("new")
    (here / "old").write_text("old")
    os.link(here / "old", here / "other name")
    client.call("fs/open", {"handleId": "h", "path": path_uri(here / "old")})
    assert copy(client, here / "s", here / "old") == DONE
    assert ((here / "old").read_text(), (here / "other name").read_text()) == ("new", "old")
    assert client.call("fs/readBlock", {"handleId": "h", "offset": 0, "len": 9})["chunk"] == encode("old")
    assert sorted(os.listdir(here)) == ["old", "other name", "s"]


@pytest.mark.everywhere
@pytest.mark.statement("F57")
@pytest.mark.parametrize("hole", [1 << 20, 1 << 26])
def test_holes_and_sizes_of_zero_are_copied(client: Client, here: Path, hole: int) -> None:
    with open(here / "s", "wb") as file:
        file.seek(hole)
        file.write(b"end")
    assert copy(client, here / "s", here / "t") == DONE
    assert (here / "t").stat().st_size == hole + 3
    assert (here / "t").stat().st_blocks <= (here / "s").stat().st_blocks + 16
    assert copy(client, Path("/proc/version"), here / "version") == DONE
    assert (here / "version").read_bytes() == Path("/proc/version").read_bytes()


@pytest.mark.statement("F58")
@pytest.mark.parametrize("recursive", [False, True])
def test_a_copy_can_keep_modes_and_times(client: Client, tree: Path, recursive: bool) -> None:
    source = tree / ("d" if recursive else "a.txt")
    inside = ["", "sub/x"] if recursive else [""]
    for number, name in enumerate(inside):
        (source / name).chmod(0o4751)
        os.utime(source / name, ns=(7, 1_700_000_000_000_000_001 + number))
    target = tree / "copy"
    if not recursive:
        target.touch()
        target.chmod(0o600)
    request = {"sourcePath": path_uri(source), "destinationPath": path_uri(target), "recursive": recursive}
    assert client.call("fs/copy", {**request, "keepMode": True, "preserveTimes": True}) == {}
    for number, name in enumerate(inside):
        status = (target / name).stat()
        assert stat.S_IMODE(status.st_mode) == (0o751 if recursive else 0o600)
        assert status.st_mtime_ns == 1_700_000_000_000_000_001 + number


@pytest.mark.everywhere
@pytest.mark.statement("F55")
def test_a_finished_file_is_moved_to_its_place(client: Client, here: Path) -> None:
    (here / "old").write_text("old")
    (here / "old").chmod(0o640)
    (here / "link").symlink_to("old")
    for number, (members, mode) in enumerate((({}, 0o640), ({"permissions": 0o755}, 0o755))):
        (here / "part").write_text(str(number))
        params = {
            "sourcePath": path_uri(here / "part"),
            "destinationPath": path_uri(here / "link"),
            **members,
        }
        assert client.call("fs/install", {**params, "modifiedAtNs": 123_456_789}) == {}
        assert (here / "old").read_text() == str(number)
        status = (here / "old").stat()
        assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (mode, 123_456_789)
        assert sorted(os.listdir(here)) == ["link", "old"]


@pytest.mark.statement("F55", "F2")
def test_what_cannot_be_moved_to_a_place(client: Client, tree: Path) -> None:
    os.link(tree / "a.txt", tree / "hard")

    def outcome(source: str, destination: str) -> int:
        params = {"sourcePath": path_uri(tree / source), "destinationPath": path_uri(tree / destination)}
        return client.refused("fs/install", params).code

    assert outcome("missing", "new") == -32004
    assert outcome("a.txt", "no/f") == -32004
    assert outcome("a.txt", "d") == -32603
    with at_most(5):
        for source, destination in (("d", "new"), ("fifo", "new"), ("a.txt", "fifo"), ("a.txt", "hard")):
            assert outcome(source, destination) == -32600, source
    assert (tree / "a.txt").read_text() == "hello"


@pytest.mark.everywhere
@pytest.mark.statement("F56")
def test_modes_and_times_are_set(client: Client, tree: Path) -> None:
    for name in ("link", "d"):
        params = {"path": path_uri(tree / name), "permissions": 0o1750, "modifiedAtNs": -5}
        assert client.call("fs/setMetadata", params) == {}
        status = (tree / name).stat()
        assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o1750, -5)
    assert client.call("fs/setMetadata", {"path": path_uri(tree / "d"), "accessedAtNs": 3}) == {}
    assert ((tree / "d").stat().st_atime_ns, (tree / "d").stat().st_mtime_ns) == (3, -5)
    assert refusal(client, "fs/setMetadata", tree / "no", permissions=0) == NOT_FOUND
    for members in (
        {"permissions": -1},
        {"permissions": 0o10000},
        {"modifiedAtNs": 2**63},
        {"permissions": "x"},
    ):
        assert refusal(client, "fs/setMetadata", tree / "a.txt", **members)[0] == -32602


@pytest.mark.statement("F14")
def test_what_is_made_has_the_mode_that_was_asked_for(client: Client, here: Path) -> None:
    client.call("fs/createDirectory", {"path": path_uri(here / "a/b"), "permissions": 0o700})
    assert stat.S_IMODE((here / "a/b").stat().st_mode) == 0o700
    assert stat.S_IMODE((here / "a").stat().st_mode) == 0o755
    params = {"handleId": "h", "path": path_uri(here / "f"), "mode": "replace", "permissions": 0o600}
    client.call("fs/open", params)
    assert stat.S_IMODE((here / "f").stat().st_mode) == 0o600


@pytest.mark.statement("F54")
def test_the_digest_of_a_beginning(client: Client, here: Path) -> None:
    (here / "f").write_bytes(b"hello and more")
    for size, data in ((5, b"hello"), (0, b""), (99, b"hello and more")):
        found = client.call("fs/digest", {"path": path_uri(here / "f"), "size": size})
        assert found == {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


@pytest.mark.statement("F49", "X14")
def test_what_cannot_be_replaced_is_written_in_place(
    endpoint: Endpoint, here: Path, irreplaceable: Path
) -> None:
    extended = endpoint.connect(extensions=True)
    inode = irreplaceable.stat().st_ino
    for method, members in (("fs/copy", {"recursive": False}), ("fs/install", {})):
        for text in ("new", "something longer", ""):
            (here / "source").write_text(text)
            paths = {"sourcePath": path_uri(here / "source"), "destinationPath": path_uri(irreplaceable)}
            assert extended.call(method, {**paths, **members}) == {"inPlace": True}
            assert (irreplaceable.read_text(), irreplaceable.stat().st_ino) == (text, inode)
    assert os.listdir(here / "closed") == ["file"]
