"""`execserver cp`: modes and times, names that lead elsewhere, files that grow, pipes, control characters."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.integration.commands.conftest import EXECSERVER, CommandLine, until

LONG_AGO = 1_000_000_000_123_456_789


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder that stands for the daemon's machine."""
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- modes and times


@pytest.mark.parametrize("bits", [0o600, 0o755, 0o444, 0o640])
def test_a_file_keeps_its_mode_on_every_way(execserver: CommandLine, there: Path, bits: int) -> None:
    (execserver.folder / "key").write_text("secret")
    (execserver.folder / "key").chmod(bits)

    for source, destination in (("key", f":{there}/a"), (f":{there}/a", f":{there}/b"), (f":{there}/b", "c")):
        done = execserver("cp", source, destination)
        assert (done.returncode, done.stderr) == (0, b"")

    assert [mode(path) for path in (there / "a", there / "b", execserver.folder / "c")] == [bits] * 3


def test_a_file_that_is_there_keeps_its_mode_unless_asked_otherwise(
    execserver: CommandLine, there: Path
) -> None:
    for folder in (execserver.folder, there):
        (folder / "public").write_text("x")
        (folder / "public").chmod(0o4755)
        os.utime(folder / "public", ns=(5, LONG_AGO))
    ways = (("public", f":{there}/old", there), (f":{there}/public", "old", execserver.folder),
            (f":{there}/public", f":{there}/old", there))  # fmt: skip
    for source, destination, folder in ways:
        (folder / "old").write_text("private")
        (folder / "old").chmod(0o600)
        assert execserver("cp", source, destination).returncode == 0
        assert mode(folder / "old") == 0o600
        assert (folder / "old").stat().st_mtime_ns > LONG_AGO
        assert execserver("cp", "-p", source, destination).returncode == 0
        assert mode(folder / "old") & 0o777 == 0o755
        assert (folder / "old").stat().st_mtime_ns == LONG_AGO


def test_set_id_bits_are_not_carried_along(execserver: CommandLine, there: Path) -> None:
    (execserver.folder / "tool").write_text("x")
    (execserver.folder / "tool").chmod(0o6755)

    assert execserver("cp", "tool", f":{there}/a").returncode == 0
    (there / "a").chmod(0o6755)
    assert execserver("cp", f":{there}/a", f":{there}/b").returncode == 0
    assert execserver("cp", f":{there}/a", "c").returncode == 0

    assert mode(there / "b") == mode(execserver.folder / "c") == 0o755


@pytest.mark.parametrize("preserve", [False, True])
def test_a_tree_keeps_modes_and_with_preserve_times(
    execserver: CommandLine, there: Path, preserve: bool
) -> None:
    tree = execserver.folder / "tree"
    (tree / "closed" / "secret").mkdir(parents=True)
    modes = {
        "closed/secret/key": 0o400,
        "closed/run": 0o755,
        "closed/secret": 0o700,
        "closed": 0o555,
        ".": 0o750,
    }
    for name in ("closed/secret/key", "closed/run"):
        (tree / name).write_text(name)
    for number, (name, bits) in enumerate(modes.items()):
        (tree / name).chmod(bits)
        os.utime(tree / name, ns=(number, LONG_AGO + number))

    options = ["-r", "-p"] if preserve else ["-r"]
    for source, destination in (
        ("tree", f":{there}/a"),
        (f":{there}/a", f":{there}/b"),
        (f":{there}/b", "c"),
    ):
        done = execserver("cp", *options, source, destination)
        assert (done.returncode, done.stderr) == (0, b"")

    for copy in (there / "a", there / "b", execserver.folder / "c"):
        assert {name: mode(copy / name) for name in modes} == modes
        times = [(copy / name).stat().st_mtime_ns for name in modes]
        if preserve:
            assert times == [LONG_AGO + number for number in range(len(modes))]
        else:
            assert min(times) > LONG_AGO + 100
        (copy / "closed").chmod(0o755)
    (tree / "closed").chmod(0o755)


def test_what_has_no_mode_gets_the_usual_one(execserver: CommandLine, there: Path) -> None:
    assert execserver("cp", "-", f":{there}/new", data=b"x").returncode == 0
    assert mode(there / "new") == 0o666 & ~_umask()


