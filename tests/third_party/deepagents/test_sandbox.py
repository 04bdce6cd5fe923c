"""`ExecServerSandbox`, beside what the suite of LangChain asks."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deepagents.backends.protocol import FileDownloadResponse, FileUploadResponse

from execclient import ExecutorClosed, NotFound, ReadOnly, SessionLost, WorkspaceWrite, connect
from execclient.integrations.deepagents import ExecServerSandbox

INSIDE_ONLY = WorkspaceWrite(exclude_tmpdir=True, exclude_slash_tmp=True, deny_read=("**/secret*",))
"""The folder of a test is below /tmp."""

PATIENCE = 30.0


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# -- commands


# Two pipes that no server reads for more than 1 s have no order.
@pytest.mark.without_chaos
def test_a_command_runs_in_the_folder_and_its_streams_are_one_output(
    backend: ExecServerSandbox, folder: Path
) -> None:
    result = backend.execute("pwd; sleep 1; echo two >&2; sleep 1; printf 'th\\351re\\r\\n'; exit 3")
    assert result.output == f"{folder}\ntwo\nth\ufffdre\r\n"
    assert (result.exit_code, result.truncated) == (3, False)
    assert backend.execute("cat").output == ""


def test_a_command_over_its_time_is_killed_and_its_output_kept(
    backend: ExecServerSandbox, folder: Path
) -> None:
    result = backend.execute("echo begun; (sleep 5; touch late) & sleep 600", timeout=3)
    assert result.output == "begun\n\nError: Command timed out after 3 seconds, and was killed."
    assert result.exit_code == 124
    assert backend.execute("sleep 2.5; echo done", timeout=0).output == "done\n"
    assert not (folder / "late").exists()


@pytest.mark.without_chaos
def test_output_above_the_limit_keeps_both_ends(url: str, folder: Path) -> None:
    with ExecServerSandbox(connect(url), root_dir=folder, max_output_bytes=100) as backend:
        result = backend.execute("echo first; seq 10000; echo last")
    assert result.truncated
    assert result.output.startswith("first\n1\n2\n")
    assert result.output.endswith("10000\nlast\n")
    assert "bytes left out] ..." in result.output


@pytest.mark.without_chaos
def test_variables_are_those_of_the_call_and_the_core_of_the_daemon(url: str, folder: Path) -> None:
    script = 'echo "$ADDED ${PATH:+path} ${XDG_STATE_HOME:+all}"'
    with ExecServerSandbox(connect(url), root_dir=folder, env={"ADDED": "one"}) as backend:
        assert backend.execute(script).output == "one path \n"
    with ExecServerSandbox(connect(url), root_dir=folder, inherit_env=True) as backend:
        assert backend.execute(script).output == " path all\n"


@pytest.mark.without_chaos
def test_a_command_that_cannot_start_is_an_answer_for_the_model(
    backend: ExecServerSandbox, folder: Path
) -> None:
    shutil.rmtree(folder)
    result = backend.execute("true")
    assert result.output.startswith("Error: the command was not run: ")
    assert result.exit_code is None


async def test_a_cancelled_command_is_killed(backend: ExecServerSandbox, folder: Path) -> None:
    running = asyncio.create_task(backend.aexecute("sleep 0.2; touch begun; sleep 1; touch ended"))
    await asyncio.to_thread(wait_for, (folder / "begun").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(1.2)
    assert not (folder / "ended").exists()


async def test_both_forms_of_a_method_work_on_any_loop(backend: ExecServerSandbox, folder: Path) -> None:
    async def use(name: str) -> str:
        assert (await backend.awrite(f"{folder}/{name}", "one\n")).error is None
        assert (await backend.aedit(f"{folder}/{name}", "one", "two")).occurrences == 1
        return (await backend.aexecute(f"cat {name}")).output

    assert list(await asyncio.gather(use("a"), use("b"))) == ["two\n", "two\n"]
    assert await asyncio.to_thread(lambda: asyncio.run(use("c"))) == "two\n"
    # As in a tool that is not asynchronous, of an agent that is.
    assert backend.execute("cat a b c").output == "two\ntwo\ntwo\n"
    found = await backend.agrep("two", str(folder))
    assert found.matches is not None
    assert len(found.matches) == 3
    assert (await backend.als(str(folder))).error is None
    assert (await backend.aglob("*")).matches == [
        {"path": f"{folder}/{name}", "is_dir": False} for name in "abc"
    ]
    assert (await backend.adelete(f"{folder}/a")).error is None
    assert not (folder / "a").exists()


# -- the sandbox


@pytest.mark.without_chaos
def test_the_default_sandbox_has_no_network(url: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)"
        command = f'{sys.executable} -c "{script}"'
        with ExecServerSandbox(connect(url), root_dir=folder) as backend:
            assert backend.execute(command).exit_code == 1
        with ExecServerSandbox(connect(url), root_dir=folder, sandbox=None) as backend:
            assert backend.execute(command).exit_code == 0


@pytest.mark.without_chaos
def test_commands_and_files_are_confined_by_the_same_policy(url: str, folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.write_text("one")
    path = str(outside)
    with ExecServerSandbox(connect(url), root_dir=folder, sandbox=INSIDE_ONLY) as backend:
        assert backend.execute(f"echo two >{path}").exit_code != 0
        assert "permission_denied" in (backend.write(path, "two").error or "")
        assert "permission_denied" in (backend.edit(path, "one", "two").error or "")
        assert "permission_denied" in (backend.delete(path).error or "")
        assert backend.upload_files([(path, b"two")]) == [FileUploadResponse(path, "permission_denied")]
        assert backend.write(f"{folder.parent}/new/file", "two").error is not None
        assert outside.read_text() == "one"
        assert not (folder.parent / "new").exists()
        # Reading is allowed, and writing inside.
        assert backend.download_files([path]) == [FileDownloadResponse(path, b"one")]
        assert backend.write(f"{folder}/inside", "two").error is None
    with ExecServerSandbox(connect(url), root_dir=folder, sandbox=ReadOnly()) as backend:
        assert "permission_denied" in (backend.write(f"{folder}/inside", "three").error or "")
        assert backend.execute("echo three >inside").exit_code != 0
        assert (folder / "inside").read_text() == "two"
    with ExecServerSandbox(connect(url), root_dir=folder, sandbox=None) as backend:
        assert backend.execute(f"cat {path}").output == "one"
        assert backend.write(path, "two").error is None
        assert backend.edit(path, "two", "three").occurrences == 1
        assert outside.read_text() == "three"
        assert backend.delete(path).error is None
        assert not outside.exists()


@pytest.mark.without_chaos
def test_no_method_sees_what_the_policy_denies_to_read(url: str, folder: Path) -> None:
    (folder / "secret").write_text("word\n")
    (folder / "secrets").mkdir()
    (folder / "secrets/inner").write_text("word\n")
    (folder / "open").write_text("word\n")
    with ExecServerSandbox(connect(url), root_dir=folder, sandbox=INSIDE_ONLY) as backend:
        assert backend.grep("word").matches == [{"path": f"{folder}/open", "line": 1, "text": "word"}]
        assert "inner" not in str(backend.glob("**/*"))
        for path in (f"{folder}/secret", f"{folder}/secrets/inner"):
            assert "permission_denied" in (backend.read(path).error or "")
            assert backend.download_files([path])[0].content is None
            assert backend.edit(path, "word", "x").error is not None
            assert backend.execute(f"cat {path}").exit_code != 0
        assert backend.ls(f"{folder}/secrets").error is not None
    with ExecServerSandbox(connect(url), root_dir=folder, sandbox=None) as backend:
        matches = backend.grep("word").matches
        assert matches is not None
        assert len(matches) == 3
        assert backend.read(f"{folder}/secret").error is None


# -- files


def test_an_edit_keeps_the_mode_of_a_file_and_leaves_no_other_file(
    backend: ExecServerSandbox, folder: Path
) -> None:
    script = folder / "script"
    script.write_text("#!/bin/sh\necho one\n")
    script.chmod(0o750)
    assert backend.edit(str(script), "one", "two").occurrences == 1
    assert backend.execute("./script; ls").output == "two\nscript\n"
    assert script.stat().st_mode & 0o777 == 0o750


@pytest.mark.without_chaos
def test_names_and_paths_of_all_kinds(backend: ExecServerSandbox, folder: Path) -> None:
    (folder / os.fsdecode(b"caf\xe9")).write_text("word\n")
    (folder / "new\nline").write_text("word\n")
    shown = [
        {"path": f"{folder}/caf\ufffd", "is_dir": False},
        {"path": f"{folder}/new\nline", "is_dir": False},
    ]
    listed = backend.ls(str(folder)).entries
    assert listed is not None
    assert [entry for entry in listed if not entry["is_dir"]] == shown
    assert backend.glob("*").matches == shown
    # Relative paths begin at the folder; those of files to copy must be absolute.
    assert backend.write("sub/file", "one").error is None
    assert (folder / "sub/file").read_text() == "one"
    assert backend.upload_files([("/a\0b", b"")]) == [FileUploadResponse("/a\0b", "invalid_path")]
    assert "surrogates not allowed" in (backend.write("x", "\ud800").error or "")


@pytest.mark.without_chaos
def test_what_is_no_text_file_is_no_error_of_ours(backend: ExecServerSandbox, folder: Path) -> None:
    (folder / "binary").write_bytes(b"\xff\xfe")
    os.mkfifo(folder / "fifo")
    assert backend.read(str(folder)).error == f"File '{folder}': not_a_file"
    assert backend.read(f"{folder}/fifo").error == f"File '{folder}/fifo': not_a_file"
    assert "not a text file" in (backend.edit(f"{folder}/binary", "a", "b").error or "")
    assert backend.ls(f"{folder}/binary").error == f"Path '{folder}/binary': not_a_directory"
    assert "not_a_directory" in (backend.glob("*", f"{folder}/binary").error or "")
    assert "file_not_found" in (backend.grep("word", f"{folder}/missing").error or "")
    assert "newline" in (backend.grep("one\ntwo").error or "")
    assert "'..'" in (backend.glob("../*").error or "")


def test_a_page_of_a_large_file_does_not_transfer_it_whole(backend: ExecServerSandbox, folder: Path) -> None:
    with (folder / "log").open("w") as file:
        for number in range(600_000):
            file.write(f"line {number}\n")
    page = backend.read(f"{folder}/log", offset=500_000, limit=2)
    assert page.file_data is not None
    assert page.file_data["content"] == "line 500000\nline 500001"
    assert page.next_offset == 500_002


# -- the session

WORK = """
import sys
from execclient import connect
from execclient.integrations.deepagents import ExecServerSandbox

