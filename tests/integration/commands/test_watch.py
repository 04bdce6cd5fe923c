"""`execserver watch`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import IO

import pytest

from tests.integration.commands.conftest import CommandLine

PATIENCE = 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The watched directory, in the daemon's working directory."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def watching(execserver: CommandLine, *arguments: str) -> subprocess.Popen[bytes]:
    """The command, once its watch is active."""
    process = execserver.start("watch", *arguments, stdin=subprocess.DEVNULL)
    assert line(process.stderr).startswith("execserver: watching /")
    return process


def line(stream: IO[bytes] | None) -> str:
    """The next line of an output."""
    assert stream is not None
    return os.fsdecode(stream.readline())


def stopped(process: subprocess.Popen[bytes], number: int = signal.SIGINT) -> tuple[int, bytes]:
    """The exit status after a signal, and the rest of stderr."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_changes_are_lines_until_a_signal(execserver: CommandLine, root: Path, number: int) -> None:
    with watching(execserver, "root") as process:
        (root / "src").mkdir()
        assert line(process.stdout) == f"created   {root}/src/\n"
        (root / "a\x1bb").symlink_to("nothing")
        assert line(process.stdout) == f"created   {root}/a\\x1bb\n"
        (root / "a\x1bb").rename(root / "c")
        assert line(process.stdout) == f"renamed   {root}/a\\x1bb -> {root}/c\n"
        (root / "src").rename(root / "lib")
        assert line(process.stdout) == f"renamed   {root}/src/ -> {root}/lib/\n"
        (root / "c").unlink()
        assert line(process.stdout) == f"removed   {root}/c\n"

        assert stopped(process, number) == (128 + number, b"")


def test_json_has_a_record_on_each_line(execserver: CommandLine, root: Path) -> None:
    with watching(execserver, "--json", str(root)) as process:
        (root / "a\n").mkdir()
        assert json.loads(line(process.stdout)) == {
            "kind": "created",
            "path": f"{root}/a\n",
            "isDirectory": True,
        }
        (root / "a\n").rename(root / os.fsdecode(b"\xff"))
        record = json.loads(line(process.stdout))
        assert record == {
            "kind": "renamed",
            "path": f"{root}/\udcff",
            "from": f"{root}/a\n",
            "isDirectory": True,
        }
        stopped(process)


def test_it_can_end_after_the_first_changes(execserver: CommandLine, root: Path) -> None:
    with watching(execserver, "--once", str(root)) as process:
        (root / "a").mkdir()
        output, errors = process.communicate(timeout=PATIENCE)

    assert (process.returncode, output, errors) == (0, f"created   {root}/a/\n".encode(), b"")


def test_options_choose_what_is_watched(execserver: CommandLine, root: Path) -> None:
    (root / ".gitignore").write_text("*.o\n")
    (root / "vendor").mkdir()
    (root / "vendor/deep").mkdir()
    with watching(execserver, "--exclude-dir", "vendor", str(root)) as process:
        (root / "vendor/a").mkdir()
        (root / "a.o").mkdir()
        (root / "end").mkdir()
        assert line(process.stdout) == f"created   {root}/end/\n"
        stopped(process)
    with watching(execserver, "--no-ignore", "--no-recursive", str(root)) as process:
        (root / "vendor/deep/b").mkdir()
        (root / "b.o").mkdir()
        assert line(process.stdout) == f"created   {root}/b.o/\n"
        stopped(process)


def test_a_sandbox_hides_what_it_may_not_read(execserver: CommandLine, root: Path) -> None:
    with watching(execserver, "--sandbox", "read-only", str(root)) as process:
        (root / "a").mkdir()
        assert line(process.stdout) == f"created   {root}/a/\n"
        stopped(process)


def test_the_end_of_the_root_is_an_error_status(execserver: CommandLine, root: Path) -> None:
    with watching(execserver, "root") as process:
        shutil.rmtree(root)
        _, errors = process.communicate(timeout=PATIENCE)

    assert process.returncode == 1
    assert errors.startswith(b"execserver: ")
    assert str(root).encode() in errors


def test_a_path_that_does_not_exist_is_named(execserver: CommandLine, tmp_path: Path) -> None:
    done = execserver("watch", "missing")

    assert done.returncode == 125
    assert done.stdout == b""
    assert f"{tmp_path}/missing" in done.stderr.decode()


def test_a_reader_that_is_gone_ends_it_at_the_next_change(execserver: CommandLine, root: Path) -> None:
    with execserver.start("watch", "--quiet", "root") as process:
        assert process.stdout is not None
        process.stdout.close()
        status = None
        for number in range(PATIENCE * 10):
            (root / str(number)).mkdir()
            try:
                status = process.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                continue

    assert status == 141
