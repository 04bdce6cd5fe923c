"""The command lines of `deploy/kubernetes`, each in namespaces of its own, as one fleet."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.manifests import KUBERNETES, Object, named, render
from tests.deploy.manifests import ROOT
from tests.deploy.pods import Cluster, Pod

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes pods of namespaces"),
    pytest.mark.timeout(300),
]

OBJECTS = render(KUBERNETES / "base")
HERE = {
    "/usr/local/lib/execserver/": f"{ROOT}/examples/container/",  # of the image
    "https://relay.execserver.svc": "https://relay.execserver.svc:8470",  # the Service has port 443
}


def certificates(folder: Path) -> dict[str, dict[str, bytes]]:
    """Secrets and ConfigMaps, as the manual makes them."""
    names = [
        "nats-tls=nats-0.nats,nats-1.nats,nats-2.nats", "relay-nats=relay", "relay-tls=relay.execserver.svc",
    ]  # fmt: skip
    program = ROOT / "deploy/certificates.sh"
    subprocess.run([program, folder, *names], check=True, capture_output=True, timeout=30)
    authority = (folder / "ca.crt").read_bytes()
    secrets = {
        name: {
            "tls.crt": (folder / f"{name}.crt").read_bytes(),
            "tls.key": (folder / f"{name}.key").read_bytes(),
            "ca.crt": authority,
        }
        for name in (each.partition("=")[0] for each in names)
    }
    config = named(OBJECTS, "ConfigMap", "nats")["data"]
    return {
        **secrets,
        "fleet-authority": {"ca.crt": authority},
        "nats": {name: text.encode() for name, text in config.items()},
    }


class Fleet:
    """Three NATS servers, two relays, one executor."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.files = certificates(folder)
        nats = named(OBJECTS, "StatefulSet", "nats")
        addresses = {f"nats-{n}": cluster.address(f"nats-{n}") for n in range(3)}
        cluster.hosts |= {f"{name}.nats": [address] for name, address in addresses.items()}
        self.nats = [
            cluster.start(nats, name, address, self.files, HERE) for name, address in addresses.items()
        ]
        cluster.wait_ready(*self.nats)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    folder.chmod(0o755)
    try:
        with Cluster(folder) as cluster:
            yield Fleet(cluster, folder)
    finally:
        shutil.rmtree(folder)


def test_x(fleet):
    print(fleet.nats[0].log)
    r = fleet.nats[0].terminate()
    print(r)
    print(fleet.nats[0].log)
