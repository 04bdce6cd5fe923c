"""`git status` outside runs nothing that a confined command has planted, and git works inside as before."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from execprotocol.errors import InvalidRequest
from execserver.sandbox import git_files
from execserver.sandbox.bare_roots import BareRoots, candidates
from tests.sandbox.outside import wait_for
from tests.unit.sandbox.rig import READ, WRITE, Rig, policy, workspace

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine")

Plant = Callable[[Path, Path], str]

SETTINGS = (
    "printf '[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n\\tworktree = {tree}\\n"
    '\\tfsmonitor = "touch {mark}"\\n\' > {config}'
)


@pytest.fixture
def ws(base: Path) -> Path:
    folder = base / "ws"
    folder.mkdir()
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git without the settings of any account."""
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *arguments],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder.parent),
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def bare_layout(folder: Path, mark: Path) -> str:
    """A script that makes a folder a repository whose settings run a command."""
    settings = SETTINGS.format(tree=".", mark=mark, config="config")
    return f"cd {folder} && mkdir -p objects refs && echo ref: refs/heads/main > HEAD; {settings}"


def own_settings(folder: Path, mark: Path) -> str:
    """A script that gives a folder a `.git` whose settings run a command."""
    settings = SETTINGS.format(tree="..", mark=mark, config=".git/config")
    make = "mkdir -p .git/objects .git/refs && echo ref: refs/heads/main > .git/HEAD"
    return f"mkdir -p {folder}; cd {folder} && {{ mv .git old; rm -rf .git; {make}; }}; {settings}"


def with_submodule(ws: Path, *, initialized: bool = True) -> Path:
    """A repository with a submodule `mod/sub`."""
    repository(ws.parent / "other")
    repository(ws)
    git(ws, "submodule", "--quiet", "add", str(ws.parent / "other"), "mod/sub")
    git(ws, "commit", "-q", "-m", "with submodule")
    if not initialized:
        git(ws, "submodule", "--quiet", "deinit", "-f", "mod/sub")
        shutil.rmtree(ws / ".git/modules")
    return ws / "mod/sub"


def a_new_bare_layout(ws: Path, mark: Path) -> str:
    return bare_layout(ws, mark)


def a_bare_layout_around_an_unusable_repository(ws: Path, mark: Path) -> str:
    (ws / ".git/hooks").mkdir(parents=True)
    return bare_layout(ws, mark)


def a_layout_whose_head_is_there(ws: Path, mark: Path) -> str:
    (ws / "HEAD").write_text("ref: refs/heads/main\n")
    return bare_layout(ws, mark)


def a_layout_whose_head_is_something_else(ws: Path, mark: Path) -> str:
    (ws / "HEAD").write_text("of this project\n")
    return bare_layout(ws, mark)


def the_settings_of_a_bare_repository(ws: Path, mark: Path) -> str:
    git(ws, "init", "-q", "--bare")
    return SETTINGS.format(tree=".", mark=mark, config=f"{ws}/config")


def the_repository_of_a_submodule(ws: Path, mark: Path) -> str:
    return own_settings(with_submodule(ws), mark)


def a_repository_for_a_submodule_without_one(ws: Path, mark: Path) -> str:
    return own_settings(with_submodule(ws, initialized=False), mark)


def a_repository_in_the_place_of_a_submodules_folder(ws: Path, mark: Path) -> str:
    folder = with_submodule(ws)
    return f"mv {folder} {folder}.away; mv {folder.parent} {ws}/away; {own_settings(folder, mark)}"


def a_repository_for_an_embedded_one(ws: Path, mark: Path) -> str:
    repository(ws)
    repository(ws / "inner")
    git(ws, "add", "inner")
    git(ws, "commit", "-q", "-m", "embedded")
    return own_settings(ws / "inner", mark)


def a_file_of_settings_that_is_included(ws: Path, mark: Path) -> str:
    repository(ws)
    git(ws, "config", "include.path", "../settings/git")
    return f"mkdir -p {ws}/settings; {SETTINGS.format(tree=ws, mark=mark, config=f'{ws}/settings/git')}"


def a_file_of_settings_that_an_included_one_includes(ws: Path, mark: Path) -> str:
    repository(ws)
    (ws / "first").write_text("[include] path = second\n")
    git(ws, "config", "includeIf.gitdir:**.path", "../first")
    return SETTINGS.format(tree=ws, mark=mark, config=f"{ws}/second")


