"""File requests in a sandbox are limited by the policy, too."""

from __future__ import annotations

import pytest

from tests.sandbox.acts import carved, prepared
from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import MINIMAL, READ_ONLY, WORKSPACE
from tests.support.wire import Json, ReplyError, decode, encode, path_uri

READ_ONLY_ERROR = (-32603, "Read-only file system (os error 30)")
DENIED_ERROR = (-32600, "Permission denied (os error 13)")
MISSING_ERROR = (-32004, "No such file or directory (os error 2)")


class Files:
    """File requests under one policy."""

    def __init__(self, host: Host, tree: Tree, sandbox: Json) -> None:
        self.host, self.tree, self.sandbox = host, tree, sandbox

    def call(self, method: str, path: object, **params: Json) -> Json:
        return self.host.client.call(
            f"fs/{method}", {"path": path_uri(str(path)), "sandbox": self.sandbox, **params}
        )

    def read(self, path: object) -> bytes:
        return decode(self.call("readFile", path)["dataBase64"])

    def write(self, path: object, data: bytes = b"x") -> None:
        self.call("writeFile", path, dataBase64=encode(data))

    def error(self, method: str, path: object, **params: Json) -> tuple[int, str]:
        with pytest.raises(ReplyError) as caught:
            self.call(method, path, **params)
        return caught.value.code, caught.value.message


@pytest.fixture
def place(host: Host) -> Tree:
    return prepared(host)


def test_workspace_is_written_and_nothing_else(host: Host, place: Tree) -> None:
    files = Files(host, place, place.context(WORKSPACE))
    files.write(place.ws / "new", b"inside")
    assert files.read(place.ws / "new") == b"inside"
    assert (place.ws / "new").read_bytes() == b"inside"
    assert files.read(place.out / "readable.txt") == b"readable\n"
    data = {"dataBase64": encode("x")}
    for path in (
        place.out / "new",
        place.ws / "link/new",
        f"{place.ws}/../out/new",
        place.ws / ".git/config",
        place.ws / ".git/hooks/new",
        place.ws / ".codex/config.toml",
    ):
        assert files.error("writeFile", path, **data) == READ_ONLY_ERROR, path
    assert files.error("remove", place.out / "readable.txt") == READ_ONLY_ERROR
    assert not (place.out / "new").exists()
    assert (place.ws / ".git/config").read_text() == "[core]\n"


def test_read_only_policy_lets_nothing_be_written(host: Host, place: Tree) -> None:
    files = Files(host, place, place.context(READ_ONLY))
    before = place.listing()
    assert files.read(place.ws / "a.txt") == b"a\n"
    assert files.error("writeFile", place.ws / "a.txt", dataBase64="") == READ_ONLY_ERROR
    assert files.error("createDirectory", place.ws / "d") == READ_ONLY_ERROR
    assert files.error("remove", place.ws / "a.txt") == READ_ONLY_ERROR
    assert files.error("open", place.ws / "a.txt", handleId="h", mode="replace") == READ_ONLY_ERROR
    assert (place.listing(), (place.ws / "a.txt").read_text()) == (before, "a\n")


def test_a_denied_file_cannot_be_read_by_any_request(host: Host, place: Tree) -> None:
    files = Files(host, place, place.context(carved(place)))
    for path in (
        place.ws / "denied.txt",
        place.out / "secret.txt",
        place.ws / ".env",
        place.ws / "sub/deep/.env",
    ):
        assert files.error("readFile", path) == DENIED_ERROR, path
        assert files.error("open", path, handleId="h") == DENIED_ERROR, path
    assert files.error("readDirectory", place.ws / "closed") == DENIED_ERROR
    copy = {"destinationPath": path_uri(place.ws / "copy"), "sourcePath": path_uri(place.ws / "denied.txt")}
    failure = host.client.refused("fs/copy", {**copy, "recursive": False, "sandbox": files.sandbox})
    assert failure.code == -32600
    assert not (place.ws / "copy").exists() or (place.ws / "copy").read_bytes() == b""
    files.write(place.ws / "closed/open/new", b"deep")
    assert files.read(place.ws / "closed/open/new") == b"deep"


def test_minimal_policy_does_not_even_show_what_is_outside(host: Host, place: Tree) -> None:
    files = Files(host, place, place.context(MINIMAL))
    assert files.read(place.ws / "a.txt") == b"a\n"
    assert files.error("readFile", place.out / "readable.txt") == MISSING_ERROR
    assert files.error("readDirectory", place.out) == MISSING_ERROR
    assert files.error("getMetadata", place.home) == MISSING_ERROR
    assert files.error("canonicalize", place.ws / "link/readable.txt") == MISSING_ERROR
    assert files.error("createDirectory", "/confined/deep", recursive=True)[0] == -32603


def test_policies_do_not_get_in_each_others_way(host: Host) -> None:
    places = [host.tree() for _ in range(6)]
    for _ in range(2):
        for number, place in enumerate(places):
            files = Files(host, place, place.context(WORKSPACE))
            files.write(place.ws / "mine", b"%d" % number)
            other = places[number - 1].ws
            assert files.error("writeFile", other / "a.txt", dataBase64="") == READ_ONLY_ERROR
    assert [(place.ws / "mine").read_bytes() for place in places] == [b"%d" % n for n in range(6)]


def test_large_file_passes_whole_through_a_handle(host: Host, place: Tree) -> None:
    data = bytes(range(256)) * 4096
    files = Files(host, place, place.context(WORKSPACE))
    files.write(place.ws / "large", data)
    opened = files.call("open", place.ws / "large", handleId="large")
    assert opened is not None
    read, offset = b"", 0
    while offset < len(data):
        block = host.client.call("fs/readBlock", {"handleId": "large", "offset": offset, "len": 1 << 18})
        read += decode(block["chunk"])
        offset = len(read)
    host.client.call("fs/close", {"handleId": "large"})
    assert read == data
