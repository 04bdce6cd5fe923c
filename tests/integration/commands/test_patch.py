from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pexpect
import pytest

from execclient import Executor
from execclient.commands.daemon import DaemonOptions
from execclient.commands.patch import PatchOptions, patch
from tests.integration.commands.conftest import EXECSERVER, CommandLine, Done

RENAMED = """\
*** Begin Patch
*** Update File: a.txt
*** Move to: sub/b.txt
@@
 one
-two
+2
*** Add File: new/n.txt
+n
*** Delete File: gone.txt
*** End Patch
"""

UNFIT = """\
*** Begin Patch
*** Update File: a.txt
@@
 one
-tow
+2
*** End Patch
"""

HALF = """\
*** Begin Patch
*** Add File: first.txt
+1
*** Add File: a.txt/below
+2
*** End Patch
"""
"""Its second file cannot be made, which shows only when it is tried."""


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder that stands for the daemon's machine."""
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "a.txt").write_text("one\ntwo\n\tthree\n")
    (folder / "gone.txt").write_text("g\n")
    return folder


@pytest.fixture
def no_daemon(tmp_path: Path) -> CommandLine:
    """The command line without a daemon."""
    return CommandLine(f"unix://{tmp_path}/no_daemon", tmp_path)


def tree(folder: Path) -> dict[str, str]:
    """Every file with its content."""
    return {str(each.relative_to(folder)): each.read_text() for each in folder.rglob("*") if each.is_file()}


def run(execserver: CommandLine, there: Path, text: str, *options: str) -> Done:
    return execserver("patch", "--cwd", str(there), *options, data=text.encode())


def test_a_patch_is_applied_and_a_second_time_it_is_done_already(
    execserver: CommandLine, there: Path
) -> None:
    (execserver.folder / "change.patch").write_text(RENAMED)

    first = execserver("patch", "--cwd", str(there), "change.patch")
    after = tree(there)
    second = execserver("patch", "--cwd", str(there), "change.patch")

    assert (first.returncode, first.stderr) == (0, b"")
    assert first.stdout == (b"Success. Updated the following files:\nA new/n.txt\nM sub/b.txt\nD gone.txt\n")
    assert after == {"sub/b.txt": "one\n2\n\tthree\n", "new/n.txt": "n\n"}
    assert (second.returncode, second.stderr) == (0, b"")
    assert second.stdout == b"No files were modified: the patch has been applied already.\n"
    assert tree(there) == after


def test_a_dry_run_prints_what_git_would_apply_and_changes_nothing(
    execserver: CommandLine, there: Path, tmp_path: Path
) -> None:
    before = tree(there)
    copy = shutil.copytree(there, tmp_path / "copy")

    done = run(execserver, there, RENAMED, "--dry-run")
    subprocess.run(["git", "apply"], input=done.stdout, cwd=copy, check=True, timeout=20)

    assert (done.returncode, done.stderr) == (0, b"")
    assert tree(there) == before
    assert run(execserver, there, RENAMED).returncode == 0
    assert tree(copy) == tree(there)


