from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pexpect
import pytest

from tests.integration.commands.conftest import EXECSERVER, CommandLine, until

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


def test_a_bar_is_drawn_on_a_terminal_only(execserver: CommandLine, there: Path) -> None:
    (there / "file").write_bytes(DATA)
    command = " ".join([*EXECSERVER, "cp", f":{there}/file", f"{execserver.folder}/back"])

    drawn = pexpect.run(command, env=execserver.environment, timeout=20, encoding="utf-8")
    assert "file" in drawn
    assert "MiB" in drawn
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
