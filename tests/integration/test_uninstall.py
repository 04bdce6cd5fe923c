"""`execserver uninstall`: what a used machine has of execserver is listed and removed, and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.sandbox.profiles import WORKSPACE, context
from tests.sandbox_user import NOBODY, remove_tree, user_named
from tests.support.background import Left
from tests.support.wire import PATIENCE, Client, Server, encode, path_uri

EXECSERVER = [str(Path(sys.executable).with_name("execserver"))]
USER = user_named("user")
PRIVATE_TMP = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    'mount --bind "$0" /tmp; exec "$@"',
)

pytestmark = pytest.mark.skipif(
    USER is None or not USER.prefix,
    reason="it removes the state of an account: root tries it as another user",
)


class Account:
    """An ordinary user with a home folder and a `/tmp` of its own.

    Args:
        base: a folder that everyone may enter, not below `/tmp`.
    """

    def __init__(self, base: Path) -> None:
        self.home = base / "home"
        self.tmp = base / "tmp"
        self.run_folder = base / "run"
        self.state = self.home / ".local/state/execserver"
        self.sockets = self.run_folder / "execserver"
        self.workspace = self.home / "work"
        for folder in (self.home, self.run_folder, self.sockets, self.workspace):
            folder.mkdir(mode=0o700)
        self.tmp.mkdir()
        self.tmp.chmod(0o1777)
        self.own(self.home, self.run_folder)
        self.servers: list[Server] = []

    @property
    def prefix(self) -> list[str]:
        assert USER is not None
        return [*PRIVATE_TMP, str(self.tmp), *USER.prefix]

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.run_folder)}

    def own(self, *paths: Path) -> None:
        assert USER is not None
        USER.give(*paths)

    def write(self, path: Path, text: str = "text\n") -> Path:
        """A file of the user, with its folders."""
        missing = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for made in (path, *missing):
            os.lchown(made, NOBODY, NOBODY)
        return path

    def serve(self, *flags: str) -> Server:
        """A daemon with the default socket; we connect to its other one."""
        listen = ("--listen", f"unix://{self.sockets}/execserver.sock")
        server = Server(
            "ws://127.0.0.1:0", *listen, *flags, env=self.environment, cwd=self.workspace, prefix=self.prefix
        )
        server.url = server.url.splitlines()[0]
        self.servers.append(server)
        return server

    def uninstall(self, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, *EXECSERVER, "uninstall", *flags], env=self.environment | variables, cwd="/",
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def names(self) -> set[str]:
        """All that is there, by its path."""
        found: set[str] = set()
        for top in (self.home, self.run_folder, self.tmp):
            for folder, folders, files in os.walk(top):
                found.update(os.path.join(folder, name) for name in (*folders, *files))
        return found


@pytest.fixture
def account() -> Iterator[Account]:
    base = Path(tempfile.mkdtemp(prefix="exec-", dir="/var/tmp"))
    base.chmod(0o755)
    account = Account(base)
    yield account
    for server in account.servers:
        server.stop()
    remove_tree(base)


def use(account: Account, client: Client) -> None:
    """Output on disk, a confined command, edits and files in a sandbox."""
    assert client.shell("seq 100000", cwd=path_uri(account.workspace)).wait_closed().exit_code == 0
    sandbox = context(WORKSPACE, cwd=account.workspace, roots=[account.workspace])
    confined = client.shell("echo on > made", cwd=path_uri(account.workspace), sandbox=sandbox)
    assert confined.wait_closed().exit_code == 0
    edit = {"op": "write", "path": path_uri(account.workspace / "edited"), "dataBase64": encode("e")}
    client.call("fs/applyEdits", {"edits": [edit], "sandbox": sandbox})


# -- what is removed


def test_after_use_and_uninstall_nothing_of_ours_is_left(account: Account) -> None:
    before = account.names()
    server = account.serve()
    with server.connect() as client:
        use(account, client)
    assert server.stop() == 0
    used = account.names()
    assert {str(account.state / name) for name in ("spool", "edits", "mount-points", "instances")} <= used
    listed = account.uninstall("--dry-run")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert account.names() == used
    removed = account.uninstall("--yes")
    assert (removed.returncode, removed.stderr) == (0, "")
    for done, verb in ((listed, "remove "), (removed, "removed ")):
        lines = [line for line in done.stdout.splitlines() if str(account.state) in line]
        assert len(lines) == 1
        assert lines[0].startswith(verb)
        assert "KiB" in lines[0]
        assert "pip uninstall execserver execclient" in done.stdout.splitlines()[-1]
    made = {str(account.workspace / name) for name in ("made", "edited")}
    empty_parents = {str(account.home / name) for name in (".local", ".local/state")}
    assert account.names() == before - {str(account.sockets)} | made | empty_parents
    again = account.uninstall("--yes")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith("nothing of execserver")


def test_units_that_were_installed_by_hand_are_removed(account: Account) -> None:
    units = account.home / ".config/systemd/user"
    for name in (
        "execserver.service",
        "execserver.socket",
        "other.service",
        "execserver.service.d/mine.conf",
    ):
        account.write(units / name)
    wants = units / "sockets.target.wants"
    account.write(wants / "other.socket")
    (wants / "execserver.socket").symlink_to(units / "execserver.socket")
    os.lchown(wants / "execserver.socket", NOBODY, NOBODY)
    done = account.uninstall("--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "systemctl --user daemon-reload" in done.stdout
    assert {path for path in account.names() if Path(path).is_file() or Path(path).is_symlink()} == {
        str(units / "other.service"),
        str(wants / "other.socket"),
        str(units / "execserver.service.d/mine.conf"),
    }


def test_settings_and_rules_stay_unless_they_are_named(account: Account) -> None:
    config = account.write(account.home / ".config/execserver/config.toml", 'log_level = "error"\n')
    rules = account.write(account.home / ".config/execserver/rules/default.rules")
    kept = account.uninstall("--yes")
    assert kept.returncode == 0
    assert "keep " in kept.stdout
    assert "--settings" in kept.stdout
    assert config.exists()
    assert rules.exists()
    assert account.uninstall("--yes", "--settings").returncode == 0
    assert not config.parent.exists()
    assert config.parent.parent.exists()


def test_of_a_named_folder_only_what_daemons_made_is_removed(account: Account) -> None:
    folder = account.home / "spool here"
    account.write(folder / "own file").parent.chmod(0o700)
    server = account.serve("--spool-dir", str(folder))
    with server.connect() as client:
        use(account, client)
    assert server.stop() == 0
    assert (folder / "spool").exists()
    done = account.uninstall("--yes", EXECSERVER_SPOOL_DIR=str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(folder) == ["own file"]
    (folder / "own file").unlink()
    assert account.uninstall("--yes", "--spool-dir", str(folder)).returncode == 0
    assert not folder.exists()


def test_a_named_folder_that_is_a_link_or_the_default_one(account: Account) -> None:
    victim = account.write(account.home / "victim/spool/file")
    link = account.home / "link"
    link.symlink_to(victim.parents[1])
    os.lchown(link, NOBODY, NOBODY)
    account.write(account.state / "instances/x")
    account.state.chmod(0o700)
    assert account.uninstall("--yes", "--spool-dir", str(link)).returncode == 0
    assert victim.exists()
    assert not account.state.exists()
    account.write(account.state / "instances/x")
    account.state.chmod(0o700)
    assert account.uninstall("--yes", "--spool-dir", str(account.state)).returncode == 0
    assert not account.state.exists()


def test_what_a_killed_daemon_left_running_and_in_a_workspace_is_removed(account: Account) -> None:
    server = account.serve()
    sandbox = context(WORKSPACE, cwd=account.workspace, roots=[account.workspace])
    where = path_uri(account.workspace)
    left = Left()
    with server.connect() as client:
        client.shell("echo on; cat", cwd=where, sandbox=sandbox, pipeStdin=True).wait_output(b"on\n")
        client.start("setsid", *left.argv, cwd=where)
        left.wait_running()
        assert (account.workspace / ".git").is_dir()
        leader = next(iter(psutil.Process(server.pid).children()))
        for process in (psutil.Process(server.pid), leader):
            process.suspend()
        for process in (leader, psutil.Process(server.pid)):
            process.send_signal(signal.SIGKILL)
        server.process.wait(PATIENCE)
    assert left.pids
    done = account.uninstall("--yes")
    assert (done.returncode, done.stderr) == (0, "")
    left.wait_gone()
    assert os.listdir(account.workspace) == []
    assert not account.state.exists()


# -- what stands in the way


def test_nothing_is_removed_while_a_daemon_runs(account: Account) -> None:
    server = account.serve()
    before = account.names()
    for flag in ("--dry-run", "--yes"):
        done = account.uninstall(flag)
        assert done.returncode == 1
        assert f"`kill {server.pid}`" in done.stderr
        assert "stop it" in done.stderr
        assert "removed " not in done.stdout
    assert before <= account.names()
    with server.connect() as client:
        use(account, client)


def test_nothing_is_removed_while_a_service_manager_listens(account: Account) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{account.sockets}/execserver.sock")
        listening.listen()
        os.lchown(account.sockets / "execserver.sock", NOBODY, NOBODY)
        done = account.uninstall("--yes")
    assert done.returncode == 1
    assert "systemctl --user stop execserver.socket" in done.stderr
    assert (account.sockets / "execserver.sock").exists()
    assert account.uninstall("--yes").returncode == 0  # what is left of it is only a name
    assert not account.sockets.exists()


def test_edits_of_a_dead_daemon_are_completed_first(account: Account) -> None:
    record = account.write(account.state / "edits/0123456789abcdef")
    account.state.chmod(0o700)
    done = account.uninstall("--yes")
    assert done.returncode == 1
    assert "execserver serve once" in done.stderr
    assert record.exists()


def test_it_is_asked_for_in_so_many_words(account: Account) -> None:
    account.write(account.state / "spool/file")
    for flags in ((), ("--dry-run", "--yes")):
        assert account.uninstall(*flags).returncode == 2
    assert (account.state / "spool/file").exists()


# -- what is not ours


def test_links_are_removed_and_never_followed(account: Account) -> None:
    victim = account.write(account.home / "victim/file")
    for name, target in (("file", victim), ("folder", victim.parent), ("nowhere", account.home / "no")):
        link = account.write(account.state / "spool" / "x").parent / name
        link.symlink_to(target)
        os.lchown(link, NOBODY, NOBODY)
    account.state.chmod(0o700)
    assert account.uninstall("--yes").returncode == 0
    assert not account.state.exists()
    assert victim.read_text() == "text\n"


def test_a_place_that_is_a_link_stays_with_its_target(account: Account) -> None:
    account.sockets.rmdir()
    places = (
        account.state,
        account.sockets,
        account.tmp / f"execserver-{NOBODY}",
        account.home / ".config/execserver",
    )
    victims = []
    for number, path in enumerate(places):
        victims.append(account.write(account.home / f"victim {number}/instances/1", ""))
        account.write(path.parent / "x").unlink()
        path.symlink_to(victims[-1].parents[1])
        os.lchown(path, NOBODY, NOBODY)
    done = account.uninstall("--yes", "--settings")
    assert done.stdout.count("a symbolic link") == len(places)
    assert all(path.is_symlink() for path in places)
    assert all(victim.exists() for victim in victims)


def test_files_of_other_users_stay(account: Account) -> None:
    theirs = account.write(account.state / "spool/theirs \x1b[2J/file")
    ours = account.write(account.state / "spool/ours")
    account.state.chmod(0o700)
    for path in (theirs, theirs.parent):
        os.chown(path, 0, 0)
    done = account.uninstall("--yes")
    assert done.returncode == 1
    assert r"/theirs \x1b[2J stays: it belongs to root" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert theirs.exists()
    assert not ours.exists()


def test_an_earlier_place_of_another_user_stays_and_decides_nothing(account: Account) -> None:
    """Any user may have made that name; records in it would name processes to be killed."""
    earlier = account.tmp / f"execserver-{NOBODY}"
    (earlier / "instances").mkdir(parents=True)
    (earlier / "instances/1").touch()
    done = account.uninstall("--yes")
    assert done.returncode == 0
    assert "belongs to root" in done.stdout
    assert (earlier / "instances/1").exists()


def test_an_earlier_place_of_our_own_is_removed(account: Account) -> None:
    earlier = account.tmp / f"execserver-{NOBODY}"
    account.write(earlier / "instances/1", "")
    assert account.uninstall("--yes").returncode == 0
    assert not earlier.exists()


@pytest.mark.parametrize("kind", ["file system", "folder from elsewhere"])
def test_what_is_mounted_in_the_state_stays(account: Account, kind: str) -> None:
    inside = account.state / "spool/mounted"
    account.write(inside / "x").unlink()
    mount = ["-t", "tmpfs", "-o", f"size=64k,uid={NOBODY}", "none"]
    if kind == "folder from elsewhere":
        mount = ["--bind", str(account.workspace)]
    subprocess.run(["mount", *mount, inside], check=True)
    try:
        file = account.write(inside / "file")
        done = account.uninstall("--yes")
        assert done.returncode == 1
        assert f"{inside} stays: " in done.stderr
        assert file.exists()
    finally:
        subprocess.run(["umount", inside], check=True)
