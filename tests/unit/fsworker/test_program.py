from __future__ import annotations

import importlib.util
import marshal
import os
import select
import signal
import socket
import sys
import tomllib
from pathlib import Path

import pytest

from execserver.fsworker import bundle
from execserver.fsworker.interpreter import command, interpreter_paths
from execserver.fsworker.process import WorkerProcess, spawn
from tests.faults.service import eventually

_REPOSITORY = Path(__file__).parents[3]


def _is_inheritable(name: str) -> bool:
    try:
        return os.get_inheritable(int(name))
    except OSError:
        return False


def _ended(process: WorkerProcess) -> bool:
    return bool(select.select([process.pidfd], [], [], 30)[0])


def test_the_import_contract_holds_exactly_the_modules_that_a_worker_has() -> None:
    settings = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if "fs worker" in one["name"]]

    assert set(contract["source_modules"]) == {bundle.BOOT, *bundle.MODULES}


def test_packages_on_the_way_to_the_workers_modules_import_nothing() -> None:
    for name in bundle.PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        assert "import " not in Path(spec.origin).read_text().split('"""')[2], name


def test_a_worker_starts_with_few_modules_and_none_of_ours_from_a_file() -> None:
    spy = "import sys\nfor name, module in sys.modules.items():\n"
    spy += "    sys.stderr.write(f'{name} {getattr(module, \"__file__\", None)}\\n')\n"
    process = spawn([*command()[:-1], command()[-1] + spy])
    assert select.select([process.socket], [], [], 30)[0]
    process.socket.shutdown(socket.SHUT_WR)
    assert _ended(process)

    loaded = dict(line.split(" ", 1) for line in process.stderr_text().splitlines())
    process.release()
    ours = {name: file for name, file in loaded.items() if name.startswith(("execserver", "execprotocol"))}
    assert "execserver.fsworker.program.operations" in ours
    assert set(ours.values()) == {"None"}
    # Each of them takes longer to import than all of ours.
    assert not {"re", "typing", "json", "socket", "threading", "dataclasses", "contextlib"} & set(loaded)


def test_a_worker_finds_no_module_of_users_and_reads_no_variable(tmp_path: Path) -> None:
    (tmp_path / "os.py").write_text("raise SystemExit('caught')")
    (tmp_path / "_socket.py").write_text("raise SystemExit('caught')")
    process = spawn(
        ["/usr/bin/env", "-C", str(tmp_path), *command()],
        environment={"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "os.py")},
    )
    try:
        assert select.select([process.socket], [], [], 30)[0]
        assert process.socket.recv(100) == bytes(9)
    finally:
        process.kill()
        assert _ended(process)
        process.release()


def test_a_worker_ends_when_the_daemon_is_gone() -> None:
    process = spawn(command())
    assert select.select([process.socket], [], [], 30)[0]

    process.socket.close()

    assert _ended(process)
    process.release()


def test_what_a_launcher_says_is_kept_for_the_error() -> None:
    process = spawn(["/bin/sh", "-c", "echo no room for a sandbox >&2; exit 7"])
    assert _ended(process)

    assert process.stderr_text() == "no room for a sandbox"
    process.release()
    process.release()
    process.kill()
    assert process.stderr_text() == ""


@pytest.mark.parametrize("killed", [True, False])
def test_what_a_launcher_leaves_in_its_group_ends_with_it(killed: bool) -> None:
    """As bubblewrap's inner process, which waits for ever for an outer one that was killed too early."""
    process = spawn(["/bin/sh", "-c", "sleep 600 & echo $! >&2; read line; exit 0"])
    try:
        assert eventually(lambda: process.stderr_text() != "", 30)
        inner = os.pidfd_open(int(process.stderr_text()))
        if killed:
            process.kill()
        else:  # by another process
            os.kill(process.pid, signal.SIGKILL)
        assert _ended(process)
    finally:
        process.release()
    assert select.select([inner], [], [], 30)[0]
    os.close(inner)


def test_a_program_that_is_missing_is_an_error_and_leaves_no_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(FileNotFoundError):
        spawn(["/does/not/exist"])

    assert set(os.listdir("/proc/self/fd")) == before


def test_a_worker_has_its_socket_and_nothing_else_of_the_daemons(tmp_path: Path) -> None:
    leaked = os.open(tmp_path, os.O_RDONLY)
    process = spawn(command())
    try:
        assert select.select([process.socket], [], [], 30)[0]
        names = set(os.listdir(f"/proc/{process.pid}/fd"))
        # The caller of the tests may have left inheritable ones open.
        given = {name for name in os.listdir("/proc/self/fd") if _is_inheritable(name)}
        assert names - given == {"0", "1", "2"} - given
        assert os.readlink(f"/proc/{process.pid}/fd/0").startswith("socket:")
        assert str(leaked) not in names
    finally:
        os.close(leaked)
        process.kill()
        assert _ended(process)
        process.release()


def test_the_paths_that_the_interpreter_needs_exist_and_none_lies_in_another() -> None:
    paths = interpreter_paths()

    assert os.path.realpath(sys.executable) in paths
    assert os.path.dirname(os.__file__) in paths
    assert all(os.path.exists(path) for path in paths)
    assert not [path for path in paths for other in paths if path.startswith(other + "/")]
    assert any("ld-" in path or "ld.so" in path for path in paths)


def test_the_code_is_the_same_for_all_workers_and_says_its_length() -> None:
    sent = bundle.bundle()

    assert bundle.bundle() is sent
    _, codes, packages, program = marshal.loads(sent[4:])
    assert program in codes
    assert int.from_bytes(sent[:4], "little") == len(sent) - 4
    assert set(codes) == {*bundle.MODULES, *bundle.PACKAGES}
    assert packages == set(bundle.PACKAGES)
