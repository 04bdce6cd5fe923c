"""What the units promise, held against the program. systemd's own view: `verify_units.py`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from execserver.relay.service import command as relay_command
from execserver.relay.service import listening
from execserver.relay.service import server as relay_server
from execserver.relay.service.settings import RelaySettings
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


def test_no_other_user_may_open_the_socket(socket_unit: Unit, form: str) -> None:
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


@pytest.fixture
def relay() -> Unit:
    return read(FOLDER / "system/execserver-relay.service")


def test_the_relay_is_started_as_its_command_line_has_it(relay: Unit) -> None:
    (line,) = relay["Service.ExecStart"]
    words = line.replace("%S", "/var/lib").split()

    options = vars(relay_command.relay_parser().parse_args(words[2:]))
    others = ("run", "command", "parser")
    settings = RelaySettings.parse(
        **{k: v for k, v in options.items() if k not in others and not k.startswith("nats")}
    )

    assert words[:2] == ["/usr/bin/execserver", "relay"]
    assert settings.state_dir == Path("/var/lib") / relay["Service.StateDirectory"][0]
    assert relay["Service.StateDirectoryMode"] == ["0700"]


def test_the_relay_s_socket_is_that_of_its_command_line(relay: Unit) -> None:
    door = read(FOLDER / "system/execserver-relay.socket")
    words = relay["Service.ExecStart"][0].split()
    assert words[words.index("--listen") + 1] == f"http://{door['Socket.ListenStream'][0]}"
    assert relay["Unit.Requires"] == relay["Install.Also"] == ["execserver-relay.socket"]
    assert int(door["Socket.Backlog"][0]) == listening.BACKLOG


def test_the_relay_has_the_time_to_drain(relay: Unit) -> None:
    assert int(relay["Service.TimeoutStopSec"][0]) >= relay_server.DRAIN_SECONDS + 5
    assert relay["Service.RestartPreventExitStatus"] == ["2"]
    assert relay["Service.Type"] == ["notify"]
    assert "kill -HUP $MAINPID" in relay["Service.ExecReload"][0]


def test_the_relay_s_user_is_not_the_daemon_s(relay: Unit) -> None:
    (user,) = relay["Service.User"]
    (line,) = rows("execserver-relay.sysusers")

    assert line[:2] == ["u", user]
    assert line[-2:] == [f"/var/lib/{relay['Service.StateDirectory'][0]}", "-"]
    assert user not in read(FOLDER / "system/execserver.service")["Service.User"]


def test_the_relay_is_hardened_where_the_daemon_cannot_be(relay: Unit) -> None:
    text = (FOLDER / "system/execserver-relay.service").read_text()
    keys = {key.partition(".")[2] for key in relay}
    assert relay["Service.CapabilityBoundingSet"] == [""]
    # What is not set is named in the unit, with its reason.
    assert not [key for key in BREAKS_COMMANDS - keys - {"DevicePolicy"} if f"{key}=" not in text]


def rows(name: str) -> list[list[str]]:
    lines = (FOLDER / name).read_text().splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]
