from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pexpect
import pytest

from tests.integration.commands.conftest import EXECSERVER, CommandLine, until
from tests.support.mounts import small_disk

DATA = os.urandom(3_500_000)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder that stands for the daemon's machine."""
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "one", "large"])
def test_a_file_goes_there_and_back(execserver: CommandLine, there: Path, data: bytes) -> None:
    (execserver.folder / "file").write_bytes(data)

    assert execserver("cp", "file", f":{there}/copy").returncode == 0
    assert (there / "copy").read_bytes() == data
    assert execserver("cp", f":{there}/copy", "back").returncode == 0
    assert (execserver.folder / "back").read_bytes() == data
    assert sorted(each.name for each in there.iterdir()) == ["copy"]
    assert sorted(each.name for each in execserver.folder.iterdir()) == ["back", "file"]


def test_into_a_directory_it_keeps_its_name(execserver: CommandLine, there: Path) -> None:
    (execserver.folder / "file").write_bytes(b"x")

    assert execserver("cp", "file", f":{there}").returncode == 0
    assert execserver("cp", "file", f":{there}/").returncode == 0
    (execserver.folder / "file").unlink()
    assert execserver("cp", f":{there}/file", ".").returncode == 0
    assert (execserver.folder / "file").read_bytes() == b"x"


@pytest.mark.parametrize("arguments", [["file", ":{there}/no/"], [":{there}/file", "no/"]])
def test_a_directory_that_is_not_there_is_not_taken_for_a_file(
    execserver: CommandLine, there: Path, arguments: list[str]
) -> None:
    for folder in (there, execserver.folder):
        (folder / "file").write_bytes(b"x")

    done = execserver("cp", *(each.format(there=there) for each in arguments))

    assert done.returncode == 125
    assert b"no such directory" in done.stderr


def test_a_tree_goes_there_and_back_and_what_stays_behind_is_said(
    execserver: CommandLine, there: Path
) -> None:
    tree = execserver.folder / "tree"
    (tree / "a" / "empty").mkdir(parents=True)
    (tree / "a" / "one").write_bytes(b"1")
    (tree / "two [x] ü").write_bytes(DATA)
    os.symlink("a", tree / "link")

    refused = execserver("cp", "tree", f":{there}")
    assert (refused.returncode, refused.stderr) == (
        125,
        b"execserver: tree: is a directory; use -r\n",
    )
    done = execserver("cp", "-r", "tree", f":{there}")
    assert done.returncode == 1
    assert b"tree/link: a link to a directory is not copied" in done.stderr
    os.symlink("a", there / "tree" / "link")
    back = execserver("cp", "-r", "--json", f":{there}/tree", "back")
    assert back.returncode == 1
    report = json.loads(back.stdout)
    assert (report["files"], report["bytes"], len(report["leftOut"])) == (2, 1 + len(DATA), 1)

    for copy in (there / "tree", execserver.folder / "back"):
        assert sorted(str(each.relative_to(copy)) for each in copy.rglob("*") if not each.is_symlink()) == [
            "a",
            "a/empty",
            "a/one",
            "two [x] ü",
        ]
        assert (copy / "two [x] ü").read_bytes() == DATA


def test_standard_streams_are_ends_like_others(execserver: CommandLine, there: Path) -> None:
    done = execserver("cp", "-", f":{there}/file", data=DATA)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (there / "file").read_bytes() == DATA
    done = execserver("cp", f":{there}/file", "-")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == DATA


def test_within_the_daemon_s_machine_nothing_comes_by_here(execserver: CommandLine, there: Path) -> None:
    (there / "one").write_bytes(b"1")

    assert execserver("cp", f":{there}/one", f":{there}/two").returncode == 0
    assert (there / "two").read_bytes() == b"1"


