"""Names that programs outside trust cannot be changed by commands."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from execprotocol.errors import InvalidRequest
from execserver.sandbox.options import DaemonPaths
from execserver.sandbox.policy import PROTECTED_NAMES, Rule
from execserver.sandbox.view import Bind
from tests.unit.sandbox.rig import DENY, READ, WRITE, Rig, policy, workspace


@pytest.fixture
def ws(base: Path) -> Path:
    folder = base / "ws"
    folder.mkdir()
    return folder


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "config").write_text("kept\n")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


MAKERS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.mkdir(),
    "folder": _folder,
    "file": lambda path: path.write_text("kept\n"),
    "fifo": lambda path: os.mkfifo(path),
    "socket": _socket,
}

# Everything that could put something else in the place of a name, or into it.
ATTACK = """
cd {ws}
for name in .git .agents .codex .aws; do
  mkdir $name; echo forged > $name/config
  case $(stat -c %F $name) in fifo) ;; *) echo forged > $name;; esac
  mv $name x; rm -rf $name; rmdir $name; ln -s /etc $name; ln -sfn /etc $name
  echo > other; mv -T other $name; chmod 777 $name; touch $name
done
rm -f other
cd /; mv {ws} {ws}.away; rm -rf {ws}.away
true
"""


def state_of(path: Path) -> object:
    if not os.path.lexists(path):
        return None
    status = os.lstat(path)
    content: object = None
    if stat.S_ISREG(status.st_mode):
        content = path.read_text()
    elif stat.S_ISDIR(status.st_mode):
        content = {name: (path / name).read_text() for name in os.listdir(path)}
    return status.st_ino, status.st_mode, content


@pytest.mark.parametrize("kind", MAKERS)
def test_a_protected_name_stays_what_it_was(rig: Rig, ws: Path, kind: str) -> None:
    for name in PROTECTED_NAMES:
        MAKERS[kind](ws / name)
    before = {name: state_of(ws / name) for name in PROTECTED_NAMES}
    rig.run(workspace(ws), ATTACK.format(ws=ws))
    assert {name: state_of(ws / name) for name in PROTECTED_NAMES} == before


def test_without_a_sandbox_the_same_attack_succeeds(ws: Path) -> None:
    _folder(ws / ".git")
    assert os.system(ATTACK.format(ws=ws) + f"test -L {ws}/.git || test ! -e {ws}") == 0


def test_each_writable_root_has_names_of_its_own(rig: Rig, ws: Path) -> None:
    (ws / "inner").mkdir()
    (ws / "plain").mkdir()
    limits = workspace(ws, (ws / "inner", WRITE))
    ran = rig.run(limits, f"mkdir {ws}/inner/.git/x || echo closed; mkdir {ws}/plain/.git && echo open")
    assert "closed" in ran.output
    assert "open" in ran.output
    assert (ws / "plain" / ".git").is_dir()
    assert not (ws / "inner" / ".git").exists()


def test_an_entry_that_names_one_opens_it(rig: Rig, ws: Path) -> None:
    (ws / ".git").mkdir()
    rig.run(workspace(ws, (ws / ".git", WRITE)), f"echo 1 > {ws}/.git/n; mkdir {ws}/.codex/n")
    assert (ws / ".git" / "n").exists()
    assert not (ws / ".codex").exists()


def test_an_entry_for_what_is_in_one_opens_that_and_no_more(rig: Rig, ws: Path) -> None:
    (ws / ".git" / "objects").mkdir(parents=True)
    rig.run(
        workspace(ws, (ws / ".git" / "objects", WRITE)), f"echo 1 > {ws}/.git/n; echo 1 > {ws}/.git/objects/n"
    )
    assert os.listdir(ws / ".git") == ["objects"]
    assert os.listdir(ws / ".git" / "objects") == ["n"]


def test_one_that_is_denied_is_not_readable_either(rig: Rig, ws: Path) -> None:
    _folder(ws / ".git")
    ran = rig.run(workspace(ws, (ws / ".git", DENY)), f"cat {ws}/.git/config || echo hidden")
    assert ran.output.endswith("hidden\n")


@pytest.mark.parametrize("skip", [False, True])
def test_an_entry_that_makes_one_readable_changes_nothing(rig: Rig, ws: Path, skip: bool) -> None:
    limits = workspace(ws, Rule(f"{ws}/.git", READ, skip))
    assert "closed" in rig.run(limits, f"echo 1 > {ws}/.git/n || echo closed").output
    assert os.listdir(ws) == []


@pytest.mark.parametrize("target", ["/etc", "real", "nowhere", ".git"])
def test_one_that_is_a_link_is_refused_because_a_command_could_replace_it(
    rig: Rig, ws: Path, target: str
) -> None:
    (ws / "real").mkdir()
    (ws / ".git").symlink_to(target)
    with pytest.raises(InvalidRequest) as caught:
        rig.build_view(workspace(ws))
    assert f"{ws}/.git is a symbolic link" in str(caught.value)
    assert "replace it by its target" in str(caught.value)


@pytest.mark.parametrize("name", PROTECTED_NAMES)
def test_an_entry_for_one_that_is_a_link_lifts_its_protection_as_the_refusal_says(
    rig: Rig, ws: Path, base: Path, name: str
) -> None:
    (base / "dotfiles").mkdir()
    (ws / name).symlink_to(base / "dotfiles")
    with pytest.raises(InvalidRequest, match=f"or add an entry with access `write` for {ws}/{name}"):
        rig.build_view(workspace(ws))
    # The target of a replaceable link is not granted with the link.
    rig.run(workspace(ws, (ws / name, WRITE)), f"echo 1 > {ws}/n; echo 1 > {ws}/{name}/n")
    assert (ws / "n").exists()
    assert not (base / "dotfiles" / "n").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of another user")
def test_the_target_of_a_link_that_cannot_be_replaced_is_read_only(rig: Rig, ws: Path) -> None:
    (ws / "real").mkdir(mode=0o777)
    (ws / "real").chmod(0o777)
    (ws / ".git").symlink_to("real")
    os.chown(ws, 65534, 65534)
    assert Bind(f"{ws}/real", f"{ws}/real", writable=False) in rig.build_view(workspace(ws)).mounts
    assert "closed" in rig.run(workspace(ws), f"echo 1 > {ws}/real/n || echo closed").output


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of another user")
def test_a_link_of_another_user_in_a_folder_like_tmp_is_ignored(rig: Rig, ws: Path, base: Path) -> None:
    (ws / ".git").symlink_to(base)
    os.chown(ws / ".git", 65534, 65534, follow_symlinks=False)
    os.chown(ws, 65534, 65534)
    ws.chmod(0o1777)
    ran = rig.run(workspace(ws), f"rm {ws}/.git || echo stays; echo 1 > {ws}/n; echo 1 > {ws}/.git/n")
    assert "stays" in ran.output
    assert sorted(os.listdir(ws)) == [".git", "n"]
    assert not (base / "n").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of another user")
def test_a_name_that_commands_cannot_create_is_not_guarded(rig: Rig, ws: Path) -> None:
    os.chown(ws, 65534, 65534)
    ws.chmod(0o755)
    assert rig.build_view(workspace(ws)).mount_points == ()


# -- `.git` as a file


def test_the_repository_that_a_file_names_is_read_only_and_its_common_folder_too(rig: Rig, ws: Path) -> None:
    (ws / "main" / "worktrees" / "w").mkdir(parents=True)
    (ws / "main" / "worktrees" / "w" / "commondir").write_text("../..\n")
    (ws / ".git").write_text("gitdir: main/worktrees/w\n")
    before = os.stat(ws / "main").st_ino
    rig.run(
        workspace(ws),
        f"cd {ws}; echo 1 > main/worktrees/w/n; echo 1 > main/n; mv main x; mkdir main; echo 1 > .git",
    )
    assert os.stat(ws / "main").st_ino == before
    assert sorted(os.listdir(ws / "main")) == ["worktrees"]
    assert os.listdir(ws / "main" / "worktrees" / "w") == ["commondir"]


def test_a_repository_that_is_missing_cannot_be_made_in_the_place_that_a_file_names(
    rig: Rig, ws: Path
) -> None:
    (ws / ".git").write_text(f"gitdir: {ws}/gone/repo\n")
    ran = rig.run(workspace(ws), f"mkdir -p {ws}/gone/repo/hooks || echo closed")
    assert "closed" in ran.output
    assert os.listdir(ws) == [".git"]


def test_a_repository_outside_is_as_it_would_be_without_the_file(rig: Rig, base: Path, ws: Path) -> None:
    (base / "repo").mkdir()
    (ws / ".git").write_text(f"gitdir: {base}/repo\n")
    targets = [mount.target for mount in rig.build_view(workspace(ws)).mounts]
    assert str(base / "repo") not in targets
    assert f"{ws}/.git" in targets


@pytest.mark.parametrize(
    "content",
    [b"", b"gitdir:", b"other: x", b"gitdir: a\0b", b"gitdir: .git", b"gitdir: \xff\xfe", b"\xff" * 100_000],
    ids=["empty", "bare", "other", "nul", "itself", "no-text", "huge"],
)
def test_a_file_that_names_no_repository_is_read_only_itself(rig: Rig, ws: Path, content: bytes) -> None:
    (ws / ".git").write_bytes(content)
    rig.run(workspace(ws), f"echo forged > {ws}/.git; rm -f {ws}/.git")
    assert (ws / ".git").read_bytes() == content


def test_a_fifo_in_the_place_of_a_file_of_git_does_not_block(rig: Rig, ws: Path) -> None:
    (ws / "repo").mkdir()
    os.mkfifo(ws / "repo" / "commondir")
    (ws / ".git").write_text("gitdir: repo\n")
    view = rig.build_view(workspace(ws))
    assert Bind(f"{ws}/repo", f"{ws}/repo", writable=False) in view.mounts


def test_names_are_guarded_in_a_workspace_that_is_also_the_home_folder(rig: Rig, ws: Path) -> None:
    view = rig.build_view(workspace(ws, network=True), own=DaemonPaths((rig.state,), home=str(ws)))
    assert set(view.mount_points) == {f"{ws}/{name}" for name in PROTECTED_NAMES}


def test_the_root_has_protected_names_too_when_it_is_writable(rig: Rig, ws: Path) -> None:
    view = rig.build_view(policy(("/", WRITE), (ws, READ)))
    if os.geteuid() == 0:
        assert {f"/{name}" for name in PROTECTED_NAMES if not os.path.lexists(f"/{name}")} <= set(
            view.mount_points
        )
    else:
        assert not any(os.path.dirname(path) == "/" for path in view.mount_points)
