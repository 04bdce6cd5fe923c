"""Each flag of `deploy` exists, and NATS accepts its configurations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from execserver.relay.service.command import relay_parser
from tests.deploy.manifests import KUBERNETES, ROOT, containers, named, render

SYSTEMD = ROOT / "deploy/systemd"
OBJECTS = render(KUBERNETES / "base")


def test_the_relay_s_flags_exist() -> None:
    (container,) = containers(named(OBJECTS, "Deployment", "relay"))
    assert container["command"] == ["execserver"]
    assert container["args"][0] == "relay"
    relay_parser().parse_args(container["args"][1:])
    drop_in = (SYSTEMD / "execserver-relay.service.d/fleet.conf").read_text().replace("\\\n", "")
    program, relay, *words = drop_in.splitlines()[-1].partition("=")[2].split()
    assert (program, relay) == ("/usr/bin/execserver", "relay")
    relay_parser().parse_args(words)


def test_the_executor_s_flags_and_settings_exist(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a token of an executor")
    (tmp_path / "token").chmod(0o600)
    (container,) = containers(named(OBJECTS, "Deployment", "executor"))
    assert container["args"][0] == "serve"
    text = "\n".join(container["args"][1:])
    for folder in ("/run/execserver", "/run/secrets/executor", "/var/lib/execserver"):
        text = text.replace(folder, str(tmp_path))
    checked = execserver(tmp_path, "config", "check", *text.splitlines())
    assert checked.returncode == 0, checked.stdout + checked.stderr
    settings = (SYSTEMD / "executor.toml").read_text()
    settings = settings.replace("/etc/execserver/relay-token", f"{tmp_path}/token")
    (tmp_path / "config.toml").write_text(settings.replace("/var/lib/execserver", str(tmp_path)))
    checked = execserver(tmp_path, "config", "check", "--config", f"{tmp_path}/config.toml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_executor_s_hook_exists(tmp_path: Path) -> None:
    (container,) = containers(named(OBJECTS, "Deployment", "executor"))
    program, command, flag, _ = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "execserver"
    usage = execserver(tmp_path, command, "--help")
    assert usage.returncode == 0, usage.stderr
    assert flag in usage.stdout


@pytest.mark.parametrize("place", ["hosts", "pods"])
def test_nats_accepts_its_configuration(place: str, tmp_path: Path) -> None:
    if place == "hosts":
        text = (SYSTEMD / "nats.conf").read_text()
    else:
        text = named(OBJECTS, "ConfigMap", "nats")["data"]["nats.conf"]
    run = [str(ROOT / "deploy/certificates.sh"), str(tmp_path), "nats=nats-0.nats", "tls=nats-0.nats"]
    subprocess.run(run, check=True, capture_output=True, timeout=30)
    for folder in ("/etc/execserver-nats", "/run/secrets/nats"):
        text = text.replace(folder, str(tmp_path))
    (tmp_path / "nats.conf").write_text(text)
    program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program is not None
    checked = subprocess.run(
        [program, "--config", str(tmp_path / "nats.conf"), "-t"],
        env={"SERVER_NAME": "a"}, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


def execserver(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `execserver ARGUMENTS` as a user without settings of its own."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    return subprocess.run(
        [str(Path(sys.executable).with_name("execserver")), *arguments],
        env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