def a_link_to_the_repository(ws: Path, mark: Path) -> str:
    repository(ws / "main")
    (ws / "link").symlink_to("main")
    (ws / ".git").write_text("gitdir: link/.git\n")
    return f"ln -sfn evil {ws}/link; {own_settings(ws / 'evil', mark)}"


def a_link_to_the_common_folder(ws: Path, mark: Path) -> str:
    repository(ws / "main")
    git(ws / "main", "worktree", "add", "-q", "../linked")
    git(ws / "main", "worktree", "add", "-q", "../other")
    (ws / "link").symlink_to("main")
    (ws / "main/.git/worktrees/linked/commondir").write_text(f"{ws}/link/.git\n")
    (ws / ".git").write_text("gitdir: main/.git/worktrees/linked\n")
    return f"ln -sfn evil {ws}/link; {own_settings(ws / 'evil', mark)}"


PLANTS = (
    a_new_bare_layout,
    a_bare_layout_around_an_unusable_repository,
    a_layout_whose_head_is_there,
    a_layout_whose_head_is_something_else,
    the_settings_of_a_bare_repository,
    the_repository_of_a_submodule,
    a_repository_for_a_submodule_without_one,
    a_repository_in_the_place_of_a_submodules_folder,
    a_repository_for_an_embedded_one,
    a_file_of_settings_that_is_included,
    a_file_of_settings_that_an_included_one_includes,
    a_link_to_the_repository,
    a_link_to_the_common_folder,
)


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("network", [False, True], ids=["offline", "online"])
def test_git_status_outside_runs_nothing_that_was_planted(
    rig: Rig, ws: Path, base: Path, plant: Plant, network: bool
) -> None:
    mark = base / "mark"
    script = plant(ws, mark)
    try:
        rig.run(workspace(ws, network=network), script)
    except InvalidRequest as error:
        assert "leads through the symbolic link" in str(error)  # noqa: PT017  either is right
    git(ws, "status")
    assert not mark.exists()
    # Without the sandbox the same script does it.
    subprocess.run(["/bin/sh", "-c", script], check=False, capture_output=True)
    git(ws, "status")
    assert mark.exists()


def test_linked_worktrees_in_the_workspace_are_protected_like_submodules(
    rig: Rig, ws: Path, base: Path
) -> None:
    repository(ws)
    git(ws, "worktree", "add", "-q", "trees/one")
    mark = base / "mark"
    script = own_settings(ws / "trees/one", mark)
    rig.run(workspace(ws), script)
    git(ws / "trees/one", "status")
    assert not mark.exists()
    subprocess.run(["/bin/sh", "-c", script], check=False, capture_output=True)
    git(ws / "trees/one", "status")
    assert mark.exists()


WORK = "cd {ws} && echo text > new && git status --short && git log --oneline && git diff HEAD && echo done"


def test_git_reads_inside_as_outside(rig: Rig, ws: Path) -> None:
    sub = with_submodule(ws)
    git(ws, "worktree", "add", "-q", "linked")
    for folder in (ws, sub, ws / "linked"):
        ran = rig.run(workspace(ws), WORK.format(ws=folder))
        assert ran.output.endswith("done\n"), ran
        assert "?? new" in ran.output
    plain = repository(ws.parent / "plain")
    assert "?? new" in rig.run(workspace(plain), WORK.format(ws=plain)).output


def test_a_commit_in_a_linked_worktree_needs_an_entry_for_the_repository_and_no_more(
    rig: Rig, ws: Path, base: Path
) -> None:
    repository(ws / "main")
    tree = ws / "tree"
    git(ws / "main", "worktree", "add", "-q", str(tree))
    commit = (
        f"cd {tree} && echo text > new && git add new && "
        "git -c user.name=x -c user.email=x@x commit -q -m second && echo done"
    )
    assert "done" not in rig.run(workspace(tree), commit).output
    assert "done" in rig.run(workspace(tree, (ws / "main/.git", WRITE)), commit).output
    assert "second" in git(tree, "log", "--oneline")