def test_interrupted_while_it_waits_for_input_it_leaves_nothing_there(
    execserver: CommandLine, there: Path
) -> None:
    (there / "file").write_bytes(b"old")
    with execserver.start("cp", "-", f":{there}/file") as process:
        assert process.stdin is not None
        process.stdin.write(bytes(2_000_000))
        process.stdin.flush()
        until(lambda: len(list(there.iterdir())) == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130

    assert [each.name for each in there.iterdir()] == ["file"]
    assert (there / "file").read_bytes() == b"old"


def test_without_a_reader_it_ends_as_others_do(execserver: CommandLine, there: Path) -> None:
    (there / "file").write_bytes(DATA)
    with execserver.start("cp", f":{there}/file", "-") as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(20) == 141


def test_progress_is_shown_on_a_terminal_only(execserver: CommandLine, there: Path) -> None:
    (there / "file").write_bytes(DATA)
    command = " ".join([*EXECSERVER, "cp", f":{there}/file", f"{execserver.folder}/back"])

    drawn = str(pexpect.run(command, env=execserver.environment, timeout=20, encoding="utf-8"))
    assert "file  100%  3.3 MiB of 3.3 MiB" in drawn
    assert "MiB/s" in drawn
    assert drawn.endswith("\r\n")
    assert execserver("cp", f":{there}/file", "back").stderr == b""


def test_what_is_not_there_is_named(execserver: CommandLine, there: Path) -> None:
    for arguments in ([f":{there}/no", "copy"], [f":{there}/no", "-"], [f":{there}/no", f":{there}/copy"]):
        done = execserver("cp", *arguments)

        assert done.returncode == 125
        assert f":{there}/no: No such file".encode() in done.stderr


def test_a_name_that_the_wire_cannot_list_stays_behind_and_is_said(
    execserver: CommandLine, there: Path
) -> None:
    for name in (b"file", b"\xff"):
        Path(os.fsdecode(bytes(there) + b"/" + name)).write_bytes(b"x")

    done = execserver("cp", "-r", f":{there}", "copy")

    assert done.returncode == 1
    assert b"its name is not UTF-8" in done.stderr
    assert os.listdir(execserver.folder / "copy") == ["file"]


async def test_a_server_cannot_write_beside_the_destination(tmp_path: Path) -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        results: dict[str, dict[str, object]] = {
            "initialize": {"sessionId": "s1"},
            "fs/readDirectory": {
                "entries": [{"fileName": "../../evil", "isDirectory": False, "isFile": True}]
            },
            "fs/readBlock": {"chunk": "eA==", "eof": True},
        }
        async for line in reader:
            request = json.loads(line)
            if "id" in request:
                is_folder = request["params"].get("path", "").endswith("/dir")
                kind = {"isDirectory": is_folder, "isFile": not is_folder, "isSymlink": False}
                metadata = {**kind, "size": 1, "modifiedAtMs": 1, "createdAtMs": 1}
                result = results.get(request["method"], metadata)
                writer.write(json.dumps({"id": request["id"], "result": result}).encode() + b"\n")
        writer.close()

    (tmp_path / "a" / "b").mkdir(parents=True)
    server = await asyncio.start_unix_server(lie, tmp_path / "liar")
    arguments = ["cp", "--url", f"unix://{tmp_path}/liar", "-r", ":dir", "target"]
    process = await asyncio.create_subprocess_exec(
        *EXECSERVER, *arguments, cwd=tmp_path / "a" / "b", stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    server.close()

    assert process.returncode == 125
    assert b"'../../evil'" in errors
    assert [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()] == []


def test_a_missing_parent_is_an_error_for_a_tree_as_for_a_file(execserver: CommandLine, there: Path) -> None:
    here = execserver.folder
    for folder in (here, there):
        (folder / "tree").mkdir()
        (folder / "tree/file").touch()

    for source in ("tree", "tree/file"):
        for arguments in (
            [source, f":{there}/none/copy"],
            [f":{there}/{source}", "none/copy"],
            [f":{there}/{source}", f":{there}/none/copy"],
        ):
            done = execserver("cp", "-r", *arguments)
            assert (done.returncode, b"none" in done.stderr) == (125, True), arguments
    assert not (here / "none").exists()
    assert not (there / "none").exists()


def test_a_is_short_for_r_and_p(execserver: CommandLine, there: Path) -> None:
    (execserver.folder / "tree").mkdir()
    file = execserver.folder / "tree/file"
    file.touch()
    os.utime(file, (1000, 1000))

    assert execserver("cp", "-a", "tree", f":{there}/copy").returncode == 0
    assert (there / "copy/file").stat().st_mtime == 1000


def test_several_sources_go_into_a_directory(execserver: CommandLine, there: Path) -> None:
    here = execserver.folder
    (here / "tree" / "d").mkdir(parents=True)
    for name in ("one", "two", "tree/d/three"):
        (here / name).write_text(name)
    (there / "copies").mkdir()
    (here / "back").mkdir()

    done = execserver("cp", "-r", "--json", "one", "two", "tree", f":{there}")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == {
        "sources": ["one", "two", "tree"], "destination": f":{there}", "files": 3, "bytes": 18,
        "leftOut": [], "inPlace": [],
    }  # fmt: skip
    remote = [f":{there}/{name}" for name in ("one", "two", "tree")]
    assert execserver("cp", "-r", *remote, f":{there}/copies").returncode == 0
    assert execserver("cp", "-r", *remote, "back").returncode == 0

    for folder in (there, there / "copies", here / "back"):
        for name in ("one", "two", "tree/d/three"):
            assert (folder / name).read_text() == name


def test_of_several_sources_those_that_are_missing_are_reported(execserver: CommandLine, there: Path) -> None:
    for folder in (execserver.folder, there):
        (folder / "one").write_text("1")
        (folder / "d").mkdir()
    (execserver.folder / "back").mkdir()

    up = execserver("cp", "no", "d", "one", f":{there}/d")
    down = execserver("cp", f":{there}/no", f":{there}/d", f":{there}/one", "back")

    for done, folder in ((up, there / "d"), (down, execserver.folder / "back")):
        assert done.returncode == 1
        assert [b"No such file" in line or b"use -r" in line for line in done.stderr.splitlines()] == [
            True
        ] * 2
        assert os.listdir(folder) == ["one"]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["one", ":{there}/one", "back"], 2, b"all on this machine, or all on the daemon's"),
        (["one", "two", "back"], 2, b"must be on the daemon's machine"),
        (["-", "one", ":{there}"], 2, b"cannot be copied together with other files"),
        ([":{there}/one", ":{there}/two", "-"], 2, b"cannot be copied together with other files"),
        (["one", "two", ":{there}/one"], 125, b"one: not a directory, for several sources"),
        ([":{there}/one", ":{there}/two", "no"], 125, b"no: not a directory, for several sources"),
    ],
)
def test_several_sources_need_one_side_and_a_directory(
    execserver: CommandLine, there: Path, arguments: list[str], status: int, text: bytes
) -> None:
    for folder in (execserver.folder, there):
        for name in ("one", "two"):
            (folder / name).write_text("old")

    done = execserver("cp", *(each.format(there=there) for each in arguments))

    assert (done.returncode, text in done.stderr) == (status, True), done.stderr
    assert [path.read_text() for path in there.iterdir()] == ["old", "old"]
    assert sorted(os.listdir(execserver.folder)) == ["one", "two"]


