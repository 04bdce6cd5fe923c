"""A denied file is closed to commands and to `fs/*` alike, by all names and links that lead to it."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import READ_ROOT, WRITE_WORKSPACE, glob, restricted
from tests.support.wire import Json, ReplyError, path_uri

SECRET = "word that must not be seen"


@dataclass(frozen=True)
class Case:
    """A tree with a secret in it. Names are relative to the folder of the tree, links as they are made."""

    name: str
    secret: str
    links: dict[str, str]
    ways: tuple[str, ...]
    """Other names by which the test tries to read the secret."""
    pattern: str = "**/.env"


CASES = (
    Case("a link to a folder", "out/.env", {"ws/ln": "{out}"}, ("ws/ln/.env",)),
    Case("a link by two dots", "out/.env", {"ws/sub/ln": "../../out"}, ("ws/sub/ln/.env",)),
    Case("deep behind a link", "out/a/b/.env", {"ws/ln": "{out}"}, ("ws/ln/a/b/.env",)),
    Case("a chain", "out/.env", {"ws/ln": "two", "ws/two": "../three", "three": "{out}"}, ("ws/ln/.env",)),
    Case("a link to a link in between", "out/d/.env", {"ws/ln": "../hop/d", "hop": "out"}, ("ws/ln/.env",)),
    Case("links behind links", "far/.env", {"ws/ln": "{out}", "out/on": "../far"}, ("ws/ln/on/.env",)),
    Case("another name beside it", "ws/.env", {"ws/notes": ".env"}, ("ws/notes",)),
    Case("another name outside", "out/.env", {"ws/notes": "{out}/.env"}, ("ws/notes",)),
    Case(
        "two other names", "out/.env", {"ws/notes": "more", "ws/more": "../out/.env"}, ("ws/notes", "ws/more")
    ),
    Case("a link of that name", "out/plain", {"ws/sub/.env": "{out}/plain"}, ("ws/sub/.env",)),
    Case("a name in between", "out/plain", {"ws/notes": "{out}/.env", "out/.env": "plain"}, ("ws/notes",)),
    Case("a folder of another name", "out/.ssh/id", {"ws/keys": "{out}/.ssh"}, ("ws/keys/id",), "**/.ssh/**"),
    Case("a link up", "side/.env", {"ws/up": ".."}, ("ws/up/side/.env",)),
    Case("a circle", "ws/sub/.env", {"ws/sub/round": "..", "ws/self": "."}, ("ws/self/sub/round/sub/.env",)),
    Case("the root of /proc", "out/.env", {"ws/ln": "/proc/self/root{out}"}, ("ws/ln/.env",)),
    Case("an odd name", "out/.env", {"ws/a\nb c": "{out}"}, ()),
    Case("a fixed depth", "out/keys/x", {"ws/sub/ln": "{out}"}, ("ws/sub/ln/keys/x",), "*/*/keys/*"),
)


def laid_out(host: Host, case: Case) -> tuple[Tree, Json]:
    """The tree of a case, and the context with its pattern."""
    tree = host.tree()
    links = {name: text.format(out=tree.out) for name, text in case.links.items()}
    tree.add({case.secret: SECRET}, links)
    return tree, tree.context(restricted(READ_ROOT, WRITE_WORKSPACE, glob(case.pattern)))


def file_requests(host: Host, path: str, copy: str, sandbox: Json) -> dict[str, str]:
    """The result of each reading request for a path: base64 of its text, or the error."""
    where = {"path": path_uri(path), "sandbox": sandbox}

    def opened() -> str:
        host.client.call("fs/open", {"handleId": "h", "mode": "read", **where})
        read = host.client.call(
            "fs/readBlock", {"handleId": "h", "offset": 0, "len": 100, "sandbox": sandbox}
        )
        host.client.call("fs/close", {"handleId": "h"})
        return str(read["chunk"])

    def copied() -> str:
        ends = {"sourcePath": path_uri(path), "destinationPath": path_uri(copy)}
        host.client.call("fs/copy", {**ends, "recursive": False, "sandbox": sandbox})
        return str(host.client.call("fs/readFile", {"path": path_uri(copy)})["dataBase64"])

    def batched() -> str:
        (found,) = host.client.call("fs/getFiles", {"paths": [path_uri(path)], "sandbox": sandbox})["entries"]
        if "error" in found:
            raise ReplyError("fs/getFiles", found["error"]["code"], found["error"]["message"])
        return str(found["dataBase64"])

    requests: dict[str, Callable[[], str]] = {
        "fs/readFile": lambda: str(host.client.call("fs/readFile", where)["dataBase64"]),
        "fs/getFiles": batched,
        "fs/open": opened,
        "fs/digest": lambda: str(host.client.call("fs/digest", where)),
        "fs/copy": copied,
    }
    found = {}
    for name, request in requests.items():
        try:
            found[name] = request()
        except ReplyError as error:
            found[name] = f"refused: {error}"
    return found


@pytest.mark.statement("C16", "C52")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_target_of_a_link_is_denied_by_all_its_names(anyones_host: Host, case: Case) -> None:
    tree, sandbox = laid_out(anyones_host, case)
    encoded = base64.b64encode(SECRET.encode()).decode()
    for way in (case.secret, *case.ways):
        path = str(tree.base / way)
        assert anyones_host.shell(tree, f"cat {path}").output.decode() == SECRET
        done = anyones_host.shell(tree, f"cat {path}; cp {path} stolen; cat stolen", sandbox)
        assert SECRET not in done.output.decode(), way
        assert done.exit_code != 0
        copy = str(tree.ws / f"copy-{way.replace('/', '-')}")
        for name, answer in file_requests(anyones_host, path, copy, sandbox).items():
            # A link is copied as one, and leads to what is denied.
            is_link = name == "fs/copy" and (tree.base / way).is_symlink()
            assert is_link or answer.startswith("refused: "), (way, name, answer)
            assert is_link or encoded not in answer
        free = file_requests(anyones_host, path, f"{copy}-free", None)
        assert free["fs/readFile"] == free["fs/open"] == free["fs/getFiles"] == encoded


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_batch_cannot_replace_a_denied_file(host: Host, case: Case) -> None:
    tree, sandbox = laid_out(host, case)
    entries = [
        {"path": path_uri(tree.base / way), "permissions": 0o644, "dataBase64": "eA=="}
        for way in (case.secret, *case.ways)
    ]
    outcomes = host.client.call("fs/putFiles", {"entries": entries, "sandbox": sandbox})["entries"]
    assert all("error" in outcome for outcome in outcomes), outcomes
    assert (tree.base / case.secret).read_text() == SECRET


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_command_cannot_take_away_what_covers_a_denied_file(host: Host, case: Case) -> None:
    tree, sandbox = laid_out(host, case)
    links = " ".join(str(tree.base / link) for link in case.links)
    path = tree.base / case.secret
    script = (
        f"rm -f {links}; mv {path.parent} {tree.ws}/moved; mv {path} {tree.ws}/mine; "
        f"ln {path} {tree.ws}/hard; umount {path}; cat {path} moved/* mine hard; "
        f"cat /proc/self/cwd/../{case.secret}; cat /proc/self/root{path}; exec 3<{path}; cat /proc/self/fd/3"
    )
    assert SECRET not in host.shell(tree, script, sandbox).output.decode()
    assert path.read_text() == SECRET


def test_a_link_that_a_command_makes_leads_to_nothing_that_its_own_name_does_not(
    host: Host, tree: Tree
) -> None:
    tree.add({"out/.env": SECRET, "ws/.env": SECRET})
    sandbox = tree.context(restricted(READ_ROOT, WRITE_WORKSPACE, glob("**/.env")))
    script = "ln -s .env notes; ln -s . self; ln -s /proc/self/cwd cwd; cat notes self/.env cwd/.env"
    assert SECRET not in host.shell(tree, script, sandbox).output.decode()
    for way in ("notes", "self/.env", "cwd/.env"):
        with pytest.raises(ReplyError):
            host.client.call("fs/readFile", {"path": path_uri(tree.ws / way), "sandbox": sandbox})
    # Outside of the workspace the pattern holds from the moment on that a link leads there.
    assert host.shell(tree, f"cat {tree.out}/.env", sandbox).output.decode() == SECRET
    host.shell(tree, f"ln -s {tree.out} ln; ln -s {tree.out}/.env other", sandbox)
    for way in ("ws/ln/.env", "ws/other", "out/.env"):
        assert SECRET not in host.shell(tree, f"cat {tree.base / way}", sandbox).output.decode()
    for way in ("ws/ln/.env", "ws/other"):
        with pytest.raises(ReplyError):
            host.client.call("fs/readFile", {"path": path_uri(tree.base / way), "sandbox": sandbox})
    deadline = time.monotonic() + 10
    while True:  # at most two seconds
        try:
            host.client.call("fs/readFile", {"path": path_uri(tree.out / ".env"), "sandbox": sandbox})
        except ReplyError:
            break
        assert time.monotonic() < deadline


def test_a_link_that_led_nowhere_is_denied_when_there_is_something(host: Host, tree: Tree) -> None:
    tree.add({}, {"ws/ln": str(tree.out / "later"), "ws/notes": str(tree.out / "later/.env")})
    sandbox = tree.context(restricted(READ_ROOT, WRITE_WORKSPACE, glob("**/.env")))
    assert host.shell(tree, "cat ln/.env", sandbox).exit_code != 0
    tree.add({"out/later/.env": SECRET})
    for way in ("ws/ln/.env", "ws/notes", "out/later/.env"):
        assert SECRET not in host.shell(tree, f"cat {tree.base / way}", sandbox).output.decode()


@pytest.mark.statement("C17")
def test_a_start_is_refused_when_a_link_leads_to_more_than_can_be_denied(host: Host, tree: Tree) -> None:
    tree.add({f"out/{number}/.env": SECRET for number in range(257)}, {"ws/ln": str(tree.out)})
    sandbox = tree.context(restricted(READ_ROOT, WRITE_WORKSPACE, glob("**/.env")))
    assert host.shell(tree, f"cat {tree.out}/256/.env").exit_code == 0
    pattern = f"{tree.ws}/**/.env"
    for act in (
        lambda: host.shell(tree, "true", sandbox),
        lambda: host.client.call("fs/readFile", {"path": path_uri(tree.ws / "a.txt"), "sandbox": sandbox}),
    ):
        with pytest.raises(ReplyError) as refusal:
            act()
        assert "match more than 256 paths" in str(refusal.value)
        assert f"remove the symbolic link {tree.ws}/ln (the pattern is '{pattern}')" in str(refusal.value)
    (tree.ws / "ln").unlink()
    assert host.shell(tree, "true", sandbox).exit_code == 0


def test_metadata_lists_and_walks_tell_names_and_no_contents(host: Host, tree: Tree) -> None:
    tree.add({"out/.env": SECRET, "out/.env.d/x": SECRET}, {"ws/ln": str(tree.out)})
    sandbox = tree.context(restricted(READ_ROOT, WRITE_WORKSPACE, glob("**/.env*")))
    for way in ("ws/ln", "out"):
        where = {"path": path_uri(tree.base / way / ".env"), "sandbox": sandbox}
        assert host.client.call("fs/getMetadata", where)["size"] == 0
        where["path"] = path_uri(tree.base / way / ".env.d")
        with pytest.raises(ReplyError, match="Permission denied"):
            host.client.call("fs/readDirectory", where)
        limits = {"maxDepth": 5, "maxDirectories": 100, "maxEntries": 100, "followDirectorySymlinks": True}
        where["path"] = path_uri(tree.base / way)
        walked = host.client.call("fs/walk", {**where, "options": limits})
        assert "/.env.d/x" not in str(walked)
