"""A policy that cannot be enforced is refused with a helpful message, and the command does not run."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import (
    DISABLED,
    READ_ROOT,
    WORKSPACE,
    WRITE_WORKSPACE,
    at,
    glob,
    restricted,
    unrestricted,
)
from tests.support.wire import Json, ReplyError, encode, path_uri

UNCONFINED = """\
#!/bin/sh
# Runs whatever it is given, without a sandbox.
case " $* " in *" --version "* | *" --help "*) exec {bwrap} "$@" ;; esac
while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
BROKEN = """\
#!/bin/sh
case " $* " in *" --version "* | *" --help "*) exec {bwrap} "$@" ;; esac
echo "bwrap: No permissions to create new namespace" >&2
exit 1
"""


def refusal(host: Host, tree: Tree, sandbox: Json) -> ReplyError:
    """The error that a confined command gets; it must not have run."""
    mark = tree.ws / "ran"
    params = host.client.start_params(
        ["/bin/touch", str(mark)], sandbox=sandbox, cwd=path_uri(tree.ws), env=tree.env
    )
    failure = host.client.refused("process/start", params)
    assert not mark.exists()
    return failure


def must_refuse(host: Host) -> ReplyError:
    """Every request that needs a sandbox is refused, and every other one served."""
    tree = host.tree()
    sandbox = tree.context(WORKSPACE)
    failure = refusal(host, tree, sandbox)
    assert failure.code == -32600
    assert failure.message.startswith("failed to prepare process sandbox: ")
    assert refusal(host, tree, tree.context(restricted(READ_ROOT))).code == -32600
    write = {"path": path_uri(tree.ws / "new"), "dataBase64": encode("x"), "sandbox": sandbox}
    assert host.client.refused("fs/writeFile", write).code == -32600
    read = {"path": path_uri(tree.ws / "a.txt"), "sandbox": sandbox}
    assert host.client.refused("fs/readFile", read).code == -32600
    assert not (tree.ws / "new").exists()
    assert "ws/.agents" not in tree.listing()

    assert host.shell(tree, "echo free").output == b"free\n"
    assert host.shell(tree, "echo free", tree.context(DISABLED)).output == b"free\n"
    assert host.shell(tree, "echo free", tree.context(unrestricted("enabled"))).output == b"free\n"
    return failure


def with_program(folder: Path, text: str) -> tuple[str, str]:
    """The flag that names this script as bubblewrap."""
    program = folder / "bwrap"
    program.write_text(text.format(bwrap=shutil.which("bwrap")))
    program.chmod(0o755)
    return "--bubblewrap", str(program)


def without_bubblewrap() -> list[str]:
    """A command that execs another on a machine without bubblewrap."""
    folders = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
    programs = {
        os.path.realpath(f"{folder}/bwrap") for folder in folders if os.path.exists(f"{folder}/bwrap")
    }
    hide = "".join(f"mount --bind /dev/null {shlex.quote(program)} && " for program in sorted(programs))
    own = ["--propagation", "private"] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", "--mount", *own, "/bin/sh", "-c", f'{hide} exec "$@"', "sh"]


def test_missing_bubblewrap_is_refused_with_the_way_to_get_it(make_host: Callable[..., Host]) -> None:
    message = must_refuse(make_host(prefix=without_bubblewrap())).message
    assert "bubblewrap" in message
    assert "install" in message


def test_bubblewrap_that_is_configured_but_missing_is_named(
    make_host: Callable[..., Host], tmp_path: Path
) -> None:
    message = must_refuse(make_host("--bubblewrap", str(tmp_path / "none"))).message
    assert str(tmp_path / "none") in message


def test_bubblewrap_that_does_not_confine_is_refused(make_host: Callable[..., Host], tmp_path: Path) -> None:
    assert "confine" in must_refuse(make_host(*with_program(tmp_path, UNCONFINED))).message


def test_bubblewrap_that_may_make_no_namespace_is_refused(
    make_host: Callable[..., Host], tmp_path: Path
) -> None:
    assert "namespace" in must_refuse(make_host(*with_program(tmp_path, BROKEN))).message


def test_denying_the_working_directory_is_refused(host: Host, tree: Tree) -> None:
    for denied in (tree.ws, tree.base):
        sandbox = tree.context(restricted(READ_ROOT, at(denied, "deny")))
        failure = refusal(host, tree, sandbox)
        assert failure.code in (-32600, -32602)
        assert f"the working directory {tree.ws} cannot be read" in failure.message


def test_denying_below_what_is_written_is_no_reason_to_refuse(host: Host, tree: Tree) -> None:
    sandbox = tree.context(restricted(READ_ROOT, WRITE_WORKSPACE, at(tree.ws / "sub", "deny"), glob("*.txt")))
    assert host.shell(tree, "! cat a.txt && ! ls sub/deep && echo x > new", sandbox).exit_code == 0


def test_protected_name_that_is_a_link_is_refused_by_its_name(host: Host, tree: Tree) -> None:
    (tree.ws / ".codex/config.toml").unlink()
    (tree.ws / ".codex").rmdir()
    tree.add({"ws/settings/config.toml": "x\n"}, {"ws/.codex": "settings"})
    before = tree.listing()
    failure = refusal(host, tree, tree.context(WORKSPACE))
    assert failure.code == -32600
    assert f"{tree.ws}/.codex is a symbolic link" in failure.message
    assert tree.listing() == before


@pytest.mark.parametrize("member", ["cwd", "workspaceRoots"])
def test_path_that_is_no_uri_is_refused_by_its_member(host: Host, tree: Tree, member: str) -> None:
    wrong = "/srv/work" if member == "cwd" else ["/srv/work"]
    failure = refusal(host, tree, tree.context(WORKSPACE) | {member: wrong})
    assert failure.code == -32602


def test_older_kind_of_sandbox_is_refused(host: Host, tree: Tree) -> None:
    failure = refusal(host, tree, tree.context(WORKSPACE, useLegacyLandlock=True))
    assert "useLegacyLandlock" in failure.message
