"""Explains why bubblewrap could not make a sandbox, by its error text and the kernel's settings.

The error texts are those of bubblewrap 0.8 to 0.11 in the C locale.
"""

from __future__ import annotations

import msgspec

MINIMUM_VERSION = (0, 8, 0)
"""The first bubblewrap with `--disable-userns`."""

INSTALL = (
    "install bubblewrap 0.8.0 or later: `apt install bubblewrap` (Debian, Ubuntu), `dnf install bubblewrap` "
    "(Fedora, RHEL), `pacman -S bubblewrap` (Arch), `apk add bubblewrap` (Alpine), "
    "`zypper install bubblewrap` (SUSE); or name the program with --bubblewrap"
)

_CONTAINER = (
    "in a container, start it with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined`, or rely on the container alone: clients then send the profile "
    '`{"type": "external", …}`'
)


class LaunchFailure(msgspec.Struct, frozen=True):
    """The cause of a failure, and its fix."""

    cause: str
    fix: str


def explain(text: str, bubblewrap: str, proc: str = "/proc") -> LaunchFailure:
    """Explain an error text of bubblewrap.

    Args:
        text: the whole stderr, in the C locale.
        bubblewrap: the path of bubblewrap.
        proc: the path of procfs.
    """
    error = last_line(text)
    if "unknown option" in text.lower():
        return LaunchFailure(f"bubblewrap is too old: {error}", INSTALL)
    if "setuid version" in text:
        return LaunchFailure(
            f"{bubblewrap} is set-user-id, and so cannot forbid nested user namespaces: {error}",
            f"`chmod u-s {bubblewrap}` and allow users to make user namespaces, or name another program with "
            "--bubblewrap",
        )
    if "PR_SET_SECCOMP" in text:
        return LaunchFailure(
            f"the kernel refused the seccomp filter: {error}",
            "use a kernel with CONFIG_SECCOMP_FILTER",
        )
    if "mount proc" in text:
        return LaunchFailure(
            f"a new /proc may not be mounted, because parts of the /proc outside are covered: {error}",
            _CONTAINER,
        )
    if "max_*_namespaces" in text or "ENOSPC" in text or "No space left on device" in text:
        return _limits(error, proc)
    if any(words in text for words in _NAMESPACE_WORDS):
        return restricted(error, bubblewrap, proc)
    return LaunchFailure(
        f"bubblewrap failed: {error}",
        "see docs/how-to/doctor.md, or try it by hand: "
        f"`{bubblewrap} --ro-bind / / --unshare-user --unshare-pid --proc /proc true`",
    )


_NAMESPACE_WORDS = (
    "No permissions to creat",  # "to creating" before 0.9
    "Creating new namespace failed",
    "setting up uid map",
    "RTM_NEWADDR",
    "RTM_NEWLINK",
    "Failed to make / slave",
    "Failed to mount tmpfs",
    "pivot_root",
    "Unexpected capabilities",
    "unshare user ns",
)


def restricted(error: str, bubblewrap: str, proc: str = "/proc") -> LaunchFailure:
    """Explain why namespaces may not be made or used.

    Args:
        error: the error text.
        bubblewrap: the path of bubblewrap.
        proc: the path of procfs.
    """
    if setting(proc, "kernel/unprivileged_userns_clone") == "0":
        return LaunchFailure(
            f"kernel.unprivileged_userns_clone is 0: only root may make user namespaces ({error})",
            "`sysctl kernel.unprivileged_userns_clone=1`, and the same in /etc/sysctl.d/ to keep it",
        )
    if setting(proc, "user/max_user_namespaces") == "0":
        return _limits(error, proc)
    if setting(proc, "kernel/apparmor_restrict_unprivileged_userns") == "1":
        return LaunchFailure(
            f"AppArmor denies capabilities in user namespaces to programs without a profile ({error})",
            apparmor_fix(bubblewrap),
        )
    return LaunchFailure(
        f"namespaces may not be made or used here ({error}): the filter of a container or service forbids it",
        f"{_CONTAINER}; under systemd, remove RestrictNamespaces= and ProtectKernelTunables=",
    )


def apparmor_fix(bubblewrap: str) -> str:
    """The fix that lets bubblewrap make user namespaces under AppArmor."""
    return (
        "give bubblewrap a profile: "
        f"`printf '%s\\n' 'abi <abi/4.0>,' 'profile bwrap {bubblewrap} flags=(unconfined) {{ userns, }}' "
        "| sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap`; "
        "or, for every program, `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
    )


def setting(proc: str, name: str) -> str | None:
    """The value of a kernel setting (`kernel/…`); None if the kernel does not have it."""
    try:
        with open(f"{proc}/sys/{name}", encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _limits(error: str, proc: str) -> LaunchFailure:
    zero = [kind for kind in ("user", "mnt", "pid", "ipc", "net") if setting(proc, _limit(kind)) == "0"]
    if zero:
        names = " and ".join(f"user.max_{kind}_namespaces" for kind in zero)
        return LaunchFailure(
            f"{names} is 0: such namespaces may not be made ({error})",
            " && ".join(f"`sysctl user.max_{kind}_namespaces=10000`" for kind in zero),
        )
    return LaunchFailure(
        f"the limit of namespaces is reached, or they are nested too deep ({error})",
        "raise the settings user.max_*_namespaces; inside a sandbox of bubblewrap, use the profile external",
    )


def _limit(kind: str) -> str:
    return f"user/max_{kind}_namespaces"


def last_line(text: str) -> str:
    """The last line, in which bubblewrap reports its error; bounded, for error messages."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(char if char.isprintable() else "?" for char in lines[-1])[:300] if lines else "no message"
