"""Confinement on macOS: a Seatbelt profile for `/usr/bin/sandbox-exec`. Untested on macOS.

The tests check only the text of the profile (`docs/explanation/security.md`).

Rules of this module:

1. No path is written into the profile: each is a parameter (`-DNAME=VALUE`), so that no character of a name
   can end a string and grant something.
2. Everything is denied that is not allowed. The last matching rule decides, so denials that no grant may
   override (container sockets) come last.
3. Seatbelt matches real paths. `/tmp`, `/var` and `/etc` are links into `/private`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from execserver.sandbox.policy import PROTECTED_NAMES, Access, Policy, is_below

PROGRAM = "/usr/bin/sandbox-exec"
"""Never looked up in `PATH`, which may name a folder that others can write to."""

ENVIRONMENT: Mapping[str, str] = MappingProxyType({"CODEX_SANDBOX": "seatbelt"})
"""The variable that the reference sets for a command in Seatbelt."""

PLATFORM_FOLDERS = (
    "/bin",
    "/sbin",
    "/usr",
    "/System",
    "/Library",
    "/opt/homebrew",
    "/private/etc",
    "/private/var/db",
    "/private/var/select",
    "/nix/store",
)
"""Folders that programs of macOS need to run at all: the read set of `minimal`."""

_CONTAINER_SOCKETS = (
    "/private/var/run/docker.sock",
    "/private/var/run/containerd",
    "/private/var/run/podman",
    "/private/var/run/crio",
)
_CONTAINER_FOLDERS_AT_HOME = (
    ".docker/run",
    ".docker/desktop",
    ".colima",
    ".lima",
    ".orbstack/run",
    ".rd",
    ".local/share/containers/podman",
)

_BASE = """\
(version 1)
(deny default)

; Processes: its own, and those that it starts.
(allow process-exec)
(allow process-fork)
(allow signal (target same-sandbox))
(allow process-info* (target same-sandbox))

; What C libraries and runtimes ask about the machine.
(allow sysctl-read
  (sysctl-name-prefix "hw.")
  (sysctl-name-prefix "machdep.cpu.")
  (sysctl-name-prefix "kern.proc.")
  (sysctl-name "kern.argmax")
  (sysctl-name "kern.boottime")
  (sysctl-name "kern.hostname")
  (sysctl-name "kern.maxfilesperproc")
  (sysctl-name "kern.maxproc")
  (sysctl-name "kern.ngroups")
  (sysctl-name "kern.osproductversion")
  (sysctl-name "kern.osrelease")
  (sysctl-name "kern.ostype")
  (sysctl-name "kern.osvariant_status")
  (sysctl-name "kern.osversion")
  (sysctl-name "kern.secure_kernel")
  (sysctl-name "kern.usrstack64")
  (sysctl-name "kern.version")
  (sysctl-name "sysctl.proc_cputype")
  (sysctl-name "vm.loadavg"))