def test_one_file_that_cannot_be_copied_does_not_end_the_copy_of_a_tree(
    execserver: CommandLine, there: Path
) -> None:
    for name in ("a", "b", "c"):
        (execserver.folder / "tree" / name).parent.mkdir(exist_ok=True)
        (execserver.folder / "tree" / name).write_text(name)
    (there / "tree" / "b").mkdir(parents=True)

    done = execserver("cp", "-r", "tree", f":{there}")

    assert done.returncode == 1
    assert done.stderr == f"execserver: :{there}/tree/b: Is a directory (os error 21)\n".encode()
    assert [(there / "tree" / name).read_text() for name in ("a", "c")] == ["a", "c"]


def test_a_full_disk_ends_the_copy_of_a_tree(execserver: CommandLine, there: Path) -> None:
    (execserver.folder / "tree").mkdir()
    for number in range(50):
        (execserver.folder / "tree" / f"{number}").write_bytes(bytes(40_000))
    with small_disk(there / "disk") as disk:
        done = execserver("cp", "-r", "tree", f":{disk}/tree")
        whole = [path.stat().st_size for path in (disk / "tree").iterdir()]

    assert done.returncode == 125
    assert done.stderr.startswith(f"execserver: :{disk}/tree/".encode())
    assert done.stderr.endswith(b": No space left on device (os error 28)\n")
    assert set(whole) == {40_000}


def test_what_is_excluded_is_not_copied(execserver: CommandLine, there: Path) -> None:
    for name in ("keep/a.py", "keep/a.pyc", "build/x", ".git/config"):
        (execserver.folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (execserver.folder / "tree" / name).write_text("x")
    options = ("--exclude", "*.pyc", "--exclude", "/build", "--exclude=.git/")

    assert execserver("cp", "-r", *options, "tree", f":{there}").returncode == 0
    assert execserver("cp", "-r", "tree", f":{there}/whole").returncode == 0
    assert execserver("cp", "-r", *options, f":{there}/whole", "back").returncode == 0
    refused = execserver("cp", "-r", *options, f":{there}/whole", f":{there}/other")

    for copy in (there / "tree", execserver.folder / "back"):
        assert [str(path.relative_to(copy)) for path in copy.rglob("*")] == ["keep", "keep/a.py"]
    assert (refused.returncode, b"--exclude" in refused.stderr) == (2, True)
    assert not (there / "other").exists()