def test_a_file_in_a_bare_repository_can_be_opened_by_its_name(rig: Rig, ws: Path) -> None:
    git(ws, "init", "-q", "--bare")
    (ws / "inner").mkdir()
    script = f"echo 1 > {ws}/inner/n; echo 1 > {ws}/n; echo 1 > {ws}/objects/n"
    rig.run(workspace(ws, (ws / "inner", WRITE)), script)
    assert os.listdir(ws / "inner") == ["n"]
    assert not (ws / "n").exists()
    assert not (ws / "objects/n").exists()


def test_a_workspace_is_no_repository_even_while_the_command_that_makes_it_one_runs(
    rig: Rig, ws: Path, base: Path
) -> None:
    mark, go = base / "mark", ws / "go"
    script = f"{bare_layout(ws, mark)}; touch {ws}/made; while ! test -e {go}; do sleep 0.02; done"
    command = threading.Thread(target=rig.run, args=(workspace(ws), script))
    command.start()
    wait_for(lambda: (ws / "made").exists() and not (ws / "HEAD").exists(), "the new name of HEAD")
    git(ws, "status")
    go.touch()
    command.join()
    assert not mark.exists()
    (renamed,) = ws.glob("HEAD.*")
    assert renamed.read_text() == "ref: refs/heads/main\n"


@pytest.mark.parametrize("last", ["HEAD", "objects", "refs"])
@pytest.mark.parametrize("way", ["made", "moved", "written later"])
def test_a_workspace_that_becomes_a_repository_is_reverted(rig: Rig, ws: Path, last: str, way: str) -> None:
    names = sorted(("HEAD", "objects", "refs"), key=lambda name: name == last)
    make = {"HEAD": "echo ref: refs/heads/x > {0}", "objects": "mkdir {0}", "refs": "mkdir {0}"}
    steps = [make[name].format(name) for name in names]
    if way == "written later" and last != "HEAD":
        steps = ["exec 3> HEAD", *(make[name].format(name) for name in names if name != "HEAD"), "sleep 0.2"]
        steps.append("echo ref: refs/heads/x >&3")
    if way == "moved":
        steps[-1] = f"mkdir x; (cd x && {steps[-1]}); mv x/{last} {last}"
    rig.run(workspace(ws), f"cd {ws}; " + "; ".join(steps))
    assert not (ws / "HEAD").exists()
    assert len(list(ws.glob("HEAD.*"))) == 1


def test_a_folder_that_is_no_repository_keeps_its_head(rig: Rig, ws: Path, base: Path) -> None:
    rig.run(workspace(ws), f"cd {ws}; mkdir objects; echo of this project > HEAD; mkdir -p sub/refs")
    assert (ws / "HEAD").read_text() == "of this project\n"
    plain = repository(base / "plain")
    rig.run(workspace(plain), f"cd {plain}; mkdir objects refs; echo ref: refs/heads/main > HEAD")
    assert (plain / "HEAD").exists(), "git finds the .git first"


def test_nothing_is_seen_of_the_watch(rig: Rig, ws: Path, base: Path) -> None:
    assert rig.run(workspace(ws), f"ls {ws}").output == ""
    assert rig.build_view(workspace(ws)).bare_roots == (str(ws),)
    plain = repository(base / "plain")
    assert rig.build_view(workspace(plain)).bare_roots == ()
    (ws / ".git").mkdir()
    assert rig.build_view(workspace(ws, (ws / ".git", WRITE))).bare_roots == ()
    assert rig.build_view(policy(("/", READ))).bare_roots == ()


def test_a_root_of_several_commands_is_watched_until_the_last_one_ends(ws: Path) -> None:
    watch = BareRoots()
    before = len(os.listdir("/proc/self/fd"))
    first, second = watch.watch([str(ws), str(ws)]), watch.watch([str(ws)])
    first.release()
    first.release()
    for name in ("objects", "refs"):
        (ws / name).mkdir()
    (ws / "HEAD").write_text("ref: refs/heads/x\n")
    wait_for(lambda: not (ws / "HEAD").exists(), "the new name of HEAD")
    second.release()
    (ws / "HEAD").write_text("ref: refs/heads/x\n")
    watch.close()
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before, "the end of the watch")
    assert (ws / "HEAD").exists()


