"""The command lines of `deploy/kubernetes`, each in namespaces of its own, as one fleet.

The tests run in order, in one fleet: a pod that a test has stopped is not started again.
"""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.manifests import KUBERNETES, ROOT, Object, named, pod_of, render
from tests.deploy.pods import Cluster, Pod

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes pods of namespaces"),
    pytest.mark.timeout(300),
]

OBJECTS = render(KUBERNETES / "base")
RELAY_HOST = "relay.execserver.svc"
HERE = {
    "/usr/local/lib/execserver/": f"{ROOT}/examples/container/",  # in the image
    f"--remote=https://{RELAY_HOST}": f"--remote=https://{RELAY_HOST}:8470",  # the Service has port 443
}
CERTIFICATES = ("nats-tls=nats-0.nats,nats-1.nats,nats-2.nats", "relay-nats=relay", f"relay-tls={RELAY_HOST}")


class Fleet:
    """Three NATS servers, two relays, an executor, and a pod with a client."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._files = files_of(folder / "certificates")
        nats = [f"nats-{number}" for number in range(3)]
        for name in nats:
            cluster.hosts[f"{name}.nats"] = [cluster.address(name)]
        self.nats = [self.start("StatefulSet", "nats", name) for name in nats]
        self.relays = [self.start("Deployment", "relay", name) for name in ("relay-0", "relay-1")]
        cluster.wait_ready(*self.nats, *self.relays)
        addresses = [relay.address for relay in self.relays]
        cluster.hosts[RELAY_HOST] = addresses
        self._files["executor-token"] = {"token": self.token("executor")}
        self._files["client-token"] = {"token": self.token("client")}
        self.executor = self.start("Deployment", "executor", "executor-0")
        cluster.wait_ready(self.executor)
        # The client tries the relays in the other order, so that it has another one than the executor.
        cluster.hosts[RELAY_HOST] = addresses[::-1]
        self.client = self._start(client_of(named(OBJECTS, "Deployment", "executor")), "client")

    def start(self, kind: str, workload: str, name: str) -> Pod:
        """Start a pod of a workload of the manifests."""
        return self._start(named(OBJECTS, kind, workload), name)

    def _start(self, workload: Object, name: str) -> Pod:
        (address,) = self.cluster.hosts.get(f"{name}.nats") or [self.cluster.address(name)]
        return self.cluster.start(workload, name, address, self._files, HERE)

    def relay(self, *arguments: str) -> str:
        """The output of `execserver relay ARGUMENTS` in a relay, as the manual calls it."""
        flags = [each for each in self.relays[0].spec["args"] if each.startswith("--nats")]
        done = self.relays[-1].run("execserver", "relay", *arguments, *flags)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def token(self, role: str) -> bytes:
        return self.relay("token", "create", "--role", role, "--pool", "default").strip().encode()

    def popen(self, script: str, *flags: str) -> subprocess.Popen[str]:
        """Start a command at an executor of the pool."""
        return self.client.popen("execserver", "run", *flags, "--", "sh", "-c", script)

    def run(self, script: str, *flags: str) -> str:
        """The output of a command at an executor of the pool."""
        process = self.popen(script, *flags)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors + self.executor.log[-3000:]
        return output


def files_of(folder: Path) -> dict[str, dict[str, bytes]]:
    """The contents of Secrets and ConfigMaps, as the manual makes them."""
    subprocess.run(
        [str(ROOT / "deploy/certificates.sh"), str(folder), *CERTIFICATES],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    authority = (folder / "ca.crt").read_bytes()
    secrets = {
        name: {
            "tls.crt": (folder / f"{name}.crt").read_bytes(),
            "tls.key": (folder / f"{name}.key").read_bytes(),
            "ca.crt": authority,
        }
        for name in (each.partition("=")[0] for each in CERTIFICATES)
    }
    config: dict[str, str] = named(OBJECTS, "ConfigMap", "nats")["data"]
    return {
        **secrets,
        "fleet-authority": {"ca.crt": authority},
        "nats": {name: text.encode() for name, text in config.items()},
    }


def client_of(executor: Object) -> Object:
    """A Deployment like that of an executor, for a client: with another token, and without a daemon."""
    workload = copy.deepcopy(executor)
    template = pod_of(workload)
    assert template is not None
    (container,) = template["spec"]["containers"]
    container["command"], container["args"] = ["sleep"], ["infinity"]
    container["env"] += [
        {"name": "EXECSERVER_URL", "value": f"relay+https://{RELAY_HOST}:8470?pool=default"},
        {"name": "EXECSERVER_TOKEN_FILE", "value": "/run/secrets/executor/token"},
    ]
    template["spec"]["volumes"][0]["secret"]["secretName"] = "client-token"
    return workload


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    folder.chmod(0o755)
    try:
        with Cluster(folder) as cluster:
            yield Fleet(cluster, folder)
    finally:
        shutil.rmtree(folder)


def test_every_probe_passes(fleet: Fleet) -> None:
    for pod in (*fleet.nats, *fleet.relays, fleet.executor):
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert kind not in pod.spec or fleet.cluster.probe(pod, kind), (pod.name, kind)


def test_a_client_runs_a_command_in_the_executor(fleet: Fleet) -> None:
    assert fleet.run("echo $HOSTNAME; id -u; pwd; grep ^CapEff /proc/self/status").split() == [
        "executor-0", "10001", "/work", "CapEff:", "0000000000000000",
    ]  # fmt: skip


def test_a_command_is_confined_by_bubblewrap(fleet: Fleet) -> None:
    output = fleet.run(
        "echo made > here; touch /home/agent/there || cat here", "--sandbox", "workspace-write"
    )
    assert output == "made\n"


def test_no_port_of_an_executor_is_open(fleet: Fleet) -> None:
    sockets = fleet.executor.run("sh", "-c", "cat /proc/net/tcp /proc/net/tcp6")
    states = [line.split()[3] for line in sockets.stdout.splitlines() if ":" in line.split()[0]]
    assert states
    assert "0A" not in states, "a listening socket"


def test_a_relay_that_is_taken_away_interrupts_no_command(fleet: Fleet) -> None:
    process = fleet.popen("for i in $(seq 60); do echo $i; sleep 0.1; done")
    time.sleep(2)
    status, seconds = fleet.relays[0].terminate()
    output, errors = process.communicate(timeout=60)
    assert (status, process.returncode) == (0, 0), errors
    assert output.split() == [str(number) for number in range(1, 61)]
    assert seconds < 15


def test_a_nats_server_that_is_taken_away_interrupts_nothing(fleet: Fleet) -> None:
    process = fleet.popen("for i in $(seq 60); do echo $i; sleep 0.1; done")
    time.sleep(1)
    status, _ = fleet.nats[0].terminate()
    output, errors = process.communicate(timeout=60)
    assert (status, process.returncode) == (0, 0), errors
    assert output.split() == [str(number) for number in range(1, 61)]
    fleet.cluster.wait_ready(fleet.relays[1])
    assert fleet.run("echo again") == "again\n"


def test_an_executor_that_is_taken_away_ends_its_commands_first(fleet: Fleet) -> None:
    process = fleet.popen("sleep 6; echo $HOSTNAME")
    time.sleep(2)
    fleet.cluster.wait_ready(fleet.start("Deployment", "executor", "executor-1"))
    stopping = fleet.executor.popen(*fleet.executor.spec["lifecycle"]["preStop"]["exec"]["command"])
    time.sleep(1)
    assert fleet.run("echo $HOSTNAME") == "executor-1\n", "a new session goes to the other executor"
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "executor-0\n"), errors
    assert stopping.communicate(timeout=60)[1] == ""
    assert stopping.returncode == 0
    status, seconds = fleet.executor.terminate()
    assert status == 0
    assert seconds < 10