def _umask() -> int:
    found = os.umask(0o22)
    os.umask(found)
    return found


# -- names


@pytest.mark.parametrize("path", ["{there}/dir/..", "{there}/dir/.", "{there}/.", "{there}/dir/../../there"])
@pytest.mark.parametrize("to", ["here", "there"])
def test_a_path_that_ends_with_dots_is_copied_below_the_target(
    execserver: CommandLine, there: Path, path: str, to: str
) -> None:
    (there / "dir").mkdir()
    (there / "dir" / "file").write_text("x")
    target = execserver.folder / "deep" / "target"
    target.mkdir(parents=True)
    before = _names_outside(target)

    done = execserver(
        "cp", "-r", ":" + path.format(there=there), str(target) if to == "here" else f":{target}"
    )

    assert done.returncode == 0, done.stderr
    assert _names_outside(target) == before
    assert [each.read_text() for each in target.rglob("file")] == ["x"]


@pytest.mark.parametrize("path", ["dir/..", "dir/.", ".", "dir/sub/../.."])
def test_a_local_path_that_ends_with_dots_is_copied_below_the_target(
    execserver: CommandLine, there: Path, path: str
) -> None:
    (execserver.folder / "dir" / "sub").mkdir(parents=True)
    (execserver.folder / "dir" / "file").write_text("x")
    (there / "deep" / "target").mkdir(parents=True)
    before = _names_outside(there / "deep" / "target")

    assert execserver("cp", "-r", path, f":{there}/deep/target").returncode == 0

    assert _names_outside(there / "deep" / "target") == before
    assert [each.read_text() for each in there.rglob("file")] == ["x"]


def _names_outside(target: Path) -> list[str]:
    top = target.parents[2]
    return sorted(
        str(each) for each in top.rglob("*") if target not in each.parents and each.suffix != ".log"
    )


