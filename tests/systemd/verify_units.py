"""The units held against systemd's own programs: `make systemd-verify`, which installs them.

Not collected by `make test`, which needs nothing but this repository and Python.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.wire import PATIENCE, connect_unix

UNITS = Path(__file__).parents[2] / "systemd"
FLEET = Path(__file__).parents[2] / "deploy/systemd"
EXECUTABLE = Path(sys.executable).with_name("execserver")


def tool(name: str) -> str:
    """A program of systemd's; never a reason to skip."""
    found = shutil.which(name)
    assert found, f"{name} is missing: install the package systemd, or run make systemd-verify as root"
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a Unix socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="units-") as folder:
        yield Path(folder)


def installed(folder: Path, form: str) -> list[Path]:
    """Copies of the units of a form, with the program at the place where this checkout has it."""
    for unit in (UNITS / form).iterdir():
        text = re.sub(r"(?m)^(ExecStart=)\S+", rf"\g<1>{EXECUTABLE}", unit.read_text())
        (folder / unit.name).write_text(text)
    return sorted(path for path in folder.glob("execserver*.*") if path.is_file())


def warnings_of(folder: Path, form: str) -> str:
    """What systemd-analyze says. Unknown keys are only warnings to it, and its status is 0."""
    units = installed(folder, form)
    result = subprocess.run(
        [tool("systemd-analyze"), f"--{form}", "--man=no", "verify", *map(str, units)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result.stdout + (f"status {result.returncode}" if result.returncode else "")


@pytest.mark.parametrize("form", ["system", "user"])
def test_systemd_accepts_the_units_without_a_word(folder: Path, form: str) -> None:
    assert warnings_of(folder, form) == ""


def test_systemd_accepts_the_units_of_a_fleet_without_a_word(folder: Path) -> None:
    shutil.copytree(UNITS / "system", folder / "copies/system")
    shutil.copy(FLEET / "execserver-nats.service", folder / "copies/system")
    for drop_in in FLEET.glob("*.d/*.conf"):
        (folder / drop_in.parent.name).mkdir()
        text = re.sub(r"(?m)^(ExecStart=)/\S+", rf"\g<1>{EXECUTABLE}", drop_in.read_text())
        (folder / drop_in.parent.name / drop_in.name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "UNITS", folder / "copies")
        assert warnings_of(folder, "system") == ""
        (folder / "execserver-relay.service.d/fleet.conf").write_text("[Service]\nTypo=\n")
        assert "Typo" in warnings_of(folder, "system")


@pytest.mark.parametrize("form", ["system", "user"])
@pytest.mark.parametrize("fault", ["Type=notifi", "KillMod=mixed", "ExecStartPre=/no/such/program"])
def test_a_fault_would_be_seen(folder: Path, form: str, fault: str) -> None:
    copies = folder / "copies" / form
    shutil.copytree(UNITS / form, copies)
    service = copies / "execserver.service"
    service.write_text(service.read_text().replace("[Service]", f"[Service]\n{fault}\n"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "UNITS", folder / "copies")
        assert warnings_of(folder, form) != ""


def test_the_relay_gets_a_user_of_its_own_without_a_shell(folder: Path) -> None:
    (folder / "etc").mkdir()
    sysusers = (UNITS / "execserver-relay.sysusers").read_text()
    if os.geteuid() != 0:
        sysusers = re.sub(r"(?m)^(u\s+execserver-relay\s+)-", rf"\g<1>{os.geteuid()}", sysusers)
    (folder / "sysusers").write_text(sysusers)
    result = subprocess.run(
        [tool("systemd-sysusers"), f"--root={folder}", f"{folder}/sysusers"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    name, *_, home, shell = (folder / "etc/passwd").read_text().strip().split(":")
    assert (name, home) == ("execserver-relay", "/var/lib/execserver-relay")
    assert shell.endswith("nologin")


def test_systemd_finds_little_that_the_relay_could_still_give_up(folder: Path) -> None:
    (unit,) = [each for each in installed(folder, "system") if each.name == "execserver-relay.service"]
    result = subprocess.run(
        [tool("systemd-analyze"), "security", "--offline=yes", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"exposure level for \S+: (\d+\.\d)", result.stdout)
    assert found, result.stdout + result.stderr
    assert float(found[1]) <= 3.0, result.stdout


def test_the_user_gets_its_folders(folder: Path) -> None:
    (folder / "etc").mkdir()
    sysusers = (UNITS / "execserver.sysusers").read_text()
    if os.geteuid() != 0:  # only root may give folders away; to itself anybody may
        sysusers = re.sub(r"(?m)^(u\s+execserver\s+)-", rf"\g<1>{os.geteuid()}", sysusers)
    (folder / "sysusers").write_text(sysusers)
    for command in (
        ["systemd-sysusers", f"--root={folder}", f"{folder}/sysusers"],
        ["systemd-tmpfiles", f"--root={folder}", "--create", str(UNITS / "execserver.tmpfiles")],
    ):
        result = subprocess.run(
            [tool(command[0]), *command[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout
    name, _, uid, _, _, home, shell = (folder / "etc/passwd").read_text().strip().split(":")
    assert (name, home, shell) == ("execserver", "/var/lib/execserver", "/bin/sh")
    for place in ("run/execserver", "var/lib/execserver"):
        status = (folder / place).stat()
        assert (status.st_uid, status.st_mode & 0o777) == (int(uid), 0o700)


def test_a_connection_starts_the_service_by_systemd_s_own_activation(folder: Path) -> None:
    door = folder / "door"
    launcher = [tool("systemd-socket-activate"), "-l", str(door), "--fdname=door"]
    process = subprocess.Popen(
        [*launcher, "-E", f"RUNTIME_DIRECTORY={folder}", str(EXECUTABLE), "serve"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("Listening on"), line
        door.chmod(0o600)
        with connect_unix(door) as client:
            assert client.handshake().shell("echo $LISTEN_FDS-").wait_closed().output == b"-\n"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, output) == (0, f"unix://{door}\n")
        assert door.is_socket()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
