"""How an act of the battery is done and judged, in a sandbox and without one."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.sandbox.host import Done, Host, Tree
from tests.sandbox_user import in_private_mounts
from tests.support.wire import Json
from tests.vectors.cases import filled
from tests.vectors.policies import placeholders, prepare, sandbox

DAEMON_SECONDS = 4.0
"""How long after its start a command's background process may still leave its mark."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an act worked, and what was seen."""

    allowed: bool
    done: Done


def act(host: Host, case: Json) -> Verdict:
    """Do it in the sandbox that the case asks for. A refused start is an error, not a verdict."""
    tree = prepare(host, case["policy"])
    begun = time.monotonic()
    done = host.run(tree, argv(host, tree, case), sandbox(case["policy"], tree))
    return judged(case, tree, done, begun)


def argv(host: Host, tree: Tree, case: Json) -> list[str]:
    """The command line of an act."""
    return [*case["lang"].split(), filled(case["script"], placeholders(host, tree))]


def judged(case: Json, tree: Tree, done: Done, begun: float) -> Verdict:
    """What came of an act: its exit code, or the mark that it left later."""
    if case["policy"] != "ws_daemon":
        return Verdict(done.exit_code == 0, done)
    while not (tree.ws / "late").exists() and time.monotonic() < begun + DAEMON_SECONDS:
        time.sleep(0.05)
    return Verdict((tree.ws / "late").exists(), done)


# ------------------------------------------------------------------ without a sandbox

_KINDS = {"AF_ALG": socket.SOCK_SEQPACKET, "AF_PACKET": socket.SOCK_RAW, "AF_NETLINK": socket.SOCK_RAW}

Wrap = Callable[[Host, Tree, Sequence[str]], list[str]]
"""Makes the command line that shows an act out of the one that does it."""


@dataclass(frozen=True, slots=True)
class Showing:
    """Why an act is shown in another way than by just doing it."""

    script: str
    """A pattern that finds it in scripts; cases kept for acceptance are found so, too."""

    reason: str
    wrap: Wrap | None = None
    tty: bool = False
    not_as_root: bool = False


def _with_a_leak(host: Host, tree: Tree, command: Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", 'exec 9</etc/passwd; exec "$@"', "sh", *command]


def _mounted_first(host: Host, tree: Tree, command: Sequence[str]) -> list[str]:
    git = tree.ws / ".git"
    return ["/bin/sh", "-c", f'mount --bind {git} {git} && exec "$@"', "sh", *command]


def _below_an_init_of_its_own(host: Host, tree: Tree, command: Sequence[str]) -> list[str]:
    return ["unshare", "--pid", "--fork", "--mount-proc", *command]


def _opened_only(host: Host, tree: Tree, command: Sequence[str]) -> list[str]:
    return [*command[:-1], command[-1].replace("cat $f > $f", ": > $f")]


def _of_software(host: Host, tree: Tree, command: Sequence[str]) -> list[str]:
    return [*command[:-1], command[-1].replace("b[4]=120", "b[4]=120\nb[0]=1")]


def _datagram_instead(host: Host, tree: Tree, command: Sequence[str]) -> list[str]:
    port = host.listeners.port
    script = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'q', ('127.0.0.1', {port}))"
    return ["python3", "-c", script]


SHOWINGS = (
    Showing(r"/dev/tty\b", "a command with pipes has no terminal, with or without a sandbox", tty=True),
    Showing(
        r"listdir\('/proc/self/fd'\)",
        "the daemon leaks no descriptor to anybody: here the act finds one that was opened for it",
        wrap=_with_a_leak,
    ),
    Showing(
        r"/proc/1/|nsenter -t 1\b",
        "the machine's own pid 1 may be out of reach even for root",
        wrap=_below_an_init_of_its_own,
    ),
    Showing(
        r"cat \$f > \$f",
        "cat refuses to copy a file to itself, once it was opened for writing: that is the act",
        wrap=_opened_only,
    ),
    Showing(
        r"syscall\(298\b",
        "a virtual machine has no hardware counters; those of software are behind the same call",
        wrap=_of_software,
    ),
    Showing(r"\bumount \{WS\}/\.git", "only the sandbox has a mount there", wrap=_mounted_first),
    Showing(
        r"\bgetaddrinfo\b|\bgethostbyname\b",
        "resolving a name is sending a datagram; the tests do not depend on a name server",
        wrap=_datagram_instead,
    ),
    Showing(r"\bkill\(-1\b|\bkill\s.*\s-1\b", "from uid 0 it reaches the whole machine", not_as_root=True),
)


def lacking(case: Json) -> str | None:
    """What this machine lacks for an act, as far as we can see for ourselves."""
    for family in re.findall(r"socket\.(AF_[A-Z]+)", case["script"]):
        try:
            socket.socket(getattr(socket, family), _KINDS.get(family, socket.SOCK_STREAM)).close()
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                return f"this kernel has no {family}"
    for device in re.findall(r"/dev/(?:vd|sd|nvme|mem|kmsg)\w*", case["script"]):
        try:
            os.close(os.open(device, os.O_RDONLY | os.O_NONBLOCK))
        except OSError as error:
            return f"{device}: {error.strerror}"
    return None


def showing(case: Json) -> Showing | None:
    """How this act is shown, if not by doing it."""
    return next((each for each in SHOWINGS if re.search(each.script, case["script"])), None)


def act_without_sandbox(host: Host, case: Json) -> Verdict:
    """Do the same with no sandbox. As root in private mounts: some acts are about mounting."""
    tree = prepare(host, case["policy"])
    command, how = argv(host, tree, case), showing(case)
    if how is not None and how.wrap is not None:
        command = how.wrap(host, tree, command)
    begun = time.monotonic()
    with _tidied(case["script"]):
        done = host.run(tree, in_private_mounts(host.user, *command), tty=how is not None and how.tty)
        return judged(case, tree, done, begun)


@contextlib.contextmanager
def _tidied(script: str) -> Iterator[None]:
    """Remove what a script leaves in the folders that all trees share, by the names that it speaks of."""
    before = {folder: set(os.listdir(folder)) for folder in ("/", "/tmp", "/var/tmp", "/dev/shm")}
    yield
    for folder, names in before.items():
        for name in set(os.listdir(folder)) - names:
            path = os.path.join(folder, name)
            if re.search(rf"{re.escape(os.path.join(folder, name.split('.')[0]))}\b", script):
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