@pytest.mark.parametrize(
    ("before", "lines", "after"),
    [
        (b"a\nb\nc", "-a\n+A", b"A\nb\nc"),
        (b"a\nb\nc", "-c\n+C", b"a\nb\nC"),
        (b"1%\r2%\nb\nc\n", "-b\n+B\n+x", b"1%\r2%\nB\nx\nc\n"),
        (b"\xef\xbb\xbfa\r\nb\n", "-a\n+A\n b\n+c", b"\xef\xbb\xbfA\r\nb\nc\n"),
        (b"a\r\nb\nc\r", "-b\n+b", b"a\r\nb\nc\r"),
    ],
)
def test_line_ends_and_a_byte_order_mark_stay(
    execserver: CommandLine, there: Path, before: bytes, lines: str, after: bytes
) -> None:
    (there / "f").write_bytes(before)

    done = run(
        execserver,
        there,
        f"\ufeff*** Begin Patch\n*** Update File: f\n*** Move to: g\n@@\n{lines}\n*** End Patch\n",
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert (there / "g").read_bytes() == after


def test_a_dry_run_without_a_diff_says_why_there_is_none(execserver: CommandLine, there: Path) -> None:
    idle = run(
        execserver, there, "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n*** End Patch", "--dry-run"
    )
    added = "*** Begin Patch\n*** Add File: gone.txt\n+g\n*** Update File: a.txt\n-2\n+two\n*** End Patch"
    applied = run(execserver, there, added, "--dry-run")
    empty = run(execserver, there, "*** Begin Patch\n*** End Patch", "--dry-run")

    assert (idle.returncode, idle.stdout) == (0, b"")
    assert idle.stderr == b"execserver: the patch fits and changes no file\n"
    assert (applied.returncode, applied.stdout) == (0, b"")
    assert b"the patch has been applied already" in applied.stderr
    assert (empty.returncode, empty.stdout) == (2, b"")
    assert empty.stderr == b"execserver: No files were modified.\nNothing was changed.\n"


def test_a_patch_that_does_not_fit_changes_nothing_and_says_where_it_nearly_would(
    execserver: CommandLine, there: Path
) -> None:
    before = tree(there)
    text = UNFIT.replace("*** Update", "*** Add File: new.txt\n+n\n*** Update", 1)

    done = run(execserver, there, text)

    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        f"execserver: Failed to find expected lines in {there}/a.txt:\none\ntow\n"
        f"Chunk 1 of {there}/a.txt (line 5 of the patch) fits nowhere from line 1 on.\n"
        "Line 1: 1 of 2 lines match\n"
        "  2: expected 'tow', found 'two'\n"
        "Nothing was changed.\n"
    )
    assert tree(there) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "*** Begin Patch\n*** Mend File: x\n*** End Patch",
            "Invalid patch hunk on line 2: '*** Mend File: x'",
        ),
        ("", "Invalid patch: "),
        ("\udcff", "stdin: no patch: not UTF-8 at offset 0"),
    ],
    ids=["a wrong header", "nothing", "no text"],
)
def test_a_text_that_is_no_patch_is_told_from_one_that_does_not_fit(
    no_daemon: CommandLine, text: str, said: str
) -> None:
    done = no_daemon("patch", "-", data=text.encode(errors="surrogateescape"))

    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"execserver: {said}")


def test_a_file_or_a_folder_that_is_not_there_is_named(execserver: CommandLine, there: Path) -> None:
    file = execserver("patch", "no.patch")
    folder = run(execserver, there / "no", RENAMED)
    no_folder = run(execserver, there / "a.txt", RENAMED)

    assert (file.returncode, file.stderr) == (2, b"execserver: no.patch: No such file or directory\n")
    assert folder.returncode == no_folder.returncode == 2
    assert f"--cwd: {there}/no: No such file or directory".encode() in folder.stderr
    assert f"--cwd: {there}/a.txt is not a directory".encode() in no_folder.stderr
    assert not (there / "no").exists()


def test_relative_paths_begin_in_the_folder_of_the_daemon(there: Path, tmp_path: Path) -> None:
    here = CommandLine("stdio:", there)  # a daemon that is started for the command, in its folder
    (there / "sub").mkdir()
    (there / "sub" / "a.txt").write_text("one\ntwo\n")

    assert here("patch", "--cwd", "sub", data=UNFIT.replace("tow", "two").encode()).returncode == 0
    assert here("patch", data=RENAMED.encode()).returncode == 0

    assert (there / "sub" / "a.txt").read_text() == "one\n2\n"
    assert (there / "sub" / "b.txt").read_text() == "one\n2\n\tthree\n"


def test_scripts_get_digests_and_the_diff(execserver: CommandLine, there: Path) -> None:
    (dry, done) = (
        json.loads(run(execserver, there, RENAMED, "--json", *options).stdout)
        for options in (["--dry-run"], [])
    )

    moved, added, deleted = done["files"]
    assert moved == {
        "kind": "move",
        "path": f"{there}/sub/b.txt",
        "movedFrom": f"{there}/a.txt",
        "sha256Before": sha256(b"one\ntwo\n\tthree\n").hexdigest(),
        "sha256": sha256((there / "sub" / "b.txt").read_bytes()).hexdigest(),
    }
    assert (added["kind"], added["sha256Before"]) == ("add", None)
    assert (deleted["kind"], deleted["sha256"]) == ("delete", None)
    assert "rename from a.txt\nrename to sub/b.txt\n" in done["diff"]
    assert (done["dryRun"], done["wasAtomic"], done["alreadyApplied"]) == (False, True, False)
    assert (dry["dryRun"], dry["wasAtomic"]) == (True, None)
    assert (dry["files"], dry["diff"]) == (done["files"], done["diff"])


def test_scripts_get_what_repairs_a_patch(execserver: CommandLine, there: Path) -> None:
    done = run(execserver, there, UNFIT, "--json")

    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert answer["files"] == []
    assert answer["error"]["code"] == "patch_mismatch"
    assert answer["error"]["message"] == f"Failed to find expected lines in {there}/a.txt:\none\ntow"
    repair = answer["error"]["repair"]
    assert (repair["path"], repair["patchLine"], repair["searchedFrom"]) == (f"{there}/a.txt", 3, 1)
    (candidate,) = repair["candidates"]
    assert candidate["tooEarly"] is False
    assert candidate["differences"] == [{"line": 2, "expected": "tow", "found": "two", "reason": "text"}]


