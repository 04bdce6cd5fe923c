"""The inherited state of a process: descriptors, signals, environment and limits, and how to clean it up."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` brings `enum`
import os
import resource
import select
import sys

from execserver.descendants import children_of

_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h

SERVICE_MANAGER_PREFIXES = (b"LISTEN_", b"WATCHDOG_", b"NOTIFY_SOCKET")
"""Variables of sd_listen_fds(3), sd_watchdog_enabled(3) and sd_notify(3), which only the supervisor uses."""


def initial_environment() -> dict[bytes, bytes]:
    """The environment at the exec, without variables of the service manager for this process.

    `os.environ` may differ: Python adds LC_CTYPE.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:  # hidden, for instance after a change of user
        entries = [name + b"=" + value for name, value in os.environb.items()]
    environment: dict[bytes, bytes] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if name and equals and not name.startswith(SERVICE_MANAGER_PREFIXES):
            environment.setdefault(name, value)  # of duplicates getenv(3) takes the first
    return environment


def close_inherited_descriptors() -> None:
    """Close all inherited descriptors except 0, 1 and 2, which are opened on /dev/null if they are closed.

    A descriptor that the launcher leaked (a lock, a pipe, a database) would stay open as long as the service,
    and reach every command.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            # Python's own descriptors are never inheritable, and inherited ones always are.
            if descriptor > 2 and os.get_inheritable(descriptor):
                os.close(descriptor)
        except OSError:
            continue  # the descriptor of the listing, closed by now


def enter_launch_folder() -> None:
    """Change to `/` if the working directory was deleted."""
    try:
        os.getcwd()
    except OSError:
        os.chdir("/")


def enter_again(folder: bytes) -> None:
    """Change to the launch folder for another start, or to `/` if it is gone."""
    try:
        os.chdir(folder)
    except OSError as error:
        report(f"the server starts in / instead of {os.fsdecode(folder)}: {error.strerror}")
        os.chdir("/")


def hangup_means_stop() -> bool:
    """Whether SIGHUP means that the terminal hung up, and not reload.

    So it is with a controlling terminal, unless the launcher ignored SIGHUP (nohup). Call it at the start:
    after a hangup /dev/tty is gone.
    """
    import signal  # after the first server is spawned

    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def reset_signals() -> None:
    """Reset signals that the launcher ignored (background jobs, nohup) or blocked."""
    # Python ignores these two, and a write to a closed stderr must not kill the supervisor.
    for number in _signal.valid_signals() - {_signal.SIGPIPE, _signal.SIGXFSZ}:
        if _signal.getsignal(number) == _signal.SIG_IGN:
            _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])


def become_subreaper() -> None:
    """Make orphans below this process its children, not init's.

    Raises:
        OSError: the kernel refuses.
    """
    import ctypes  # slow to load; by now the sockets are bound and clients can connect

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit; returns the old one, for the commands."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def release_stdio() -> None:
    """Close our copies of the client's stdin and stdout, so that the client sees the server's EOF."""
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)


_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(10), *range(11, 32), *range(127, 160))}
"""Control characters, which the name of a file may have and a terminal would obey."""


def report(text: str) -> None:
    """Write a line to stderr, unless that is closed, broken or would block: killing must not wait for it."""
    try:
        if not select.select([], [2], [], 0)[1]:
            return
        os.write(2, f"execserver: {text.translate(_ESCAPES)}\n".encode(errors="surrogateescape"))
    except (OSError, ValueError):
        return


def present_children() -> set[int]:
    """Children that this process already has, for example after `helper & exec execserver serve`."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # the usual case needs no look at the process table
        return set()
    return children_of(os.getpid())


def importable_in_isolation() -> bool:
    """Whether `python -I` finds this package, without PYTHONPATH and the working directory."""
    check = "import importlib.util as u, sys; sys.exit(u.find_spec('execserver') is None)"
    return os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-I", "-c", check]) == 0
