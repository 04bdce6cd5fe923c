"""Run a command as an ordinary user, when the tests themselves run as root.

    Server(listen, prefix=ORDINARY.prefix, env=..., cwd=...)

The interpreter and the repository often lie below a folder that only root may enter (`/root`). So the
command gets a mount namespace of its own, in which a folder of mode 755 lies over each such folder and
holds nothing but the way to what is needed. The namespace ends with its last process: there is
nothing to clean up.

This file is run as a program too, by the interpreter that nobody else can reach: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

NOBODY = 65534
"""The uid and gid of the ordinary user: it has an entry in every passwd file, and owns nothing."""

NEW = 54321
"""The uid and gid of an account that is new: no distribution gives it away."""

NEW_HOME = Path("/home/newcomer")

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 1 << 18


@dataclass(frozen=True, slots=True)
class User:
    """Somebody whom a daemon can run as."""

    name: str
    """`root`, or `user` for an ordinary one: as it stands in the ids of tests."""

    uid: int
    gid: int
    prefix: tuple[str, ...] = ()
    """A command to be put before another, which then runs as this user; empty for ourselves."""

    @property
    def is_root(self) -> bool:
        """Whether this is uid 0."""
        return self.uid == 0

    def give(self, *paths: str | os.PathLike[str]) -> None:
        """Make files and folders, with what is in them, this user's own. Links are not followed."""
        if not self.prefix:
            return
        for top in paths:
            os.lchown(top, self.uid, self.gid)
            for folder, folders, files in os.walk(top):
                for name in (*folders, *files):
                    os.lchown(os.path.join(folder, name), self.uid, self.gid)


def users() -> list[User]:
    """Whom we can run daemons as: ourselves, and as root an ordinary user too."""
    ourselves = User("root" if os.geteuid() == 0 else "user", os.geteuid(), os.getegid())
    if not ourselves.is_root:
        return [ourselves]
    program = (sys.executable, "-I", os.path.abspath(__file__), str(NOBODY), str(NOBODY))
    return [ourselves, User("user", NOBODY, NOBODY, program)]


def new_account(home: Path) -> User:
    """A user without a past, who exists for its own processes alone and leaves nothing when they end.

    In their mount namespace the user is in the files of the system, and `home` is its home folder. Where the
    tests run as an ordinary user it is that one: only its home folder is new.
    """
    ourselves, *others = users()
    if not others:
        return ourselves
    program = (*others[0].prefix[:3], "--new", str(home))
    return User("newcomer", NEW, NEW, program)


ALL_USERS = ("root", "user")
NOT_ROOT = "the tests run as an ordinary user; what a daemon of uid 0 does is tested when they run as root"


def user_named(name: str) -> User | None:
    """A user by name; `None` when we cannot run daemons as that one."""
    return next((user for user in users() if user.name == name), None)


def in_private_mounts(user: User, *argv: str) -> list[str]:
    """A command that may change mounts without the machine noticing, when it runs as root at all."""
    return ["unshare", "--mount", "--propagation", "private", *argv] if user.is_root else list(argv)


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Remove a folder with the state of a daemon, in which there is one that its owner cannot look into.

    Root's `shutil.rmtree` does it too; an ordinary user's does not.
    """
    subprocess.run(["rm", "-rf", folder], check=False)


# ------------------------------------------------------------------ the program


def closed_folder(path: Path) -> Path | None:
    """The first folder on the way to a path that is not open to everybody."""
    for folder in (*reversed(path.parents), path):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def needed_paths() -> Iterator[Path]:
    """What a daemon of this repository is run from."""
    for text in (str(REPOSITORY), sys.prefix, sys.base_prefix, os.path.dirname(sys.executable)):
        yield Path(text)
        yield Path(text).resolve()


def open_the_way(paths: Iterable[Path]) -> None:
    """In a mount namespace of our own, let every user reach these paths.

    Raises:
        OSError: the kernel refused; only root can do this.
    """
    hidden = {path: closed for path in dict.fromkeys(paths) if (closed := closed_folder(path)) is not None}
    # Held open before anything lies over them: afterwards there is no other way to them.
    held = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in hidden}
    for closed in dict.fromkeys(hidden.values()):
        _mount("tmpfs", str(closed), "tmpfs", 0, "mode=755,size=1m")
    for path, descriptor in sorted(held.items()):
        if not path.exists():
            path.mkdir(parents=True)
            _mount(f"/proc/self/fd/{descriptor}", str(path), None, _MS_BIND | _MS_REC)
        os.close(descriptor)


def unshare_mounts() -> None:
    """Take a mount namespace of our own.

    Raises:
        OSError: the kernel refused; only root can do this.
    """
    _call("unshare", ctypes.c_int(_CLONE_NEWNS))
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)


def add_account(home: Path) -> None:
    """Add a user to the files of the system, as this mount namespace sees them."""
    lines = {
        "passwd": f"{NEW_HOME.name}:x:{NEW}:{NEW}::{NEW_HOME}:/bin/bash\n",
        "group": f"{NEW_HOME.name}:x:{NEW}:\n",
    }
    for name, line in lines.items():
        file = Path("/etc", name)
        with tempfile.NamedTemporaryFile("w", dir="/tmp") as copy:
            copy.write(file.read_text() + line)
            copy.flush()
            os.chmod(copy.name, 0o644)
            _mount(copy.name, str(file), None, _MS_BIND)
    descriptor = os.open(home, os.O_PATH | os.O_DIRECTORY)  # it may lie below what is covered next
    _mount("tmpfs", str(NEW_HOME.parent), "tmpfs", 0, "mode=755,size=1m")
    NEW_HOME.mkdir()
    _mount(f"/proc/self/fd/{descriptor}", str(NEW_HOME), None, _MS_BIND)
    os.close(descriptor)


def become(uid: int, gid: int) -> None:
    """Be this user, with no other group and no way back."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    option = None if data is None else data.encode()
    _call("mount", *texts, ctypes.c_ulong(flags), option)


def _call(name: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def main(arguments: Sequence[str]) -> None:
    """`sandbox_user.py UID GID COMMAND...`: become that user and be that command.

    With `--new HOME` instead of `UID GID`: become a user of a new account.
    """
    uid, gid, *command = arguments
    if not command:
        sys.exit("usage: sandbox_user.py {UID GID | --new HOME} COMMAND...")
    umask = os.umask(0o022)
    unshare_mounts()
    if uid == "--new":
        add_account(Path(gid))
        uid = gid = str(NEW)
    pwd.getpwuid(int(uid))  # a user that the machine knows, or a clear KeyError
    open_the_way(needed_paths())
    os.umask(umask)
    become(int(uid), int(gid))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