; Devices without contents, and terminals.
(allow file-read* file-write-data file-ioctl
  (literal "/dev/null") (literal "/dev/zero") (literal "/dev/tty") (literal "/dev/ptmx")
  (regex #"^/dev/ttys[0-9]+$"))
(allow file-read* (literal "/dev/random") (literal "/dev/urandom") (subpath "/dev/fd"))
(allow pseudo-tty)

; Users, groups and preferences; semaphores for Python's multiprocessing.
(allow mach-lookup
  (global-name "com.apple.system.opendirectoryd.libinfo")
  (global-name "com.apple.system.opendirectoryd.membership")
  (global-name "com.apple.cfprefsd.daemon")
  (global-name "com.apple.cfprefsd.agent")
  (local-name "com.apple.cfprefsd.agent"))
(allow ipc-posix-shm-read* (ipc-posix-name-prefix "apple.cfprefs."))
(allow user-preference-read)
(allow ipc-posix-sem)
"""

_NETWORK = """\
; The network, and the services that look names and certificates up.
(allow network-outbound)
(allow network-inbound)
(allow network-bind)
(allow system-socket)
(allow mach-lookup
  (global-name "com.apple.SecurityServer")
  (global-name "com.apple.SystemConfiguration.DNSConfiguration")
  (global-name "com.apple.SystemConfiguration.configd")
  (global-name "com.apple.networkd")
  (global-name "com.apple.ocspd")
  (global-name "com.apple.trustd.agent"))
"""


@dataclass(frozen=True, slots=True)
class Root:
    """A folder or file, and the paths excluded below it. Absolute real paths."""

    path: str
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grants:
    """The access of a command, in Seatbelt's terms."""

    readable: tuple[Root, ...]
    writable: tuple[Root, ...]
    network: bool
    home: str | None = None
    """The home of the daemon's user, where container programs keep sockets."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile and the values of its parameters."""

    text: str
    parameters: Mapping[str, str]


def grants(
    policy: Policy,
    *,
    home: str | None = None,
    denied: Sequence[str] = (),
    read_only: Sequence[str] = (),
    exists: Callable[[str], bool] = os.path.lexists,
    real: Callable[[str], str] = os.path.realpath,
) -> Grants:
    """A policy's rules as roots. The only function that reads the disk, by `exists` and `real`.

    Args:
        policy: the policy of a request.
        home: the home of the daemon's user.
        denied: more paths to deny: matches of the policy's patterns, and the daemon's own files.
        read_only: paths that must not be written: the targets of `.git` files.
        exists: whether a path exists. A missing writable root grants nothing.
        real: returns a path without links.
    """
    if policy.unrestricted:
        left_out = tuple(canonical(real(path)) for path in denied)
        return Grants((Root("/", left_out),), (Root("/", left_out),), policy.network, home)
    rules = {canonical(real(rule.path)): rule.access for rule in policy.rules}
    if policy.minimal:
        for path in PLATFORM_FOLDERS:
            rules.setdefault(path, Access.READ)
    closed = [canonical(real(path)) for path in denied]
    guarded = [canonical(real(path)) for path in read_only]
    for path, access in list(rules.items()):
        if access is Access.WRITE:
            # By name, before links are resolved: the name itself must not be replaced either.
            guarded += [os.path.join(path, name) for name in PROTECTED_NAMES]
    guarded = [path for path in guarded if path not in rules]
    readable = [
        Root(path, _below(path, [p for p, a in rules.items() if a is Access.DENY] + closed))
        for path, access in rules.items()
        if access is not Access.DENY and path not in closed
    ]
    writable = [
        Root(path, _below(path, [p for p, a in rules.items() if a is not Access.WRITE] + guarded + closed))
        for path, access in rules.items()
        if access is Access.WRITE and path not in closed and exists(path)
    ]
    return Grants(_sorted(readable), _sorted(writable), policy.network, home)


def canonical(path: str) -> str:
    """An absolute path as Seatbelt sees it: macOS's links at the root resolved, without `.` and `..`."""
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{path!r} is no absolute path")
    path = "/" + os.path.normpath(path).lstrip("/")
    for link in ("/tmp", "/var", "/etc"):  # noqa: S108 - macOS's own names
        if is_below(path, link):
            return "/private" + path
    return path


def profile(granted: Grants) -> Profile:
    """The profile text, without paths of the grants, and the parameters with these paths.

    Raises:
        ValueError: a path is not absolute, or holds a NUL byte.
    """
    parameters = _Parameters()
    parts = [_BASE]
    reading = list(_allowed("READABLE_ROOT", granted.readable, parameters, pinned=False))
    if reading:
        parts.append("(allow file-read*\n" + "\n".join(reading) + ")\n")
    parts += _ancestors(granted.readable, parameters)
    writing = list(_allowed("WRITABLE_ROOT", granted.writable, parameters, pinned=True))
    if writing:
        parts.append("(allow file-write*\n" + "\n".join(writing) + ")\n")
    if granted.network:
        parts.append(_NETWORK)
    parts.append(_container_sockets(granted.home, parameters))
    return Profile("\n".join(parts), MappingProxyType(dict(parameters.values)))


def arguments(made: Profile, command: Sequence[str]) -> list[str]:
    """The command line that runs a command under a profile; the first is the program.

    Raises:
        ValueError: there is no command, or an argument holds a NUL byte.
    """
    if not command:
        raise ValueError("no command to run")
    definitions = [f"-D{name}={value}" for name, value in made.parameters.items()]
    line = [PROGRAM, "-p", made.text, *definitions, "--", *command]
    if any("\0" in text for text in line):
        raise ValueError("embedded null byte")
    return line


class _Parameters:
    """Collects parameters, and returns the references to them."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def add(self, name: str, path: str) -> str:
        self.values[name] = canonical(path)
        return f'(param "{name}")'


def _allowed(prefix: str, roots: Iterable[Root], parameters: _Parameters, *, pinned: bool) -> Iterator[str]:
    """A condition for each root.

    `pinned`: the root and the folders above excluded paths cannot be moved. Rules match paths: in a moved
    folder, an excluded path would have a new name that no rule excludes.
    """
    for number, root in enumerate(roots):
        name = f"{prefix}_{number}"
        whole = f"(subpath {parameters.add(name, root.path)})"
        if not root.excluded:
            yield f"  {whole}"
            continue
        without = []
        for index, path in enumerate(root.excluded):
            reference = parameters.add(f"{name}_EXCLUDED_{index}", path)
            # Both: it is not documented whether `subpath` covers a name that does not exist yet.
            without += [f"(require-not (literal {reference}))", f"(require-not (subpath {reference}))"]
        for index, path in enumerate(_on_the_way(root) if pinned else ()):
            without.append(f"(require-not (literal {parameters.add(f'{name}_PINNED_{index}', path)}))")
        yield "\n    ".join([f"  (require-all\n    {whole}", *without]) + ")"


def _on_the_way(root: Root) -> list[str]:
    top = canonical(root.path)
    found = {top}
    for excluded in root.excluded:
        path = os.path.dirname(canonical(excluded))
        while path != top and is_below(path, top):
            found.add(path)
            path = os.path.dirname(path)
    return sorted(found)


def _ancestors(roots: Iterable[Root], parameters: _Parameters) -> list[str]:
    """Folders above readable paths: programs stat them to find their own location."""
    folders = set()
    for root in roots:
        path = canonical(root.path)
        while path != "/":
            path = os.path.dirname(path)
            folders.add(path)
    if not folders:
        return []
    lines = [
        f"  (literal {parameters.add(f'ANCESTOR_{number}', path)})"
        for number, path in enumerate(sorted(folders))
    ]
    return ["(allow file-read-metadata\n" + "\n".join(lines) + ")\n"]


def _container_sockets(home: str | None, parameters: _Parameters) -> str:
    """A denial of container sockets: a container daemon mounts any folder of the machine for its clients."""
    paths = [*_CONTAINER_SOCKETS]
    if home is not None:
        paths += [os.path.join(home, name) for name in _CONTAINER_FOLDERS_AT_HOME]
    lines = []
    for number, path in enumerate(paths):
        reference = parameters.add(f"CONTAINER_SOCKET_{number}", path)
        lines.append(f"  (literal {reference}) (subpath {reference})")
    return "; Daemons of containers.\n(deny network-outbound file-write*\n" + "\n".join(lines) + ")\n"


def _below(root: str, paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({path for path in paths if path != root and is_below(path, root)}))


def _sorted(roots: Iterable[Root]) -> tuple[Root, ...]:
    return tuple(sorted(roots, key=lambda root: root.path))