def test_what_cannot_be_written_whole_is_not_written(execserver: CommandLine, there: Path) -> None:
    before = tree(there)

    done = run(execserver, there, HALF)

    assert done.returncode == 1
    assert b"Not a directory (os error 20)" in done.stderr
    assert tree(there) == before


class OlderDaemonOptions(DaemonOptions):
    """The daemon, as if it had none of the extensions."""

    @asynccontextmanager
    async def connect(self, **arguments: Any) -> AsyncIterator[Executor]:
        async with super().connect(**arguments) as executor:
            yield cast("Executor", Older(executor))


class Older:
    capabilities: frozenset[str] = frozenset()

    def __init__(self, executor: Executor) -> None:
        self.call, self.cwd, self.fs = executor.call, executor.cwd, executor.fs


@pytest.mark.parametrize("as_json", [False, True])
async def test_without_transactions_it_is_said_what_was_changed_before_a_failure(
    execserver: CommandLine, there: Path, capfd: pytest.CaptureFixture[str], as_json: bool
) -> None:
    (there / "half").write_text(HALF)
    options = PatchOptions(cwd=str(there), dry_run=False, diff=False, color="auto", as_json=as_json)

    status = await patch(OlderDaemonOptions(execserver.url, None), there / "half", options)

    told = capfd.readouterr()
    assert status == 1
    assert (there / "first.txt").read_text() == "1\n"
    assert f"Failed to write file {there}/a.txt/below: " in told.err
    assert told.err.endswith(f"Changed before the error:\n  {there}/first.txt (add)\n")
    if as_json:
        answer = json.loads(told.out)
        assert answer["error"]["code"] == "patch_file"
        assert answer["error"]["path"] == f"{there}/a.txt/below"
        assert "os error 20" in answer["error"]["reason"]
        assert [each["path"] for each in answer["files"]] == [f"{there}/first.txt"]


EVIL = "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+\x1b[2J\u202eowt\n*** End Patch"


def on_a_terminal(execserver: CommandLine, there: Path, *options: str, **variables: str) -> str:
    (execserver.folder / "p").write_text(EVIL)
    command = [*EXECSERVER, "patch", "--dry-run", "--cwd", str(there), *options, f"{execserver.folder}/p"]
    environment = {**execserver.environment, **variables}
    shown = pexpect.run(" ".join(command), env=environment, timeout=20, encoding="utf-8")
    return str(shown).replace("\r\n", "\n")


def test_a_terminal_gets_colors_and_no_control_characters(execserver: CommandLine, there: Path) -> None:
    colored = on_a_terminal(execserver, there)
    plain = on_a_terminal(execserver, there, NO_COLOR="1")

    assert "\x1b[31m-two\x1b[0m\n\x1b[32m+\\x1b[2J\\u202eowt\x1b[0m\n" in colored
    assert "-two\n+\\x1b[2J\\u202eowt\n \tthree\n" in plain
    assert "\x1b" not in plain


def test_colors_can_be_asked_for_and_programs_get_the_bytes_of_the_files(
    execserver: CommandLine, there: Path
) -> None:
    raw = run(execserver, there, EVIL, "--dry-run")
    colored = run(execserver, there, EVIL, "--dry-run", "--color", "always")

    assert "\n+\x1b[2J\u202eowt\n".encode() in raw.stdout
    assert b"\x1b[32m+\\x1b[2J\\u202eowt\x1b[0m\n" in colored.stdout


def test_with_the_diff_it_is_applied_all_the_same(execserver: CommandLine, there: Path) -> None:
    done = run(execserver, there, UNFIT.replace("tow", "two"), "--diff")

    assert done.returncode == 0
    assert done.stdout.startswith(b"diff --git a/a.txt b/a.txt\n")
    assert done.stdout.endswith(b"\n \tthree\nSuccess. Updated the following files:\nM a.txt\n")
    assert (there / "a.txt").read_text() == "one\n2\n\tthree\n"


def test_while_it_waits_for_the_patch_it_can_be_interrupted(no_daemon: CommandLine) -> None:
    pipe = no_daemon.folder / "pipe"
    os.mkfifo(pipe)
    with no_daemon.start("patch", "pipe") as process:
        writer = os.open(pipe, os.O_WRONLY)  # once it reads
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    os.close(writer)


def test_without_a_daemon_the_status_says_so(no_daemon: CommandLine) -> None:
    assert no_daemon("patch", data=RENAMED.encode()).returncode == 69
