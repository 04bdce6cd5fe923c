"""Tables of operations by confined commands: those that must fail, by policy, and those that must work.

Scripts find the tree and the host in variables: WS (the workspace), OUT (a folder outside), PORT, ABSTRACT,
SOCKET (listeners outside), VICTIM (a process outside). For the paths of the carved policy see `carved`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass

from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import (
    MINIMAL,
    READ_ONLY,
    READ_ROOT,
    WORKSPACE,
    WORKSPACE_WITH_NETWORK,
    WRITE_WORKSPACE,
    at,
    glob,
    restricted,
    special,
    unrestricted,
)
from tests.support.wire import Json


def carved(tree: Tree) -> Json:
    return restricted(
        READ_ROOT,
        WRITE_WORKSPACE,
        special("project_roots", "read", subpath="kept"),
        at(tree.ws / "kept/open", "write"),
        at(tree.ws / "closed", "deny"),
        at(tree.ws / "closed/open", "write"),
        at(tree.ws / "denied.txt", "deny"),
        at(tree.out / "secret.txt", "deny"),
        glob("**/.env"),
    )


POLICIES: dict[str, Callable[[Tree], Json]] = {
    "read-only": lambda tree: READ_ONLY,
    "workspace": lambda tree: WORKSPACE,
    "network": lambda tree: WORKSPACE_WITH_NETWORK,
    "minimal": lambda tree: MINIMAL,
    "carved": carved,
    "offline": lambda tree: unrestricted(),
}

FILES = ("read-only", "workspace", "network", "minimal", "carved")
"""Policies that limit files."""

WRITABLE = ("workspace", "network", "minimal", "carved")
"""Policies under which the workspace can be written."""

OFFLINE = ("read-only", "workspace", "minimal", "carved", "offline")
"""Policies without network."""


def prepared(host: Host) -> Tree:
    """A tree with the paths of the carved policy."""
    tree = host.tree()
    for name in ("kept/open", "closed/open"):
        (tree.ws / name).mkdir(parents=True)
    tree.add({"ws/kept/file": "kept\n", "ws/closed/file": "closed\n"}, {"ws/link": str(tree.out)})
    return tree


def variables(host: Host, tree: Tree) -> dict[str, str]:
    """The paths for scripts."""
    return {
        **tree.env,
        "WS": str(tree.ws),
        "OUT": str(tree.out),
        "PORT": str(host.listeners.port),
        "ABSTRACT": host.listeners.abstract,
        "SOCKET": host.listeners.path,
        "VICTIM": str(host.victim.pid),
        "SEGMENT": str(host.listeners.key),
    }


@dataclass(frozen=True, slots=True)
class Act:
    """An operation. It worked if its exit code is 0."""

    name: str
    policies: tuple[str, ...]
    script: str
    python: bool = False
    needs_root: bool = False
    """Whether the machine itself may refuse it to an ordinary user."""

    tty: bool = False

    @property
    def argv(self) -> list[str]:
        """Its command line."""
        return ["python3", "-c", self.script] if self.python else ["/bin/sh", "-c", self.script]


def _py(name: str, policies: tuple[str, ...], script: str, *, needs_root: bool = False) -> Act:
    return Act(name, policies, "import os, socket, ctypes\n" + script, python=True, needs_root=needs_root)


_SYSCALLS = {
    "x86_64": {"bpf": 321, "keyctl": 250, "io_uring_setup": 425, "perf_event_open": 298},
    "aarch64": {"bpf": 280, "keyctl": 219, "io_uring_setup": 425, "perf_event_open": 241},
}


def _call(name: str, arguments: str) -> str:
    """A script that makes one system call, by its number on this machine."""
    number = _SYSCALLS[platform.machine()][name]
    return (
        "space = ctypes.create_string_buffer(128)\n"
        f"answer = ctypes.CDLL(None, use_errno=True).syscall({number}, {arguments})\n"
        "raise SystemExit(0 if answer >= 0 else 1)"
    )


FORBIDDEN = (
    # -- files outside
    Act("a new file outside", FILES, 'echo x > "$OUT/new"'),
    Act("a new folder outside", FILES, 'mkdir "$OUT/new"'),
    Act("more text in a file outside", FILES, 'echo x >> "$OUT/readable.txt"'),
    Act("emptying a file outside", FILES, 'truncate -s 0 "$OUT/readable.txt"'),
    Act("removing a file outside", FILES, 'rm "$OUT/readable.txt"'),
    Act("renaming a file outside", FILES, 'mv "$OUT/readable.txt" "$OUT/other"'),
    Act("moving a file of the workspace out", FILES, 'mv "$WS/a.txt" "$OUT/a.txt"'),
    Act("taking a file into the workspace", FILES, 'mv "$OUT/readable.txt" "$WS/taken"'),
    Act("the mode of a file outside", FILES, 'chmod 777 "$OUT/readable.txt"'),
    Act("the time of a file outside", FILES, 'touch -d 2001-01-01 "$OUT/readable.txt"'),
    _py(
        "an attribute of a file outside",
        FILES,
        "os.setxattr(os.environ['OUT'] + '/readable.txt', 'user.x', b'1')",
    ),
    Act("a file in the home folder", FILES, 'echo x > "$HOME/.profile"'),
    Act("a file in /var/tmp itself", FILES, "f=/var/tmp/confined.$$; echo x > $f && rm $f"),
    Act("a file in the workspace", ("read-only",), 'echo x > "$WS/new"'),
    Act("a file in TMPDIR", ("read-only", "minimal", "carved"), 'echo x > "$TMPDIR/new"'),
    Act(
        "a hard link to a file outside", WRITABLE, 'ln "$OUT/readable.txt" "$WS/hard" && echo x > "$WS/hard"'
    ),
    Act("a block device", WRITABLE, 'mknod "$WS/device" b 254 0', needs_root=True),
    # To what it is already: without a sandbox the host is not changed.
    *(
        Act(
            f"the mode of /dev/{name}", FILES, f"chmod $(stat -c %a /dev/{name}) /dev/{name}", needs_root=True
        )
        for name in ("null", "zero", "full", "random", "urandom", "tty")
    ),
    Act("the mode of its standard input", FILES, "chmod 666 /proc/self/fd/0", needs_root=True),
    # -- other ways to the same files
    # Inside the parent is the first process, bubblewrap's.
    Act("the program of its parent", FILES, 'stat -L "/proc/$PPID/exe"'),
    Act("out by two dots", FILES, 'echo x > "$WS/../out/new"'),
    Act("out by an old symbolic link", FILES, 'echo x > "$WS/link/new"'),
    Act("out by a new symbolic link", WRITABLE, 'ln -s "$OUT" "$WS/mine" && echo x > "$WS/mine/new"'),
    Act("out by /proc/self/root", FILES, 'echo x > "/proc/self/root$OUT/new"'),
    Act("out by /proc/self/cwd", FILES, "echo x > /proc/self/cwd/../out/new"),
    # -- protected names
    Act("the configuration of git", FILES, 'echo x >> "$WS/.git/config"'),
    Act("a hook of git", FILES, 'echo x > "$WS/.git/hooks/pre-commit"'),
    Act("another repository in place of .git", FILES, 'mv "$WS/.git" "$WS/old" && mkdir "$WS/.git"'),
    Act("removing .git", FILES, 'rm -r "$WS/.git"'),
    Act("the configuration of the agent", FILES, 'echo x > "$WS/.codex/config.toml"'),
    Act("a missing .agents as a folder", FILES, 'mkdir "$WS/.agents" && echo x > "$WS/.agents/x"'),
    Act("a missing .agents as a file", FILES, 'echo x > "$WS/.agents"'),
    Act("a missing .agents as a link", FILES, 'ln -sT "$OUT" "$WS/.agents"'),
    Act("a missing .aws", FILES, 'mkdir -p "$WS/.aws" && echo x > "$WS/.aws/credentials"'),
    # -- carve-outs
    Act("a file where reading only is allowed", ("carved",), 'echo x > "$WS/kept/new"'),
    Act("renaming what may only be read", ("carved",), 'mv "$WS/kept" "$WS/gone"'),
    Act("reading what is denied", ("carved",), 'cat "$WS/denied.txt"'),
    Act("reading what is denied outside", ("carved",), 'cat "$OUT/secret.txt"'),
    Act("reading what is denied by a link", ("carved",), 'ln -s denied.txt "$WS/way" && cat "$WS/way"'),
    Act(
        "reading what is denied by a hard link", ("carved",), 'ln "$WS/denied.txt" "$WS/way" && cat "$WS/way"'
    ),
    Act("renaming what is denied", ("carved",), 'mv "$WS/denied.txt" "$WS/way" && cat "$WS/way"'),
    Act("another file over what is denied", ("carved",), 'mv "$WS/a.txt" "$WS/denied.txt"'),
    Act("listing a denied folder", ("carved",), 'ls "$WS/closed" | grep -q file'),
    Act("reading in a denied folder", ("carved",), 'cat "$WS/closed/file"'),
    Act("reading what a pattern denies", ("carved",), 'cat "$WS/.env"'),
    Act("reading deep what a pattern denies", ("carved",), 'cat "$WS/sub/deep/.env"'),
    # -- what only the platform's folders leave
    Act("reading a folder outside", ("minimal",), 'cat "$OUT/readable.txt"'),
    Act("listing the base of everything", ("minimal",), 'ls "$OUT/.." | grep -q out'),
    Act("a folder in the root", ("minimal",), "mkdir /confined.$$ && rmdir /confined.$$", needs_root=True),
    # -- other processes
    Act("seeing a process outside", FILES, 'grep -q guardvictim "/proc/$VICTIM/cmdline"'),
    Act("the environment of a process outside", FILES, 'grep -q GUARDSECRET "/proc/$VICTIM/environ"'),
    Act(
        "a signal to a process outside",
        FILES,
        'kill -0 "$VICTIM" && grep -q guardvictim "/proc/$VICTIM/cmdline"',
    ),
    _py(
        "the memory of a process outside",
        FILES,
        "open(f'/proc/{os.environ[\"VICTIM\"]}/mem', 'rb').close()",
        needs_root=True,
    ),
    # Inside the parent is bubblewrap, without any filter.
    _py(
        "tracing its parent",
        FILES,
        "raise SystemExit(ctypes.CDLL(None).ptrace(0x4206, os.getppid(), None, None) < 0)",
    ),
    _py("a descriptor of its parent", FILES, "os.pidfd_open(os.getppid())"),
    _py(
        "shared memory outside",
        FILES,
        "raise SystemExit(ctypes.CDLL(None).shmget(int(os.environ['SEGMENT']), 0, 0) < 0)",
    ),
    # -- sockets
    _py(
        "a connection by TCP", OFFLINE, "socket.create_connection(('127.0.0.1', int(os.environ['PORT'])), 5)"
    ),
    _py("a datagram by UDP", OFFLINE, "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))"),
    _py("listening", OFFLINE, "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()"),
    _py("a Unix socket outside", OFFLINE, "socket.socket(socket.AF_UNIX).connect(os.environ['SOCKET'])"),
    _py(
        "an abstract Unix socket outside",
        OFFLINE,
        "socket.socket(socket.AF_UNIX).connect('\\0' + os.environ['ABSTRACT'])",
    ),
    _py(
        "a datagram to a Unix socket outside",
        OFFLINE,
        "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, os.environ['SOCKET'] + 'd')",
    ),
    _py("asking the kernel about the network", OFFLINE, "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"),
    # -- the kernel
    Act("a user namespace", FILES, "unshare --user --map-root-user true"),
    Act(
        "a mount that opens everything",
        FILES,
        "unshare --user --map-root-user --mount sh -c 'mount -o remount,rw,bind / && echo x > \"$OUT/new\"'",
    ),
    Act("a mount", FILES, 'mount -t tmpfs none "$WS"', needs_root=True),
    Act("another root", FILES, "chroot / true", needs_root=True),
    _py("another user", FILES, "os.setuid(12345)", needs_root=True),
    Act(
        "a setting of the kernel",
        FILES,
        'f=/proc/sys/kernel/core_pattern; was=$(cat $f); printf %s "$was" > $f',
        needs_root=True,
    ),
    Act("gaining rights by exec", FILES, "grep -q 'NoNewPrivs:.*0' /proc/self/status"),
    _py("io_uring", FILES, _call("io_uring_setup", "4, space"), needs_root=True),
    _py(
        "bpf",
        FILES,
        _call("bpf", "0, b'\\1\\0\\0\\0\\4\\0\\0\\0\\4\\0\\0\\0\\1' + bytes(59), 72"),
        needs_root=True,
    ),
    _py("the kernel's key store", FILES, _call("keyctl", "0, -2, 1")),
)
"""Operations that must fail under these policies. Each is shown to work without a sandbox."""

PERMITTED = (
    Act("a file in the workspace", WRITABLE, 'echo x > "$WS/new" && cat "$WS/new"'),
    Act("a folder tree in the workspace", WRITABLE, 'mkdir -p "$WS/x/y/z" && rm -r "$WS/x"'),
    Act("renaming a file of the workspace", WRITABLE, 'mv "$WS/a.txt" "$WS/b.txt"'),
    Act("a named pipe", WRITABLE, 'mkfifo "$WS/pipe"'),
    Act("a nested repository", WRITABLE, 'mkdir -p "$WS/sub/.git" && echo x > "$WS/sub/.git/config"'),
    Act("reading git's configuration", FILES, 'cat "$WS/.git/config"'),
    Act("reading outside", ("read-only", "workspace", "network", "carved"), 'cat "$OUT/readable.txt"'),
    Act("reading the platform's files", FILES, "cat /etc/passwd"),
    Act("a file in /tmp", ("workspace", "network"), "f=$(mktemp /tmp/confined.XXXXXX) && rm $f"),
    Act(
        "a file in TMPDIR",
        ("workspace", "network"),
        'f=$(mktemp) && case "$f" in "$TMPDIR"*) rm $f;; *) false;; esac',
    ),
    Act("writing below what may only be read", ("carved",), 'echo x > "$WS/kept/open/new"'),
    Act(
        "writing below what is denied",
        ("carved",),
        'echo x > "$WS/closed/open/new" && cat "$WS/closed/open/new"',
    ),
    Act("reading what may only be read", ("carved",), 'cat "$WS/kept/file"'),
    Act("writing outside without a limit on files", ("offline",), 'echo x > "$OUT/new"'),
    Act("the usual devices", FILES, "head -c 8 /dev/urandom > /dev/null && : < /dev/zero"),
    _py("shared memory of its own", FILES, "from multiprocessing import Lock\nwith Lock(): pass"),
    _py(
        "a pair of sockets",
        (*FILES, "offline"),
        "a, b = socket.socketpair(); os.write(a.fileno(), b'x'); b.recvmsg(1)",
    ),
    _py("a terminal of its own", FILES, "os.openpty()"),
    _py(
        "ending its own child",
        FILES,
        "import subprocess as s\np = s.Popen(['sleep', '60']); p.kill(); p.wait()",
    ),
    _py(
        "tracing its own child",
        ("network",),
        "import subprocess as s\np = s.Popen(['sleep', '60'])\n"
        "failed = ctypes.CDLL(None).ptrace(0x4206, p.pid, None, None) < 0\n"
        "p.kill(); raise SystemExit(failed)",
    ),
    _py(
        "the network, where it is allowed",
        ("network",),
        "socket.create_connection(('127.0.0.1', int(os.environ['PORT'])), 5)",
    ),
)
"""Operations that must work under these policies."""