class Liar:
    """A server that says what the test wants it to."""

    def __init__(self, **results: object) -> None:
        self.results = {"initialize": {"sessionId": "s1"}, "fs/readBlock": {"chunk": "eA==", "eof": True}}
        self.results |= {name.replace("_", "/"): result for name, result in results.items()}

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line in reader:
            request = json.loads(line)
            if "id" in request:
                is_folder = request["params"].get("path", "").endswith("dir")
                kind = {"isDirectory": is_folder, "isFile": not is_folder, "isSymlink": False}
                metadata = {**kind, "size": 1, "modifiedAtMs": 1, "createdAtMs": 1}
                result = self.results.get(request["method"], metadata)
                answer = {"error": result[0]} if isinstance(result, list) else {"result": result}
                writer.write(json.dumps({"id": request["id"], **answer}).encode() + b"\n")
        writer.close()

    async def run(self, folder: Path, *arguments: str) -> tuple[int, bytes]:
        """Run `execserver ARGUMENTS` against it."""
        server = await asyncio.start_unix_server(self, folder / "liar")
        process = await asyncio.create_subprocess_exec(
            *EXECSERVER, *arguments, "--url", f"unix://{folder}/liar",
            cwd=folder / "a" / "b", stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await asyncio.wait_for(process.communicate(), 30)
        server.close()
        assert process.returncode is not None
        return process.returncode, output + errors


@pytest.mark.parametrize(
    "name", ["..", ".", "", "/etc/evil", "a/b", "../evil", "nul\0", "dir\0/../evil", "\ud800"]
)
async def test_a_server_s_names_stay_below_the_target(tmp_path: Path, name: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    entry = {"fileName": name, "isDirectory": False, "isFile": True}

    code, said = await Liar(fs_readDirectory={"entries": [entry]}).run(tmp_path, "cp", "-r", ":dir", "target")

    assert code == 125
    assert b"Traceback" not in said
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


async def test_a_server_s_endless_tree_has_an_end(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    entry = {"fileName": "x" * 200 + "dir", "isDirectory": True, "isFile": False}

    code, said = await Liar(fs_readDirectory={"entries": [entry]}).run(tmp_path, "cp", "-r", ":dir", "target")

    assert (code, b"the path is too long" in said) == (125, True)


@pytest.mark.parametrize("uri", ["file:///..", "file:///a/..", "file:///a/."])
async def test_a_server_s_resolved_name_stays_below_the_target(tmp_path: Path, uri: str) -> None:
    (tmp_path / "a" / "b" / "target").mkdir(parents=True)
    liar = Liar(fs_canonicalize={"path": uri}, fs_readDirectory={"entries": []})

    await liar.run(tmp_path, "cp", "-r", ":dir/../dir/../dir/..", "target")
    _, said = await liar.run(tmp_path, "cp", ":..", "target")

    assert b"Traceback" not in said
    outside = [each for each in tmp_path.rglob("*") if each.name not in ("a", "b", "liar", "target")]
    assert [each for each in outside if tmp_path / "a/b/target" not in each.parents] == []


# -- growing sources


@contextmanager
def _growing(path: Path) -> Iterator[None]:
    path.write_bytes(b"first line\n" * 100_000)
    ended = threading.Event()

    def grow() -> None:
        with open(path, "ab", 0) as file:
            while not ended.wait(0.0005):
                file.write(b"one more line\n" * 100)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


@pytest.mark.parametrize("way", ["download", "upload", "there", "out"])
def test_a_log_that_is_written_to_is_copied_as_it_was(execserver: CommandLine, there: Path, way: str) -> None:
    log = (execserver.folder if way == "upload" else there) / "log"
    arguments, copy = {
        "download": ((f":{log}", "copy"), execserver.folder / "copy"),
        "upload": (("log", f":{there}/copy"), there / "copy"),
        "there": ((f":{log}", f":{there}/copy"), there / "copy"),
        "out": ((f":{log}", "-"), execserver.folder / "copy"),
    }[way]
    with _growing(log):
        for _ in range(3):
            before = log.stat().st_size
            done = execserver("cp", *arguments)
            assert (done.returncode, done.stderr) == (0, b"")
            if way == "out":
                copy.write_bytes(done.stdout)
            size = copy.stat().st_size
            assert before <= size <= log.stat().st_size

    assert log.read_bytes().startswith(copy.read_bytes())


@pytest.mark.parametrize("path", ["/proc/cpuinfo", "/proc/self/status", "/proc/uptime", "/sys/kernel/notes"])
def test_files_of_the_kernel_are_copied_on_every_way(execserver: CommandLine, there: Path, path: str) -> None:
    if not os.path.exists(path):
        pytest.skip("this kernel does not have it")
    for source, destination, copy in (
        (f":{path}", "copy", execserver.folder / "copy"),
        (path, f":{there}/copy", there / "copy"),
        (f":{path}", f":{there}/copy2", there / "copy2"),
    ):
        done = execserver("cp", source, destination)
        assert (done.returncode, done.stderr) == (0, b"")
        assert copy.stat().st_size > 0


# -- pipes and devices


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("way", ["unopened", "opened", "target", "stdin"])
def test_waiting_for_a_pipe_ends_at_once(
    execserver: CommandLine, there: Path, way: str, number: signal.Signals
) -> None:
    fifo = execserver.folder / "fifo"
    os.mkfifo(fifo)
    (there / "file").write_bytes(b"old")
    held = os.open(fifo, os.O_RDWR) if way == "opened" else None
    arguments = {
        "unopened": ("fifo", f":{there}/file"),
        "opened": ("fifo", f":{there}/file"),
        "target": (f":{there}/file", "fifo"),
        "stdin": ("/dev/stdin", f":{there}/file"),
    }[way]
    for _ in range(3):  # one may meet a machine that stands still
        with execserver.start("cp", *arguments) as process:
            if way == "target":
                until(partial(catches, process.pid, signal.SIGUSR2))  # the last one that it learns to catch
                time.sleep(0.5)  # that it tries to open the pipe has no trace
            else:
                until(lambda: len(list(there.iterdir())) == 2)
            process.send_signal(number)
            begun = time.monotonic()
            assert process.wait(20) == 128 + number
            taken = time.monotonic() - begun
        if taken < 3:
            break
    assert taken < 3
    if held is not None:
        os.close(held)

    assert [(each.name, each.read_bytes()) for each in there.iterdir()] == [("file", b"old")]
    assert [each.name for each in execserver.folder.iterdir()] == ["fifo"]


def test_pipes_are_read_to_their_end_and_written_to(execserver: CommandLine, there: Path) -> None:
    data = os.urandom(300_000)
    os.mkfifo(execserver.folder / "fifo")

    with execserver.start("cp", "fifo", f":{there}/copy") as process:
        (execserver.folder / "fifo").write_bytes(data)
        assert process.wait(20) == 0
    with execserver.start("cp", f":{there}/copy", "fifo") as process:
        assert (execserver.folder / "fifo").read_bytes() == data
        assert process.wait(20) == 0
    assert execserver("cp", "/dev/stdin", f":{there}/third", data=data).returncode == 0

    assert (there / "copy").read_bytes() == (there / "third").read_bytes() == data


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "/dev/full"])
def test_an_endless_device_is_refused(execserver: CommandLine, there: Path, path: str) -> None:
    for arguments in (
        (path, f":{there}/x"),
        (f":{path}", "x"),
        (f":{path}", f":{there}/x"),
        (f":{path}", "-"),
    ):
        done = execserver("cp", *arguments)
        assert done.returncode == 125
        assert done.stderr
    assert list(there.iterdir()) == []


def test_the_null_device_is_an_empty_file_and_takes_all(execserver: CommandLine, there: Path) -> None:
    assert execserver("cp", os.devnull, f":{there}/empty").returncode == 0
    assert (there / "empty").read_bytes() == b""
    (there / "file").write_bytes(bytes(5_000_000))
    assert execserver("cp", f":{there}/file", os.devnull).returncode == 0
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_fifo_there_is_refused_at_once(execserver: CommandLine, there: Path) -> None:
    os.mkfifo(there / "fifo")

    for destination in (".", "-", f":{there}/copy"):
        assert execserver("cp", f":{there}/fifo", destination).returncode == 125
    left = execserver("cp", "-r", f":{there}", "tree")

    assert (left.returncode, b"neither a file nor a directory" in left.stderr) == (1, True)


# -- places that cannot be replaced


@pytest.fixture
def mounted(there: Path) -> Iterator[Path]:
    """A file that is a mount point, as /etc/hosts is in containers."""
    if os.geteuid() != 0:
        pytest.skip("a bind mount in this namespace needs root")
    (there / "elsewhere").write_bytes(b"old")
    (there / "hosts").touch()
    subprocess.run(["mount", "--bind", there / "elsewhere", there / "hosts"], check=True)
    yield there / "hosts"
    subprocess.run(["umount", there / "hosts"], check=True)


@pytest.mark.parametrize("way", ["upload", "download", "there", "stdin"])
def test_a_mount_point_is_written_in_place_and_that_is_said(
    execserver: CommandLine, there: Path, mounted: Path, way: str
) -> None:
    for folder in (there, execserver.folder):
        (folder / "new").write_bytes(b"new content")
    arguments = {
        "upload": ("new", f":{mounted}"),
        "download": (f":{there}/new", str(mounted)),
        "there": (f":{there}/new", f":{mounted}"),
        "stdin": ("-", f":{mounted}"),
    }[way]

    done = execserver("cp", *arguments, data=b"new content")

    assert done.returncode == 0
    assert done.stderr.endswith(b"hosts: written in place, it cannot be replaced\n")
    assert mounted.read_bytes() == (there / "elsewhere").read_bytes() == b"new content"
    assert sorted(each.name for each in there.iterdir()) == ["elsewhere", "hosts", "new"]
    told = json.loads(execserver("cp", "--json", *arguments, data=b"x").stdout)
    assert [Path(each.removeprefix(":")) for each in told["inPlace"]] == [mounted]


def test_files_are_replaced_and_nothing_is_said_of_it(execserver: CommandLine, there: Path) -> None:
    (execserver.folder / "new").write_bytes(b"new")
    (there / "old").write_bytes(b"old")

    told = json.loads(execserver("cp", "--json", "new", f":{there}/old").stdout)

    assert (told["files"], told["bytes"], told["inPlace"]) == (1, 3, [])


# -- control characters

BAD = "\x1b[2J\x1b]0;evil\x07\x9b31m\u202etxt\x7f\r\nexecserver: all is well"


def harmless(said: bytes) -> bool:
    """Whether it has one line of our own at a time, and no character that a terminal obeys."""
    text = said.decode()
    lines = text.removesuffix("\n").split("\n")
    return all(line.startswith("execserver: ") and line.isprintable() for line in lines) and len(lines) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("cp", ":{bad}", "x"), ("cp", "x", ":/no/{bad}/y"), ("cp", "{bad}", ":x"), ("cp", ":{bad}", ":y"),
        ("logs", "{bad}"), ("kill", "{bad}"), ("attach", "{bad}"),
        ("run", "--", "{bad}"), ("run", "--cwd", "/{bad}", "--", "true"), ("patch", "{bad}"),
    ],
)  # fmt: skip
def test_names_reach_the_terminal_as_text(execserver: CommandLine, arguments: tuple[str, ...]) -> None:
    (execserver.folder / "x").touch()

    done = execserver(*(each.replace("{bad}", BAD.replace("/", "")) for each in arguments))

    assert done.returncode
    assert harmless(done.stderr), done.stderr


