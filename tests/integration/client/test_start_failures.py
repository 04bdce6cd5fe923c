"""A failed start names the missing or blocking object, and is a subclass of Python's error."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import shutil
import subprocess
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from execclient import CallFailed, CommandFailed, ExecServerError, Executor, NotFound, SystemFailure, connect
from execclient.govern.sandbox import ReadOnly
from execclient.sync import connect as connect_sync
from tests.conftest import StartServer


@pytest.fixture
def url(start_server: StartServer, tmp_path: Path) -> str:
    """A daemon."""
    return start_server(f"unix://{tmp_path}/s").url


@pytest.fixture
async def executor(url: str) -> AsyncIterator[Executor]:
    """A session with it."""
    async with connect(url) as connected:
        yield connected


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_bytes(text.encode())
    path.chmod(mode)
    return path


async def failure(executor: Executor, *argv: str | Path, cwd: Path | None = None) -> SystemFailure:
    with pytest.raises(SystemFailure) as raised:
        await executor.run([*argv], cwd=cwd)
    assert (raised.value.program, raised.value.cwd) == (str(argv[0]), str(cwd or executor.cwd))
    assert raised.value.reason is None or raised.value.reason in str(raised.value)
    return raised.value


def assert_missing(error: SystemFailure, reason: str, path: str | Path | None) -> None:
    assert isinstance(error, FileNotFoundError)
    assert (error.reason, error.path) == (reason, None if path is None else str(path))
    assert (error.errno, error.filename) == (errno.ENOENT, error.path)
    assert error.message == "No such file or directory (os error 2)", "the text is that of the reference"


def assert_denied(error: SystemFailure, reason: str, path: str | Path) -> None:
    assert isinstance(error, PermissionError)
    assert (error.reason, error.path) == (reason, str(path))
    assert (error.errno, error.strerror) == (errno.EACCES, "Permission denied")


async def test_a_missing_program_is_named(executor: Executor, tmp_path: Path) -> None:
    by_name = await failure(executor, "no-such-program")
    assert_missing(by_name, by_name.reason or "", None)
    told = "the program no-such-program is not in the PATH of the executor: "
    assert by_name.reason is not None
    assert by_name.reason.startswith(told)
    assert_missing(await failure(executor, "/no/such"), "the program /no/such does not exist", "/no/such")
    path = tmp_path / "bin" / "x"
    assert_missing(await failure(executor, "bin/x", cwd=tmp_path), f"the program {path} does not exist", path)
    link = tmp_path / "link"
    link.symlink_to("/no/where")
    assert_missing(
        await failure(executor, link),
        f"the program {link} is a link to /no/where, which does not exist",
        link,
    )


async def test_a_program_is_looked_for_in_the_path_of_the_command(executor: Executor, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        await executor.run(["sh"], env={"PATH": f"{tmp_path}/a:{tmp_path}/b"})

    error = raised.value
    assert isinstance(error, SystemFailure)
    assert error.reason == f"the program sh is not in the PATH of the executor: {tmp_path}/a:{tmp_path}/b"


async def test_a_missing_folder_is_named_and_not_the_program(executor: Executor, tmp_path: Path) -> None:
    gone = tmp_path / "gone"

    assert_missing(
        await failure(executor, "true", cwd=gone), f"the working directory {gone} does not exist", gone
    )
    file = script(tmp_path / "file", "")
    error = await failure(executor, "/bin/true", cwd=file)
    assert isinstance(error, NotADirectoryError)
    assert error.path == str(file)
    assert error.reason == f"the working directory {file} is no directory, or a part of its path is none"


@pytest.mark.parametrize("tty", [False, True])
async def test_a_terminal_or_pipes_make_no_difference(executor: Executor, tmp_path: Path, tty: bool) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        await executor.start(["true"], cwd=tmp_path / "gone", tty=tty)

    assert raised.value.filename == str(tmp_path / "gone")


async def test_a_missing_interpreter_is_named(executor: Executor, tmp_path: Path) -> None:
    plain = script(tmp_path / "plain", "#!/no/such -x\n")
    assert_missing(
        await failure(executor, plain), f"the interpreter /no/such of {plain} does not exist", "/no/such"
    )
    windows = script(tmp_path / "windows", "#!/bin/sh\r\necho\r\n")
    told = (
        f"the interpreter /bin/sh\r of {windows} does not exist: "
        "the line that names it ends with CR LF, and must end with LF"
    )
    assert_missing(await failure(executor, windows), told, "/bin/sh\r")
    second = script(tmp_path / "second", f"#!{plain}\n")
    assert_missing(
        await failure(executor, second), f"the interpreter /no/such of {plain} does not exist", "/no/such"
    )
    spaced = script(tmp_path / "spaced", "#! \t/no/such\n")
    assert (await failure(executor, "./spaced", cwd=tmp_path)).path == "/no/such"
    assert spaced.exists()


@pytest.mark.skipif(not shutil.which("cc"), reason="a program with another loader takes a compiler")
async def test_a_missing_loader_of_a_program_is_named(executor: Executor, tmp_path: Path) -> None:
    program = tmp_path / "program"
    subprocess.run(
        ["cc", "-x", "c", "-", "-o", program, "-Wl,--dynamic-linker=/no/loader.so"],
        input=b"int main(void) { return 0; }",
        check=True,
    )

    error = await failure(executor, program)

    assert_missing(error, f"the interpreter /no/loader.so of {program} does not exist", "/no/loader.so")


async def test_a_loader_that_was_patched_away_is_named(executor: Executor, tmp_path: Path) -> None:
    content = Path("/bin/true").resolve().read_bytes()
    at = content.find(b"/lib", 0, 4096)
    end = content.find(b"\0", at)
    if at < 0:
        pytest.skip("/bin/true needs no loader")
    program = tmp_path / "program"
    program.write_bytes(content[:at] + b"/non" + content[at + 4 :])
    program.chmod(0o755)
    loader = "/non" + content[at + 4 : end].decode()

    error = await failure(executor, program)

    assert_missing(error, f"the interpreter {loader} of {program} does not exist", loader)


async def test_what_may_not_be_executed_is_named(executor: Executor, tmp_path: Path) -> None:
    assert_denied(await failure(executor, tmp_path), f"the program {tmp_path} is a directory", tmp_path)
    plain = script(tmp_path / "plain", "#!/bin/sh\n", 0o644)
    told = f"the program {plain} is not executable: chmod +x would make it so"
    assert_denied(await failure(executor, plain), told, plain)
    by_script = script(tmp_path / "by", f"#!{plain}\n")
    told = f"the interpreter {plain} of {by_script} is not executable: chmod +x would make it so"
    assert_denied(await failure(executor, by_script), told, plain)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o755)
    assert_denied(await failure(executor, fifo), f"the program {fifo} is no regular file", fifo)
    with pytest.raises(PermissionError) as raised:
        await executor.run(["plain"], env={"PATH": str(tmp_path)})
    assert "is only found as a file that is not executable in the PATH" in str(raised.value)


async def test_what_is_no_program_is_named(executor: Executor, tmp_path: Path) -> None:
    for name, text in [("empty", ""), ("text", "hello\n"), ("bare", "#!\n")]:
        path = script(tmp_path / name, text)

        error = await failure(executor, path)

        assert (error.errno, error.path) == (errno.ENOEXEC, str(path))
        assert error.reason == (
            f"the program {path} is neither a program for this machine nor a script that begins with #!"
        )


async def test_an_argument_that_is_too_long_is_named(executor: Executor) -> None:
    error = await failure(executor, "true", "-", "x" * 131072)
    assert error.errno == errno.E2BIG
    assert error.reason is not None
    assert error.reason.startswith("argv[2] has 131072 bytes, and an argument may have 131071")

    many = await failure(executor, "true", *["x" * 100_000] * 100)
    assert many.reason is not None
    assert many.reason.startswith("the 101 arguments have 10000105 bytes")

    with pytest.raises(OSError, match="the variable LONG has 131077 bytes") as raised:
        await executor.run(["true"], env={"LONG": "x" * 131072})
    assert raised.value.errno == errno.E2BIG


async def test_a_nul_is_named_before_anything_is_sent(executor: Executor) -> None:
    with pytest.raises(ValueError, match=r"argv\[1\] holds a NUL"):
        await executor.run(["echo", "a\0b"])
    with pytest.raises(SystemFailure) as raised:
        await executor.call(
            "process/start",
            {
                "processId": "p",
                "argv": ["echo", "a", "b\0"],
                "cwd": "file:///",
                "env": {},
                "tty": False,
                "pipeStdin": False,
            },
        )
    assert raised.value.reason == "argv[2] holds a NUL character, which no argument can"


async def test_a_confined_start_says_it_too(executor: Executor, tmp_path: Path) -> None:
    sandbox = ReadOnly().context(str(tmp_path), [str(tmp_path)])
    with pytest.raises(FileNotFoundError) as raised:
        await executor.run(["/no/such"], sandbox=sandbox, cwd=tmp_path)
    assert raised.value.filename == "/no/such"
    by_script = script(tmp_path / "script", "#!/no/interpreter\n")
    with pytest.raises(FileNotFoundError) as raised:
        await executor.run([by_script], sandbox=sandbox, cwd=tmp_path)
    assert raised.value.filename == "/no/interpreter"
    with pytest.raises(FileNotFoundError) as raised:
        await executor.run(["true"], sandbox=sandbox, cwd=tmp_path / "gone")
    assert raised.value.filename == str(tmp_path / "gone")


async def test_files_are_errors_of_python_with_their_paths(executor: Executor, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as raised:
        await executor.fs.read_text(missing)
    assert (type(raised.value), raised.value.filename, raised.value.errno) == (NotFound, str(missing), 2)
    with pytest.raises(FileNotFoundError) as raised:
        await executor.fs.copy("missing", "other")
    assert raised.value.filename == f"{executor.cwd}/missing"
    with pytest.raises(FileExistsError) as exists:
        await executor.fs.mkdir(tmp_path)
    assert exists.value.filename == str(tmp_path)
    with pytest.raises(IsADirectoryError):
        await executor.fs.write_bytes(tmp_path, b"")
    script(tmp_path / "file", "")
    with pytest.raises(NotADirectoryError) as not_directory:
        await executor.fs.read_bytes(tmp_path / "file" / "x")
    assert not_directory.value.errno == errno.ENOTDIR


async def test_the_text_of_a_file_error_begins_with_its_path_at_the_daemon(
    executor: Executor, tmp_path: Path
) -> None:
    files, local = executor.fs, tmp_path / "local"
    local.touch()
    missing = "No such file or directory (os error 2)"
    cases = [
        (files.read_text("/no/such"), f"/no/such: {missing}"),
        (files.read_text("such"), f"{executor.cwd}/such: {missing}"),
        (files.write_bytes("/no/such", b""), f"/no/such: {missing}"),
        (files.rename(local, "/no/such"), f"{local} -> /no/such: {missing}"),
        (files.copy("such", "other"), f"{executor.cwd}/such -> {executor.cwd}/other: {missing}"),
        (files.read_bytes(tmp_path), f"path `{tmp_path}` is not a file"),
        (files.download("/no/such", tmp_path / "got"), f"/no/such: {missing}"),
        (files.upload(local, "/no/such"), f"/no/such: {missing}"),
        (files.upload(local, "no/such"), f"{executor.cwd}/no/such: {missing}"),
    ]
    for call, text in cases:
        with pytest.raises(CallFailed) as raised:
            await call
        assert (str(raised.value), str(pickle.loads(pickle.dumps(raised.value)))) == (text, text)
        assert raised.value.method.startswith("fs/")
        assert str(raised.value.path) in text
        assert ".part" not in repr(vars(raised.value) | {"filename": getattr(raised.value, "filename", "")})


async def test_a_failed_download_names_its_target_and_no_temporary_file(
    executor: Executor, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    source, target = tmp_path / "source/file", tmp_path / "no/such"
    source.write_text("content")
    with pytest.raises(FileNotFoundError) as raised:
        await executor.fs.download(source, target)
    assert str(raised.value) == f"[Errno 2] No such file or directory: '{target}'"

    full = tmp_path / "copies"
    full.mkdir()
    (full / "file").mkdir()
    copied = await executor.fs.download_tree(tmp_path / "source", full)
    assert [(left.path, ".part" in left.reason) for left in copied.left_out] == [(str(full / "file"), False)]


async def test_time_limits_are_timeouts(executor: Executor) -> None:
    with pytest.raises(TimeoutError) as raised:
        await executor.run(["sleep", "60"], timeout=0.1, check=True)
    assert isinstance(raised.value, CommandFailed)
    assert (raised.value.program, raised.value.cwd) == ("sleep", executor.cwd)
    assert raised.value.code == CommandFailed.code
    process = await executor.start(["sleep", "60"])
    with pytest.raises(TimeoutError) as late:
        await process.wait(0.01)
    assert isinstance(late.value, ExecServerError)
    assert late.value.program == "sleep"
    await process.kill()
    with pytest.raises(CommandFailed) as failed:
        await executor.run(["false"], check=True)
    assert not isinstance(failed.value, OSError)


def work(url: str, kind: str) -> str:
    """In another process: fail."""
    with connect_sync(url) as executor:
        if kind == "command":
            executor.run(["sh", "-c", "echo out; exit 3"], check=True)
        elif kind == "file":
            executor.fs.read_text("/no/such")
        elif kind == "late":
            executor.run(["sleep", "60"], timeout=0.1, check=True)
        else:
            executor.run(["/no/such"])
    return "no error"


def test_errors_come_back_from_a_pool_of_processes(url: str) -> None:
    with ProcessPoolExecutor(1) as pool:
        with pytest.raises(CommandFailed) as command:
            pool.submit(work, url, "command").result(30)
        with pytest.raises(NotFound) as file:
            pool.submit(work, url, "file").result(30)
        with pytest.raises(TimeoutError) as late:
            pool.submit(work, url, "late").result(30)
        with pytest.raises(FileNotFoundError) as start:
            pool.submit(work, url, "start").result(30)

    assert (command.value.result.exit_code, command.value.result.stdout) == (3, b"out\n")
    assert (file.value.filename, file.value.errno, file.value.wire_code) == ("/no/such", 2, -32004)
    assert isinstance(late.value, CommandFailed)
    assert isinstance(start.value, SystemFailure)
    assert start.value.reason == "the program /no/such does not exist"
    for twin in (copy.copy(start.value), copy.deepcopy(start.value), pickle.loads(pickle.dumps(start.value))):
        assert (twin.reason, twin.filename, str(twin)) == (start.value.reason, "/no/such", str(start.value))