backend = ExecServerSandbox(connect(sys.argv[1], keep=True, ttl=60), root_dir=sys.argv[2])
print(backend.id, flush=True)
backend.execute("echo $$ >pid; while ! [ -e go ]; do sleep 0.05; done; echo finished >result")
"""


def test_after_the_death_of_a_program_its_command_runs_on_and_its_session_is_reattached(
    url: str, folder: Path
) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", WORK, url, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    session = program.stdout.readline().strip()
    wait_for((folder / "pid").exists)
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdout.close()
    with ExecServerSandbox(connect(url, session_id=session), root_dir=folder) as backend:
        assert backend.id == session
        assert not (folder / "result").exists()
        assert backend.execute("touch go").exit_code == 0
        wait_for((folder / "result").exists)
        assert (folder / "result").read_text() == "finished\n"
    with pytest.raises(SessionLost):
        ExecServerSandbox(connect(url, session_id=session), root_dir=folder)


def test_closing_ends_the_session_with_its_commands_and_its_thread(url: str, folder: Path) -> None:
    before = threading.active_count()
    backend = ExecServerSandbox(connect(url), root_dir=folder)

    errors: list[Exception] = []

    def run() -> None:
        try:
            backend.execute("touch begun; sleep 1; touch ended")
        except Exception as error:
            errors.append(error)

    running = threading.Thread(target=run)
    running.start()
    wait_for((folder / "begun").exists)
    backend.close()
    running.join()
    # It was killed with the session, unless the session was faster.
    assert all(isinstance(error, ExecutorClosed) for error in errors), errors
    assert threading.active_count() == before
    with pytest.raises(ExecutorClosed):
        backend.execute("true")
    time.sleep(1.2)
    assert not (folder / "ended").exists()


@pytest.mark.without_chaos
def test_a_sandbox_that_was_not_closed_is_warned_of_and_ends(url: str, folder: Path) -> None:
    before = threading.active_count()
    backend = ExecServerSandbox(connect(url), root_dir=folder)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del backend
    wait_for(lambda: threading.active_count() == before)


@pytest.mark.without_chaos
def test_a_folder_that_does_not_exist_is_an_error_at_once(url: str, folder: Path) -> None:
    before = threading.active_count()
    with pytest.raises(NotFound):
        ExecServerSandbox(connect(url), root_dir=folder / "missing")
    (folder / "file").touch()
    with pytest.raises(NotADirectoryError):
        ExecServerSandbox(connect(url), root_dir=folder / "file")
    with pytest.raises(ValueError, match="workspace"):
        ExecServerSandbox(connect(url), root_dir="/")
    with pytest.raises(TypeError, match="connection is connect"):
        ExecServerSandbox(url)  # type: ignore[arg-type]  # what it refuses
    assert threading.active_count() == before