def test_names_in_a_tree_reach_the_terminal_as_text(execserver: CommandLine, there: Path) -> None:
    name = BAD.replace("/", "")
    for folder in (there, execserver.folder):
        (folder / "tree").mkdir()
        os.mkfifo(folder / "tree" / name)

    for arguments in ((f":{there}/tree", "copy"), ("tree", f":{there}/copy")):
        done = execserver("cp", "-r", *arguments)
        assert done.returncode == 1
        assert harmless(done.stderr), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("cp", ":x", "y"), ("cp", ":x", ":y"), ("cp", "-", ":y"), ("ps",), ("logs", "p"), ("kill", "p"),
        ("run", "--", "x"),
    ],
)  # fmt: skip
async def test_errors_of_a_server_reach_the_terminal_as_text(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    failure = [{"code": -32603, "message": BAD}]
    methods = ("fs_getMetadata", "fs_canonicalize", "fs_open", "process_list", "process_start")

    code, said = await Liar(**dict.fromkeys(methods, failure)).run(tmp_path, *arguments)

    assert code
    assert harmless(said), said


async def test_what_a_server_lists_reaches_the_terminal_as_text(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    process = {
        "processId": BAD, "sessionId": BAD, "state": "exited", "exitCode": 1, "cause": BAD, "pid": 5,
        "ageMs": 5, "cpuSeconds": None, "rssBytes": None, "processCount": 1, "tty": False,
        "retainedBytes": 1, "argv": [BAD],
    }  # fmt: skip
    liar = Liar(process_list={"processes": [process]})

    code, said = await liar.run(tmp_path, "ps", "--all", "--argv")
    assert code == 0
    assert len(said.decode().splitlines()) == 2
    assert all(line.isprintable() for line in said.decode().splitlines())
    code, said = await liar.run(tmp_path, "ps", "--all", "--argv", "--json")
    assert json.loads(said)[0]["processId"] == BAD
    assert said.decode().replace("\n", "").isprintable()


@pytest.mark.parametrize("way", ["upload", "download", "there"])
def test_a_writable_file_in_a_read_only_folder_is_written_in_place(
    execserver: CommandLine, there: Path, way: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts in this namespace need root")
    (there / "real").write_bytes(b"old content")
    (there / "fixed").mkdir()
    (there / "fixed" / "file").touch()
    for folder in (there, execserver.folder):
        (folder / "new").write_bytes(b"new")
    subprocess.run(["mount", "--bind", there / "fixed", there / "fixed"], check=True)
    target = there / "fixed" / "file"
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", there / "fixed"], check=True)
        subprocess.run(["mount", "--bind", there / "real", target], check=True)
        arguments = {
            "upload": ("new", f":{target}"),
            "download": (f":{there}/new", str(target)),
            "there": (f":{there}/new", f":{target}"),
        }[way]
        done = execserver("cp", *arguments)
        assert (done.returncode, b"written in place" in done.stderr) == (0, True), done.stderr
        refused = execserver("cp", arguments[0], arguments[1].replace("fixed/file", "fixed/other"))
        assert refused.returncode == 125
        assert b"Read-only file system" in refused.stderr
        subprocess.run(["umount", target], check=True)
    finally:
        subprocess.run(["umount", there / "fixed"], check=True)

    assert (there / "real").read_bytes() == b"new"
