"""A sandbox backend of execserver: containers made by crun, the runtime that podman starts.

    pip install ./examples/sandbox_backend
    execserver serve --sandbox-backend crun

Each sandbox is an OCI bundle: a `config.json` with the mounts, namespaces and seccomp filter that the daemon
wants, and an empty root folder. It needs crun, dumb-init and util-linux (`apt install crun dumb-init`), and
no image, no cgroup and no other daemon.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from execserver.launch_spec import LaunchSpec
from execserver.sandbox.backend import Inspection, Sandbox, named_line
from execserver.sandbox.view import Bind, Mask, Mount, Symlink, Tmpfs, View

PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
"""Only root can write to these folders: a command must not be able to plant a program in them."""

DEVICES = ("full", "null", "random", "tty", "urandom", "zero")

HYBRID = "/sys/fs/cgroup/unified"
"""Where cgroup v2 is mounted beside v1. crun refuses to start if controllers are on it."""

WAIT = '[ "$(dd bs=1 count=1 2>/dev/null <"$0" | wc -c)" -eq 1 ] || exit 125; exec "$@"'
"""Let nothing begin before a byte is in a pipe; at its end, nothing begins at all."""

Json = dict[str, Any]


class Crun:
    """Containers in separate namespaces, by crun."""

    namespaces = True

    def inspect(self) -> Inspection:
        """Find the programs."""
        found = {name: shutil.which(name, path=PATH) for name in ("crun", "dumb-init", "setpriv", "unshare")}
        missing = [name for name, path in found.items() if path is None]
        if missing:
            return Inspection(
                f"{' and '.join(missing)} are not in {PATH}", "`apt install crun dumb-init util-linux`"
            )
        self._programs = {name: path for name, path in found.items() if path is not None}
        inside = (self._programs["dumb-init"], self._programs["setpriv"])
        return Inspection(files=(*self._programs.values(), "/bin/sh"), inside=inside)

    def unstatable(self, view: View) -> str | None:
        """The root folder is made of mounts, so nothing new could be written into it."""
        if view.base in ("write", "host"):
            return "crun cannot show a writable root folder: limit writing to some folders below it"
        return None

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        """Write the bundle, and start it by `crun run`."""
        assert sandbox.folder is not None
        root = f"{sandbox.folder}/root"
        os.mkdir(root, 0o755)
        # `dumb-init` is the first process: it makes the command the leader of a session, with its terminal.
        # It has the filter too, and its file is on a read-only mount, so the command may trace processes.
        seccomp = sandbox.seccomp_program(tracing=True, unix_sockets=True)
        inside = [self._programs["setpriv"], "--pdeathsig", "KILL", self._programs["dumb-init"], "--"]
        config = {
            "ociVersion": "1.0.0",
            "root": {"path": root, "readonly": True},
            "process": {
                "terminal": False,
                "user": {"uid": os.geteuid(), "gid": os.getegid()},
                "args": [*inside, *named_line(command, sandbox.bash)],
                "env": [f"{name}={value}" for name, value in command.environment.items()],
                "cwd": command.cwd,
                "noNewPrivileges": True,
                "capabilities": {
                    name: [] for name in ("bounding", "effective", "inheritable", "permitted", "ambient")
                },
            },
            "mounts": [*_base(sandbox, root), *_mounts(sandbox, root)],
            "linux": _linux(sandbox.view),
            "annotations": {
                "run.oci.seccomp_bpf_data": base64.b64encode(seccomp).decode(),
                "run.oci.keep_original_groups": "1",
            },
        }
        try:
            text = json.dumps(config, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("crun takes only arguments, variables and paths in UTF-8") from None
        with open(f"{sandbox.folder}/config.json", "xb") as file:
            file.write(text)
        return self._launch(command, sandbox)

    def _launch(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        folder = sandbox.folder
        status = os.memfd_create("crun", os.MFD_CLOEXEC)
        status_inside = os.dup(status)
        crun = [
            self._programs["crun"],
            f"--root={folder}/state",
            "--cgroup-manager=disabled",
            "run",
            "--no-new-keyring",
            "--no-subreaper",
            f"--bundle={folder}",
            f"--pid-file=/proc/self/fd/{status_inside}",
            os.path.basename(str(folder)),
        ]
        line = [*self._without_hybrid_cgroups(), *crun] if os.path.ismount(HYBRID) else crun
        gate = os.pipe2(os.O_CLOEXEC) if sandbox.gated else None
        if gate is not None:
            line = ["/bin/sh", "-c", WAIT, f"/proc/self/fd/{gate[0]}", *line]
        devices = sandbox.sources.devices
        return replace(
            command,
            program=line[0],
            arguments=tuple(line),
            environment={"PATH": PATH},
            cwd="/",
            passed=(status_inside,) if gate is None else (status_inside, gate[0]),
            status=status,
            gate=None if gate is None else gate[1],
            null=None if devices is None else f"{devices}/null",
            takes_terminal=command.tty,
        )

    def _without_hybrid_cgroups(self) -> list[str]:
        """Start crun in a mount namespace of its own, where it sees no cgroup v2."""
        user, group = os.geteuid(), os.getegid()
        namespace = [f"--map-user={user}", f"--map-group={group}", "--keep-caps"] if user else []
        script = f'mount -t tmpfs none {HYBRID} && exec "$@"'
        return [self._programs["unshare"], "--mount", *namespace, "/bin/sh", "-c", script, "sh"]


def _linux(view: View) -> Json:
    user, group = os.geteuid(), os.getegid()
    kinds = ["pid", "ipc", "mount", "user", *([] if view.network else ["network"])]
    return {
        "namespaces": [{"type": kind} for kind in kinds],
        "uidMappings": [{"containerID": user, "hostID": user, "size": 1}],
        "gidMappings": [{"containerID": group, "hostID": group, "size": 1}],
        "seccomp": {"defaultAction": "SCMP_ACT_ALLOW"},  # replaced by the annotation
    }


def _base(sandbox: Sandbox, root: str) -> Iterator[Json]:
    """Mounts for the root folder of the host, if it is visible, and for `/proc` and `/dev`."""
    if sandbox.view.base == "read":
        with os.scandir("/") as entries:
            for entry in entries:
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.path), f"{root}{entry.path}")
                elif entry.name not in ("dev", "proc") and entry.is_dir():
                    yield _bind(entry.path, entry.path, writable=False)
    yield {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}
    # A folder of ours, because crun would put the host's nodes into a tmpfs, whose modes root could change.
    yield _bind(_device_folder(sandbox), "/dev", writable=False)
    devices = sandbox.sources.devices or "/dev"
    for name in DEVICES:
        yield _bind(f"{devices}/{name}", f"/dev/{name}", writable=True)
    yield {
        "destination": "/dev/pts",
        "type": "devpts",
        "source": "devpts",
        "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
    }
    yield {"destination": "/dev/shm", "type": "tmpfs", "source": "none", "options": ["nosuid", "mode=1777"]}
    yield _bind(sandbox.sources.empty_folder, "/proc/1", writable=False)
    yield _bind("/proc/sys", "/proc/sys", writable=False)


def _device_folder(sandbox: Sandbox) -> str:
    folder = f"{sandbox.folder}/dev"
    for path in (folder, f"{folder}/pts", f"{folder}/shm"):
        os.mkdir(path, 0o755)
    for name in DEVICES:
        os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL, 0o644))
    links = {"fd": "/proc/self/fd", "ptmx": "pts/ptmx", "core": "/proc/kcore"}
    links |= {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        os.symlink(target, f"{folder}/{name}")
    return folder


def _mounts(sandbox: Sandbox, root: str) -> Iterator[Json]:
    for mount in sandbox.view.mounts:
        if isinstance(mount, Symlink):
            _link(mount, root)
        else:
            yield _mount(mount, sandbox)


def _mount(mount: Mount, sandbox: Sandbox) -> Json:
    match mount:
        case Bind(source, target, writable, _):
            return _bind(source, target, writable=writable)
        case Mask(target, directory):
            sources = sandbox.sources
            return _bind(sources.empty_folder if directory else sources.empty_file, target, writable=False)
        case Tmpfs(target, mode):
            options = ["nosuid", "ro", f"mode={mode:o}"]
            return {"destination": target, "type": "tmpfs", "source": "none", "options": options}
    raise AssertionError(mount)


def _link(link: Symlink, root: str) -> None:
    path = f"{root}{link.target}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(link.text, path)


def _bind(source: str, target: str, *, writable: bool) -> Json:
    options = ["rbind", "rw"] if writable else ["rbind", "rro"]
    if not os.path.isdir(source) or not os.access(source, os.R_OK):
        # crun cannot open these to change all mounts below; there are none that the command could reach.
        options = ["bind", "rw" if writable else "ro"]
    return {"destination": target, "type": "bind", "source": source, "options": [*options, "rprivate"]}
