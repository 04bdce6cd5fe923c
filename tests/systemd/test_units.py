"""What the units promise, held against the program. systemd's own view: `verify_units.py`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from execserver.supervisor import program
from execserver.supervisor.listeners import default_listener

FOLDER = Path(__file__).parents[2] / "systemd"
FORMS = ("system", "user")

Unit = dict[str, list[str]]


def read(path: Path) -> Unit:
    """`Section.Key` → values, in order."""
    unit: Unit = defaultdict(list)
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            unit[f"{section}.{key}"].append(value)
    return dict(unit)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def service(form: str) -> Unit:
    return read(FOLDER / form / "execserver.service")


@pytest.fixture
def socket_unit(form: str) -> Unit:
    return read(FOLDER / form / "execserver.socket")


def test_the_user_s_socket_is_where_clients_look_by_themselves() -> None:
    unit = read(FOLDER / "user/execserver.socket")
    # %t is $XDG_RUNTIME_DIR in a user's manager.
    (path,) = unit["Socket.ListenStream"]
    assert (
        f"unix://{path.replace('%t', '/run/user/7')}"
        == default_listener({"XDG_RUNTIME_DIR": "/run/user/7"}).url
    )


def test_nobody_else_may_open_the_socket(socket_unit: Unit, form: str) -> None:
    assert socket_unit["Socket.SocketMode"] == ["0600"]
    assert socket_unit["Socket.DirectoryMode"] == ["0700"]
    assert "Socket.Accept" not in socket_unit
    if form == "system":
        service = read(FOLDER / "system/execserver.service")
        assert socket_unit["Socket.SocketUser"] == service["Service.User"]


def test_the_service_has_the_time_that_a_stop_may_take(service: Unit) -> None:
    (seconds,) = service["Service.TimeoutStopSec"]
    assert int(seconds) >= program.STOP_GRACE_S + program.KILL_TIMEOUT_S + 5


def test_the_kill_is_the_supervisor_s_first_and_the_control_group_s_last(service: Unit) -> None:
    assert service["Service.KillMode"] == ["mixed"]
    assert service["Service.Delegate"] == ["yes"]
    assert service["Service.OOMPolicy"] == ["continue"]


def test_a_restart_is_tried_for_what_it_can_mend(service: Unit) -> None:
    assert service["Service.Restart"] == ["on-failure"]
    assert service["Service.RestartPreventExitStatus"] == ["2"]
    assert service["Service.Type"] == ["notify"]
    assert float(service["Service.WatchdogSec"][0]) > 0
    assert "kill -HUP $MAINPID" in service["Service.ExecReload"][0]


def test_the_folder_of_the_socket_survives_a_stop(service: Unit, socket_unit: Unit) -> None:
    (folder,) = service["Service.RuntimeDirectory"]
    assert socket_unit["Socket.ListenStream"] == [f"%t/{folder}/execserver.sock"]
    assert service["Service.RuntimeDirectoryPreserve"] == ["yes"]
    assert service["Service.RuntimeDirectoryMode"] == socket_unit["Socket.DirectoryMode"]


BREAKS_COMMANDS = {
    "CapabilityBoundingSet",
    "DevicePolicy",
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "PrivateDevices",
    "PrivateUsers",
    "ProcSubset",
    "ProtectClock",
    "ProtectControlGroups",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelTunables",
    "ProtectProc",
    "RemoveIPC",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictSUIDSGID",
    "SystemCallArchitectures",
    "SystemCallFilter",
}


def test_no_hardening_takes_from_commands_what_they_need(service: Unit, form: str) -> None:
    keys = {key.partition(".")[2] for key in service}
    assert not keys & BREAKS_COMMANDS
    if form == "user":
        assert not [key for key in keys if key.startswith(("Protect", "Private", "NoNewPrivileges"))]
    else:
        # What is left out is named in the unit, with its reason.
        text = (FOLDER / "system/execserver.service").read_text()
        assert not [key for key in BREAKS_COMMANDS if f"{key}=" not in text]


def test_system_user_folders_and_units_agree() -> None:
    service = read(FOLDER / "system/execserver.service")
    (user,) = service["Service.User"]
    (line,) = rows("execserver.sysusers")
    assert line[:2] == ["u", user]
    assert line[-2:] == [f"/var/lib/{service['Service.StateDirectory'][0]}", "/bin/sh"]
    folders = {row[1]: row[2:5] for row in rows("execserver.tmpfiles") if row[0] == "d"}
    assert folders == {
        f"/run/{service['Service.RuntimeDirectory'][0]}": ["0700", user, user],
        f"/var/lib/{service['Service.StateDirectory'][0]}": ["0700", user, user],
    }


def rows(name: str) -> list[list[str]]:
    lines = (FOLDER / name).read_text().splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]
