"""The files of `deploy/systemd`, read. `make systemd-verify` checks them by systemd's own programs."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

from tests.deploy.manifests import ROOT

FOLDER = ROOT / "deploy/systemd"
UNITS = ROOT / "systemd/system"


def values(path: Path, key: str) -> list[str]:
    """The values of a key in a unit, continued lines joined."""
    lines = path.read_text().replace("\\\n", "").splitlines()
    return [
        value for name, equals, value in (line.partition("=") for line in lines) if equals and name == key
    ]


def test_each_drop_in_is_for_a_unit() -> None:
    folders = sorted(path.name.removesuffix(".d") for path in FOLDER.glob("*.d"))
    assert folders == ["execserver-relay.service", "execserver-relay.socket", "execserver.service"]
    assert all((UNITS / name).exists() for name in folders)


def test_the_relay_listens_where_its_socket_does() -> None:
    words = values(FOLDER / "execserver-relay.service.d/fleet.conf", "ExecStart")[-1].split()
    door = values(FOLDER / "execserver-relay.socket.d/fleet.conf", "ListenStream")
    assert door == ["", words[words.index("--listen") + 1].removeprefix("https://")]


def test_an_executor_has_the_time_to_drain() -> None:
    settings = tomllib.loads((FOLDER / "executor.toml").read_text())
    (seconds,) = values(FOLDER / "execserver.service.d/fleet.conf", "TimeoutStopSec")
    (without,) = values(UNITS / "execserver.service", "TimeoutStopSec")
    assert int(seconds) >= settings["drain_grace"] + int(without)


def test_nats_has_the_time_for_its_lame_duck_mode() -> None:
    lines = dict(line.partition(": ")[::2] for line in (FOLDER / "nats.conf").read_text().splitlines())
    seconds = sum(
        int(lines[key].removesuffix("s")) for key in ("lame_duck_grace_period", "lame_duck_duration")
    )
    (limit,) = values(FOLDER / "execserver-nats.service", "TimeoutStopSec")
    assert values(FOLDER / "execserver-nats.service", "KillSignal") == ["SIGUSR2"]
    assert int(limit) > seconds


def test_its_user_is_the_one_that_is_made() -> None:
    (user,) = values(FOLDER / "execserver-nats.service", "User")
    (line,) = [
        line.split()
        for line in (FOLDER / "execserver-nats.sysusers").read_text().splitlines()
        if line[0] != "#"
    ]
    assert line[:2] == ["u", user]
    assert line[-2:] == [f"/var/lib/{values(FOLDER / 'execserver-nats.service', 'StateDirectory')[0]}", "-"]


def test_certificates_are_for_their_names_and_of_the_same_authority_after_a_renewal(tmp_path: Path) -> None:
    program = ROOT / "deploy/certificates.sh"

    def made() -> tuple[bytes, bytes]:
        run = [str(program), str(tmp_path), "a=a.example,10.0.0.1", "b=b.example"]
        subprocess.run(run, check=True, capture_output=True, timeout=30)
        return (tmp_path / "ca.crt").read_bytes(), (tmp_path / "a.crt").read_bytes()

    authority, first = made()
    again, second = made()
    assert (authority == again, first == second) == (True, False)
    for option, name, status in (
        ("-verify_hostname", "a.example", 0),
        ("-verify_ip", "10.0.0.1", 0),
        ("-verify_hostname", "b.example", 2),
    ):
        files = (f"{tmp_path}/ca.crt", f"{tmp_path}/a.crt")
        verify = ["openssl", "verify", option, name, "-CAfile", *files]
        assert subprocess.run(verify, capture_output=True, check=False, timeout=30).returncode == status
    assert {path.stat().st_mode & 0o077 for path in tmp_path.glob("*.key")} == {0}
