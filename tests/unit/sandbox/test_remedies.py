"""Each refusal names a fix: the test reads it from the message, applies it, and the workspace works."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from execprotocol.errors import InvalidRequest
from execserver.sandbox.policy import Access, Policy, Rule
from tests.unit.sandbox.rig import DENY, READ, WRITE, Rig, policy, workspace
from tests.unit.sandbox.test_git_files import git, repository, with_submodule

PATH = r"(/[^\s,:]+)"
GRANTS = re.compile(
    rf"an entry with access `write` for {PATH}(?: if commands may change it, and one for {PATH} to commit)?"
)
MOVED = re.compile(
    rf"(?:through the symbolic link {PATH}, |{PATH} is a symbolic link, )"
    ".*replace (?:it|the link) by its target"
)
NAMED = re.compile(rf"sandbox: {PATH} leads through .*name what it leads to, {PATH}")
TO_COMMIT = "git add -A && git -c user.name=x -c user.email=x@x commit -q -m second && echo done"


@pytest.fixture
def ws(base: Path) -> Path:
    folder = base / "ws"
    folder.mkdir()
    return folder


def refusal_of(rig: Rig, limits: Policy) -> str | None:
    try:
        rig.build_view(limits)
    except InvalidRequest as refusal:
        return str(refusal)
    return None


def message(rig: Rig, limits: Policy) -> str:
    text = refusal_of(rig, limits)
    assert text is not None
    return text


def with_grants(rig: Rig, limits: Policy) -> Policy:
    """The policy, with the grants that its refusals name, one after the other."""
    rules = list(limits.rules)
    for _ in range(5):
        text = refusal_of(rig, policy(*rules))
        if text is None:
            return policy(*rules)
        named = GRANTS.search(text)
        assert named is not None, text
        rules += [Rule(path, Access.WRITE) for path in named.groups() if path is not None]
    raise AssertionError("the grants that are named do not help")


def put_in_place(text: str) -> None:
    """Replace the link that a message names by its target."""
    named = MOVED.search(text)
    assert named is not None, text
    link = Path(named[1] or named[2])
    target = os.path.realpath(link)
    link.unlink()
    shutil.move(target, link)


NAMES = (".codex", ".agents", ".aws", ".git")
LINKS: dict[str, Callable[[Path, Path], str]] = {
    "of dotfiles, relative as stow makes it": lambda base, ws: "../dotfiles/thing",
    "to an absolute path": lambda base, ws: f"{base}/dotfiles/thing",
    "within the workspace": lambda base, ws: "kept/thing",
    "by another link": lambda base, ws: "hop",
    "that leads nowhere": lambda base, ws: "/nowhere/thing",
}


def linked(base: Path, ws: Path, name: str, kind: str) -> None:
    for folder in (base / "dotfiles/thing", ws / "kept/thing"):
        folder.mkdir(parents=True)
        (folder / "settings").write_text("mine\n")
    (ws / "hop").symlink_to("../dotfiles/thing")
    (ws / name).symlink_to(LINKS[kind](base, ws))


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_workspace_with_a_link_works_with_the_grants_that_the_refusal_names(
    rig: Rig, base: Path, ws: Path, name: str, kind: str
) -> None:
    linked(base, ws, name, kind)
    ran = rig.run(with_grants(rig, workspace(ws)), f"echo text > {ws}/new && cat {ws}/new; cat {ws}/{name}/*")
    assert ran.output.startswith("text\n")
    assert ("mine" in ran.output) == (kind != "that leads nowhere")
    # The link is open now; what it leads to outside is as before.
    rig.run(with_grants(rig, workspace(ws)), f"echo x > {base}/dotfiles/thing/planted")
    is_granted = name == ".git" and kind not in ("within the workspace", "that leads nowhere")
    assert (base / "dotfiles/thing/planted").exists() == is_granted


@pytest.mark.parametrize("kind", [kind for kind in LINKS if kind != "that leads nowhere"])
@pytest.mark.parametrize("name", NAMES)
def test_a_workspace_with_a_link_works_with_what_it_leads_to_in_its_place(
    rig: Rig, base: Path, ws: Path, name: str, kind: str
) -> None:
    linked(base, ws, name, kind)
    put_in_place(message(rig, workspace(ws)))
    script = f"echo text > {ws}/new && cat {ws}/new {ws}/{name}/settings; echo x > {ws}/{name}/planted"
    assert rig.run(workspace(ws), script).output.startswith("text\nmine\n")
    assert not (ws / name / "planted").exists()


def test_a_monorepo_whose_git_is_a_link_takes_commits_with_the_grants_that_the_refusal_names(
    rig: Rig, base: Path, ws: Path
) -> None:
    shutil.move(repository(ws) / ".git", base / "store.git")
    (ws / ".git").symlink_to("../store.git")
    commit = f"cd {ws} && echo text > new && {TO_COMMIT}"
    named = GRANTS.search(message(rig, workspace(ws)))
    assert named is not None
    assert named.groups() == (f"{ws}/.git", f"{base}/store.git")
    assert "done" not in rig.run(workspace(ws, (named[1], WRITE)), commit).output
    assert "done" in rig.run(with_grants(rig, workspace(ws)), commit).output
    assert "second" in git(ws, "log", "--oneline")


def test_several_links_need_one_grant_each(rig: Rig, base: Path, ws: Path) -> None:
    for name in NAMES[:3]:
        (base / "dotfiles" / name).mkdir(parents=True)
        (ws / name).symlink_to(f"../dotfiles/{name}")
    limits = with_grants(rig, workspace(ws))
    assert {rule.path for rule in limits.rules} >= {f"{ws}/{name}" for name in NAMES[:3]}
    assert rig.run(limits, f"echo text > {ws}/new && cat {ws}/new").output == "text\n"


def test_a_link_on_the_way_to_a_repository_is_put_right_as_the_refusal_says(
    rig: Rig, base: Path, ws: Path
) -> None:
    repository(ws / "store")
    (ws / "way").symlink_to("store")
    (ws / ".git").write_text("gitdir: way/.git\n")
    put_in_place(message(rig, workspace(ws)))
    ran = rig.run(workspace(ws), f"cd {ws} && git log --oneline; echo x > way/.git/planted")
    assert "first" in ran.output
    assert not (ws / "way/.git/planted").exists()


@pytest.mark.parametrize("access", [READ, DENY])
def test_an_entry_through_a_link_holds_for_what_the_refusal_names(
    rig: Rig, base: Path, ws: Path, access: Access
) -> None:
    (ws / "real").mkdir()
    (ws / "real/file").write_text("kept\n")
    (ws / "link").symlink_to("real")
    named = NAMED.search(message(rig, workspace(ws, (ws / "link", access))))
    assert named is not None
    assert named[1] == f"{ws}/link"
    limits = workspace(ws, (named[2], access))
    ran = rig.run(limits, f"echo x > {ws}/new; echo x > {ws}/link/file; cat {ws}/link/file")
    assert (ws / "new").exists()
    assert (ws / "real/file").read_text() == "kept\n"
    assert ("kept" in ran.output) == (access is READ)


def test_a_root_through_a_link_is_writable_by_the_name_that_the_refusal_gives(
    rig: Rig, base: Path, ws: Path
) -> None:
    (base / "link").symlink_to(ws)
    named = NAMED.search(message(rig, workspace(base / "link")))
    assert named is not None
    assert rig.run(workspace(named[2]), f"echo text > {base}/link/new; cat {ws}/new").output == "text\n"


@pytest.mark.parametrize("where", ["beside", "inside"])
def test_a_commit_in_a_linked_worktree_works_with_a_grant_for_the_repository(
    rig: Rig, base: Path, ws: Path, where: str
) -> None:
    repository(ws)
    tree = ws / "trees/one" if where == "inside" else base / "one"
    git(ws, "worktree", "add", "-q", str(tree))
    commit = f"cd {tree} && echo text > new && {TO_COMMIT}"
    refusal = rig.run(workspace(tree), commit)
    assert "done" not in refusal.output
    # Git names a file of the repository that it could not write.
    named = re.search(rf"'?({re.escape(str(ws))}/\.git)/\S+: Read-only file system", refusal.output)
    assert named is not None, refusal
    assert "done" in rig.run(workspace(tree, (named[1], WRITE)), commit).output
    assert "second" in git(tree, "log", "--oneline")


def test_a_commit_in_a_submodule_works_with_a_grant_for_its_repository(
    rig: Rig, base: Path, ws: Path
) -> None:
    sub = with_submodule(ws)
    commit = f"cd {sub} && echo text > new && {TO_COMMIT}"
    refusal = rig.run(workspace(ws), commit)
    assert "done" not in refusal.output
    named = re.search(rf"({re.escape(str(ws))}/\.git/modules/\S+)/index.lock': Read-only", refusal.output)
    assert named is not None, refusal
    assert "done" in rig.run(workspace(ws, (named[1], WRITE)), commit).output
    assert "second" in git(sub, "log", "--oneline")
    # The repository around it is as closed as before, and opened by its own name with all that is in it.
    around = f"cd {ws} && git add -A && git -c user.name=x -c user.email=x@x commit -q -m outer && echo done"
    assert "done" not in rig.run(workspace(ws, (named[1], WRITE)), around).output
    for folder in (sub, ws):
        again = f"cd {folder} && date > more && {TO_COMMIT}"
        assert "done" in rig.run(workspace(ws, (ws / ".git", WRITE)), again).output
