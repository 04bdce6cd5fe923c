"""Pods as a kubelet would run them, of namespaces, with the volumes, users and probes of their manifests.

    with Cluster(folder) as cluster:
        pod = cluster.start(workload, "relay-0", files)   # `files`: those of Secrets and ConfigMaps, by name
        cluster.probe(pod, "readinessProbe")              # whether it passes
        pod.prestop()
        pod.terminate()                                   # as the kubelet: preStop, SIGTERM, the grace period

A cluster is a network namespace with a bridge, and a mount namespace; each pod has a network namespace at the
bridge and everything else from `tests.container`. Its image is made of this machine's `/usr` and `/etc`, and
of this checkout. User namespaces (`hostUsers`), seccomp and AppArmor profiles, control groups and network
policies are those of the tests. For root.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from tests.container.container import Container, NoNamespacesError
from tests.deploy.manifests import ROOT, Object, pod_of

NETWORK = ipaddress.ip_network("10.244.0.0/24")
Files = Mapping[str, Mapping[str, bytes]]

_CLUSTER = """
set -e
mount -t tmpfs tmpfs /run
ip link set lo up
ip link add cluster type bridge
ip address add "$1" dev cluster
ip link set cluster up
echo ready
exec cat
"""
_NETWORK = """
set -e
ip netns add "$1"
ip link add "$1" type veth peer name eth0 netns "$1"
ip link set "$1" master cluster up
ip -n "$1" address add "$2" dev eth0
ip -n "$1" link set eth0 up
ip -n "$1" link set lo up
"""
_GET = """
import ssl, sys, urllib.request
context = ssl._create_unverified_context()  # as the kubelet
print(urllib.request.urlopen(sys.argv[1], timeout=float(sys.argv[2]), context=context).status)
"""
_IMAGE_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "opt")
_IMAGE_FILES = ("alternatives", "group", "ld.so.cache", "nsswitch.conf", "ssl")
"""Of `/etc`."""


class Cluster:
    """A network with pods; `close` ends them and leaves nothing.

    Args:
        folder: for the files of the pods; all users may enter it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._addresses = NETWORK.hosts()
        self.hosts: dict[str, list[str]] = {}
        """The names that new pods know, and their addresses."""
        self.pods: dict[str, Pod] = {}
        self._process = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", _CLUSTER, "cluster",
             f"{next(self._addresses)}/{NETWORK.prefixlen}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "root makes no network namespace here"

    @property
    def enter(self) -> tuple[str, ...]:
        """A command that runs another one on the node of the pods."""
        return ("nsenter", "--target", str(self._process.pid), "--net", "--mount")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the node of the pods."""
        return subprocess.run(
            [*self.enter, *command], capture_output=True, text=True, timeout=60, check=False
        )

    def address(self, name: str) -> str:
        """An address for a pod, and its network namespace."""
        address = str(next(self._addresses))
        made = self.run("sh", "-c", _NETWORK, "network", name, f"{address}/{NETWORK.prefixlen}")
        assert made.returncode == 0, made.stderr
        return address

    def start(
        self, workload: Object, name: str, address: str, files: Files, replace: Mapping[str, str]
    ) -> Pod:
        """Start the pod of a workload with one container.

        Args:
            workload: a Deployment or a StatefulSet.
            name: the pod's.
            address: from `address(name)`.
            files: the contents of its Secrets and ConfigMaps.
            replace: texts of its command lines that are others here, such as paths of the image.
        """
        template = pod_of(workload)
        assert template is not None
        folder = self._folder / name
        folder.mkdir()
        pod = Pod(self, folder, template["spec"], name, address, files, replace)
        self.pods[name] = pod
        return pod

    def probe(self, pod: Pod, kind: str) -> bool:
        """Whether a probe of the pod passes now."""
        probe = pod.spec[kind]
        seconds = probe.get("timeoutSeconds", 1)
        if "exec" in probe:
            return pod.run(*probe["exec"]["command"]).returncode == 0
        get = probe["httpGet"]
        (port,) = [each["containerPort"] for each in pod.spec["ports"] if each["name"] == get["port"]]
        url = f"{get.get('scheme', 'HTTP').lower()}://{pod.address}:{port}{get['path']}"
        return self.run(sys.executable, "-I", "-c", _GET, url, str(seconds)).stdout == "200\n"

    def wait_ready(self, *pods: Pod, seconds: float = 40) -> None:
        """Wait until all probes of the pods pass."""
        deadline = time.monotonic() + seconds
        for pod in pods:
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                while kind in pod.spec and not self.probe(pod, kind):
                    assert time.monotonic() < deadline, f"{pod.name}: {kind}: {pod.log[-3000:]}"
                    time.sleep(0.1)

    def close(self) -> None:
        """End all pods, and with the namespaces all mounts and devices."""
        for pod in self.pods.values():
            pod.close()
        self._process.communicate(timeout=20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pod:
    """A pod of one container; made by `Cluster.start`."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        template: Object,
        name: str,
        address: str,
        files: Files,
        replace: Mapping[str, str],
    ) -> None:
        self.name, self.address = name, address
        self._cluster, self._folder, self._replace = cluster, folder, replace
        (self.spec,) = template["containers"]
        self.grace: float = template["terminationGracePeriodSeconds"]
        context = template["securityContext"]
        self._user: int = context["runAsUser"]
        self._groups: tuple[int, int] = (context["runAsGroup"], context["fsGroup"])
        self._variables = self._environment()
        volumes = self._volumes(template.get("volumes", []), files)
        command = [self._filled(each) for each in (*self.spec["command"], *self.spec["args"])]
        with (folder / "log").open("ab") as log, self._failures():
            self.container = Container(
                self._image(volumes),
                [*self._as_user, "sh", "-c", 'echo started; exec "$@"', "sh", *command],
                self._as_user,
                volumes,
                read_only=self.spec["securityContext"].get("readOnlyRootFilesystem", False),
                enter=[*cluster.enter, "nsenter", f"--net=/run/netns/{name}"],
                log=log,
            )

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except NoNamespacesError:
            raise RuntimeError(f"the pod {self.name} does not start: {self.log}") from None

    @property
    def log(self) -> str:
        """Its standard error until now."""
        return (self._folder / "log").read_text(errors="replace")

    @property
    def _as_user(self) -> list[str]:
        """A command that runs another one as the container's user, without any privilege."""
        group, more = self._groups
        privileges = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        user = [f"--reuid={self._user}", f"--regid={group}", f"--groups={more}"]
        folder = self.spec.get("workingDir", "/")
        variables = [f"{name}={value}" for name, value in self._variables.items()]
        return ["env", "-i", f"--chdir={folder}", *variables, "setpriv", *user, *privileges]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as `kubectl exec` does."""
        return self.container.run(*(self._filled(each) for each in command))

    def popen(self, *command: str) -> subprocess.Popen[str]:
        """Start a command in the container."""
        inside = ["nsenter", "--target", str(self.container.first.pid), "--pid", "--mount", "--ipc", "--net"]
        return subprocess.Popen(
            [*inside, *self._as_user, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def prestop(self) -> subprocess.CompletedProcess[str]:
        """Run the hook before a stop."""
        return self.run(*self.spec["lifecycle"]["preStop"]["exec"]["command"])

    def terminate(self) -> tuple[int, float]:
        """Stop it as a kubelet does; returns its exit status, and the seconds that it took.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        began = time.monotonic()
        self.prestop()
        self.container.first.send_signal(signal.SIGTERM)
        status = self.container.wait(self.grace - (time.monotonic() - began))
        return status, time.monotonic() - began

    def close(self) -> None:
        """End it in whatever state it is."""
        self.container.close()

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        known = {"PATH": path, "HOME": "/home/agent", "HOSTNAME": self.name}
        known["XDG_STATE_HOME"] = "/var/lib"  # as the Containerfile
        downward = {"metadata.name": self.name, "status.podIP": self.address}
        for each in self.spec.get("env", ()):
            if "value" in each:
                known[each["name"]] = each["value"]
            else:
                known[each["name"]] = downward[each["valueFrom"]["fieldRef"]["fieldPath"]]
        return known

    def _filled(self, text: str) -> str:
        """A text of a command line with the values of `$(VARIABLE)`, and as it is here."""
        text = re.sub(r"\$\((\w+)\)", lambda found: self._variables[found[1]], text)
        for old, new in self._replace.items():
            text = text.replace(old, new)
        return text

    def _volumes(self, volumes: list[Object], files: Files) -> dict[str, Path]:
        """The folders of the pod's mounts, with owners and modes as Kubernetes gives them; by mount path."""
        sources: dict[str, Path] = {}
        by_name = {each["name"]: each for each in volumes}
        for mount in self.spec["volumeMounts"]:
            volume: dict[str, Any] = by_name.get(mount["name"], {"emptyDir": {}})
            folder = self._folder / f"volume-{mount['name']}"
            folder.mkdir()
            sources[mount["mountPath"]] = folder
            if "secret" in volume:
                self._fill(folder, files[volume["secret"]["secretName"]], volume["secret"]["defaultMode"])
            elif "configMap" in volume:
                self._fill(folder, files[volume["configMap"]["name"]], 0o644)
            else:
                os.chown(folder, 0, self._groups[1])
                folder.chmod(0o2777)
        return sources

    def _fill(self, folder: Path, contents: Mapping[str, bytes], mode: int) -> None:
        """A read-only file system in memory: files of a hidden folder, and links to them."""
        source = self._folder / f"{folder.name}-contents"
        source.mkdir()
        (source / "..1").mkdir()
        (source / "..data").symlink_to("..1")
        for name, content in contents.items():
            (source / "..1" / name).write_bytes(content)
            (source / "..1" / name).chmod(mode)
            (source / name).symlink_to(f"..data/{name}")
        script = 'set -e; mount -t tmpfs -o mode=1777 tmpfs "$1"; cp -a "$2/." "$1"; chmod 1777 "$1"'
        script += '; chown -Rh 0:"$3" "$1"; mount -o remount,ro "$1"'
        made = self._cluster.run("sh", "-c", script, "fill", str(folder), str(source), str(self._groups[1]))
        assert made.returncode == 0, made.stderr

    def _image(self, volumes: dict[str, Path]) -> Path:
        """The root: folders of this machine, those that the image makes for its user, and the checkout.

        More volumes are added: files of `/etc`, shared memory, and the checkout, which another may hide.
        """
        root = self._folder / "root"
        root.mkdir()
        for name in _IMAGE_FOLDERS:
            host = Path("/", name)
            if host.is_symlink():
                (root / name).symlink_to(os.readlink(host))
            elif host.is_dir():
                (root / name).mkdir()
                made = self._cluster.run("mount", "--rbind", str(host), str(root / name))
                assert made.returncode == 0, made.stderr
        for name in ("dev", "etc", "proc", "tmp"):
            (root / name).mkdir()
        for host in (Path("/etc", name) for name in _IMAGE_FILES):
            if host.is_dir():
                shutil.copytree(host, root / "etc" / host.name, symlinks=True)
            elif host.exists():
                shutil.copy(host, root / "etc")
        (root / "tmp").chmod(0o1777)
        for name in ("home/agent", "run/execserver", "var/lib/execserver"):  # as the Containerfile
            (root / name).mkdir(parents=True)
            (root / name).chmod(0o700)
            os.chown(root / name, self._user, self._groups[0])
        shared = self._folder / "shared-memory"
        shared.mkdir()
        shared.chmod(0o1777)
        volumes["/dev/shm"] = shared
        lines = [
            "127.0.0.1 localhost",
            *(f"{ip} {name}" for name, ips in self._cluster.hosts.items() for ip in ips),
        ]
        for name, line in (
            ("hosts", "\n".join(lines)),
            ("passwd", Path("/etc/passwd").read_text() + self._account),
        ):
            (self._folder / name).write_text(f"{line}\n")
            (root / "etc" / name).touch()
            volumes[f"/etc/{name}"] = self._folder / name
        for path in (ROOT, Path(sys.base_prefix)):
            if path.parts[1] not in _IMAGE_FOLDERS:
                self._place(root, volumes, str(path)).mkdir(parents=True)
                volumes[str(path)] = path
        for target in volumes:
            if not target.startswith(("/dev/", "/etc/hosts", "/etc/passwd", str(ROOT))):
                self._place(root, {}, target).mkdir(parents=True, exist_ok=True)
        return root

    @property
    def _account(self) -> str:
        return f"agent:x:{self._user}:{self._groups[0]}::/home/agent:/bin/bash"

    @staticmethod
    def _place(root: Path, volumes: Mapping[str, Path], target: str) -> Path:
        """The folder on the host that is at a path of the container."""
        for mount, source in volumes.items():
            if target.startswith(f"{mount}/"):
                return source / target.removeprefix(f"{mount}/")
        return root / target.removeprefix("/")