def test_folders_that_are_watched_again_are_looked_at_once_and_others_at_their_paths_are_not(
    ws: Path, base: Path
) -> None:
    other, gone = base / "other", base / "gone"
    for folder in (other, gone):
        folder.mkdir()
    watch = BareRoots()
    first = watch.watch([str(ws), str(other), str(gone)])
    known = first.folders
    first.release()
    other.rename(base / "moved")
    gone.rmdir()
    for folder in (ws, other):
        for name in ("objects", "refs"):
            (folder / name).mkdir(parents=True)
        (folder / "HEAD").write_text("ref: refs/heads/x\n")
    second = watch.watch_again(known)
    assert second.folders == known[:1]
    assert not (ws / "HEAD").exists()
    assert (other / "HEAD").exists()
    second.release()
    watch.close()


def test_a_new_server_watches_the_roots_of_the_commands_of_one_that_stored_none(ws: Path, base: Path) -> None:
    plain = repository(base / "plain")
    bare = base / "bare"
    bare.mkdir()
    git(bare, "init", "-q", "--bare")
    limits = policy(("/", READ), (ws, WRITE), (plain, WRITE), (bare, WRITE), (base / "missing", WRITE))
    assert candidates(limits) == [str(ws)]


def test_where_nothing_can_be_watched_the_end_of_the_command_undoes_it(
    ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> int:
        raise OSError(errno.EMFILE, "no instance is left")

    monkeypatch.setattr("execserver.inotify.open_inotify", full)
    watched = BareRoots().watch([str(ws)])
    for name in ("objects", "refs"):
        (ws / name).mkdir()
    (ws / "HEAD").write_text("ref: refs/heads/x\n")
    watched.release()
    assert not (ws / "HEAD").exists()


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("many", [False, True], ids=["few", "split"])
def test_submodules_are_found_in_every_form_of_an_index(ws: Path, version: str, many: bool) -> None:
    sub = with_submodule(ws)
    for number in range(40):
        (ws / f"file with a long name {number}").write_text("x")
        (ws / "mod" / f"{number}").write_text("x")
    git(ws, "add", ".")
    if version == "3":
        (ws / "later").write_text("x")
        git(ws, "add", "--intent-to-add", "later")
    git(ws, "update-index", "--index-version", "4" if version == "4" else "2")
    if many:
        git(ws, "update-index", "--split-index")
    assert (ws / ".git/index").read_bytes()[7] == int(version) or many
    assert str(sub) in set(git_files.submodules(str(ws), f"{ws}/.git", f"{ws}/.git"))
    shutil.rmtree(ws / ".git/modules")
    assert set(git_files.submodules(str(ws), f"{ws}/.git", f"{ws}/.git")) == {str(sub)}


def test_submodules_are_found_by_long_digests_too(ws: Path) -> None:
    if "unknown" in git(ws, "init", "-q", "--object-format=sha256"):
        pytest.skip("this git has no SHA-256")
    digest = "a" * 64
    for path in ("one", "two/three"):
        git(ws, "update-index", "--add", "--cacheinfo", f"160000,{digest},{path}")
    found = set(git_files.submodules(str(ws), f"{ws}/.git", f"{ws}/.git"))
    assert found == {f"{ws}/one", f"{ws}/two/three"}


@pytest.mark.parametrize("cut", [0, 11, 12, 40, 70, 90])
def test_an_index_that_is_cut_names_what_it_can(ws: Path, cut: int) -> None:
    with_submodule(ws)
    shutil.rmtree(ws / ".git/modules")
    index = ws / ".git/index"
    index.write_bytes(index.read_bytes()[:cut])
    assert list(git_files.submodules(str(ws), f"{ws}/.git", f"{ws}/.git")) == []


def test_too_many_submodules_are_refused_with_the_way_out(rig: Rig, ws: Path) -> None:
    repository(ws)
    for number in range(300):
        folder = ws / f".git/modules/m{number}"
        folder.mkdir(parents=True)
        (folder / "HEAD").write_text("ref: refs/heads/main\n")
        (folder / "config").write_text(f"[core]\n\tworktree = ../../../m{number}\n")
        (ws / f"m{number}").mkdir()
        (ws / f"m{number}/.git").write_text(f"gitdir: ../.git/modules/m{number}\n")
    with pytest.raises(InvalidRequest, match=r"more than 256 submodules.*make folders below it writable"):
        rig.build_view(workspace(ws))
