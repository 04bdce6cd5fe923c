"""Sandbox contexts: how they are read, what their entries grant, and what is refused."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.sandbox.profiles import (
    DISABLED,
    MINIMAL,
    READ_ONLY,
    READ_ROOT,
    WORKSPACE,
    WRITE_WORKSPACE,
    at,
    context,
    glob,
    restricted,
    special,
    unrestricted,
)
from tests.support.wire import PATIENCE, Client, Json, Process, path_uri

PREFIX = "failed to prepare process sandbox: "

LIMITS_NOTHING = [
    DISABLED,
    {"type": "external", "network": "enabled"},
    unrestricted("enabled"),
    restricted(special("root", "write"), network="enabled"),
]


@pytest.fixture
def ws(here: Path) -> Path:
    """A workspace; beside it is `out`."""
    (here / "out").mkdir()
    (here / "out/file").write_text("outside\n")
    (here / "ws").mkdir()
    (here / "ws/file").write_text("inside\n")
    return here / "ws"


def confined(client: Client, ws: Path, script: str, *entries: Json, **members: Json) -> Process:
    """Run a script to its end; the host can be read and the workspace written, as far as entries let."""
    sandbox = context(restricted(READ_ROOT, WRITE_WORKSPACE, *entries), cwd=ws, roots=[ws], **members)
    return client.shell(script, cwd=path_uri(ws), sandbox=sandbox).wait_closed()


def refusal(client: Client, ws: Path, *entries: Json) -> tuple[int, str]:
    """The error of a start, with the same limits."""
    sandbox = context(restricted(READ_ROOT, WRITE_WORKSPACE, *entries), cwd=ws, roots=[ws])
    params = client.start_params(["/bin/true"], cwd=path_uri(ws), sandbox=sandbox)
    failure = client.refused("process/start", params)
    return failure.code, failure.message


def wait_for_names(folder: Path, wanted: list[str]) -> None:
    """Wait until a folder holds these names: what a sandbox put there is removed behind its last event."""
    deadline = time.monotonic() + PATIENCE
    while (names := sorted(os.listdir(folder))) != wanted:
        assert time.monotonic() < deadline, names
        time.sleep(0.02)


# -- contexts


@pytest.mark.statement("C1")
@pytest.mark.parametrize("method", ["process/start", "fs/getMetadata"])
@pytest.mark.parametrize(
    "wrong",
    [
        5,
        {},
        {"permissions": DISABLED},
        {"permissions": DISABLED, "windowsSandboxLevel": "x"},
        {"permissions": {"type": "zz"}, "windowsSandboxLevel": "disabled"},
        {"permissions": {"type": "managed", "network": "enabled"}, "windowsSandboxLevel": "disabled"},
        {"permissions": DISABLED, "windowsSandboxLevel": "disabled", "cwd": "/tmp"},
        {"permissions": DISABLED, "windowsSandboxLevel": "disabled", "workspaceRoots": None},
        context(restricted({"path": {"type": "path", "path": "/tmp"}, "access": "read"})),
        context(restricted({"path": {"type": "glob_pattern", "pattern": "x"}, "access": "execute"})),
        context({**READ_ONLY, "file_system": {**READ_ONLY["file_system"], "glob_scan_max_depth": 0}}),
        context(restricted(special("somewhere", "read"))),
    ],
)
def test_context_that_does_not_decode(client: Client, method: str, wrong: Json) -> None:
    params = {"path": "file:///"} if method == "fs/getMetadata" else client.start_params(["/bin/true"])
    assert client.refused(method, {**params, "sandbox": wrong}).code == -32602


@pytest.mark.statement("C1")
def test_paths_of_other_hosts_are_no_parameters(client: Client) -> None:
    for sandbox in (
        context(restricted({"path": {"type": "path", "path": "file://elsewhere/x"}, "access": "read"})),
        context(READ_ONLY, workspaceRoots=["file:///C:/x"]) | {"permissions": restricted(WRITE_WORKSPACE)},
    ):
        failure = client.refused("process/start", client.start_params(["/bin/true"], sandbox=sandbox))
        assert failure.code == -32602
        assert "is invalid on 'linux'" in failure.message


@pytest.mark.everywhere
@pytest.mark.statement("C2", "P1", "X6")
@pytest.mark.parametrize("permissions", LIMITS_NOTHING)
def test_context_without_limits_runs_plain(endpoint: Endpoint, here: Path, permissions: Json) -> None:
    client = endpoint.connect(extensions=True)
    sandbox = context(permissions, cwd=here, useLegacyLandlock=False)
    process = client.shell("echo free > file", cwd=path_uri(here), sandbox=sandbox)
    assert process.started["sandboxType"] == "linuxSeccomp"
    assert process.started["sandboxBackend"] == "none"
    assert process.wait_closed().exit_code == 0
    content = client.call("fs/readFile", {"path": path_uri(here / "file"), "sandbox": sandbox})
    assert content == {"dataBase64": "ZnJlZQo="}


@pytest.mark.everywhere
@pytest.mark.statement("C3", "P1")
def test_limited_command_is_confined(client: Client, ws: Path) -> None:
    process = confined(client, ws, "echo new > made && echo new > ../out/made")
    assert process.started["sandboxType"] == "linuxSeccomp"
    assert process.exit_code
    assert b"Read-only file system" in process.output
    assert (ws / "made").read_text() == "new\n"
    assert not (ws.parent / "out/made").exists()


@pytest.mark.statement("C3", "C4")
def test_without_a_program_to_confine_it_nothing_is_run(endpoint: Endpoint, ws: Path) -> None:
    client = endpoint.private("--bubblewrap", "/nonexistent/bwrap").connect()
    for permissions in (READ_ONLY, WORKSPACE, MINIMAL):
        sandbox = context(permissions, cwd=ws, roots=[ws])
        params = client.start_params(["/bin/touch", str(ws / "made")], processId="p", sandbox=sandbox)
        failure = client.refused("process/start", params)
        assert failure.code == -32600
        assert failure.message.startswith(PREFIX)
        assert "/nonexistent/bwrap" in failure.message
        assert client.refused("process/read", {"processId": "p"}).message == "unknown process id p"
        written = {"path": path_uri(ws / "made"), "dataBase64": "", "sandbox": sandbox}
        failure = client.refused("fs/writeFile", written)
        assert failure.code == -32600
        assert failure.message.startswith(PREFIX)
    assert not (ws / "made").exists()


@pytest.mark.transports("unix/standard", "ws/standard")
@pytest.mark.statement("C3", "J7")
def test_programs_can_tell_the_two_kinds_of_refusal(endpoint: Endpoint, ws: Path) -> None:
    unable = endpoint.private("--bubblewrap", "/nonexistent/bwrap").connect()
    sandbox = context(READ_ONLY)
    reply = unable.reply(unable.request("process/start", unable.start_params(["/bin/true"], sandbox=sandbox)))
    assert reply["error"]["data"]["code"] == "sandbox_unavailable"
    client = endpoint.connect()
    sandbox = context(MINIMAL, cwd=ws, roots=[ws])
    params = client.start_params(["/bin/true"], cwd=path_uri(ws.parent / "out"), sandbox=sandbox)
    reply = client.reply(client.request("process/start", params))
    assert reply["error"]["data"] == {"code": "sandbox_refused", "field": "cwd"}


@pytest.mark.statement("C6")
@pytest.mark.parametrize("permissions", [DISABLED, WORKSPACE])
def test_a_managed_network_needs_a_proxy_in_a_sandbox(client: Client, ws: Path, permissions: Json) -> None:
    sandbox = context(permissions, cwd=ws, roots=[ws])
    params = client.start_params(["/bin/touch", str(ws / "made")], enforceManagedNetwork=True)
    failure = client.refused("process/start", {**params, "sandbox": sandbox})
    assert failure.code == -32602
    assert "enforceManagedNetwork" in failure.message
    assert not (ws / "made").exists()


@pytest.mark.statement("C6")
def test_a_managed_network_means_nothing_without_a_sandbox(client: Client, ws: Path) -> None:
    assert client.start("/bin/true", enforceManagedNetwork=True).wait_closed().exit_code == 0


@pytest.mark.statement("C7")
def test_the_older_kind_of_sandbox_is_refused_where_files_are_limited(client: Client, ws: Path) -> None:
    sandbox = context(WORKSPACE, cwd=ws, roots=[ws], useLegacyLandlock=True)
    params = client.start_params(["/bin/touch", str(ws / "made")], sandbox=sandbox)
    for method, request in (
        ("process/start", params),
        ("fs/writeFile", {"path": path_uri(ws / "made"), "dataBase64": "", "sandbox": sandbox}),
    ):
        failure = client.refused(method, request)
        assert failure.code == -32600
        assert "useLegacyLandlock" in failure.message
    assert not (ws / "made").exists()
    unlimited = context(LIMITS_NOTHING[0], cwd=ws, useLegacyLandlock=True)
    assert client.start("/bin/true", sandbox=unlimited).wait_closed().exit_code == 0


# -- entries


@pytest.mark.statement("C10")
def test_the_deepest_entry_wins(client: Client, ws: Path) -> None:
    (ws / "closed/open").mkdir(parents=True)
    (ws / "hidden").mkdir()
    (ws / "hidden/file").write_text("hidden\n")
    process = confined(
        client,
        ws,
        "echo 1 > a; echo 2 > closed/a; echo 3 > closed/open/a; cat hidden/file",
        # In this order on purpose: it means nothing.
        at(ws / "closed/open", "write"),
        at(ws / "closed", "read"),
        at(ws / "hidden", "deny"),
    )
    assert (ws / "a").exists()
    assert not (ws / "closed/a").exists()
    assert (ws / "closed/open/a").exists()
    assert b"hidden\n" not in process.output


@pytest.mark.statement("C10")
@pytest.mark.parametrize(
    ("accesses", "read", "written"),
    [
        (("read", "write"), True, True),
        (("write", "deny", "read"), False, False),
        (("none", "write"), False, False),
        (("read", "none"), False, False),
    ],
)
def test_of_two_entries_for_one_path_denial_wins_then_writing(
    client: Client, ws: Path, accesses: tuple[str, ...], read: bool, written: bool
) -> None:
    out = ws.parent / "out"
    entries = [at(out, access) for access in accesses]
    process = confined(client, ws, "cat ../out/file; echo x > ../out/made", *entries)
    assert (b"outside\n" in process.output) is read
    assert (out / "made").exists() is written


@pytest.mark.statement("C10", "C22")
def test_what_no_entry_names_is_not_there(client: Client, ws: Path) -> None:
    sandbox = context(MINIMAL, cwd=ws, roots=[ws])
    script = f"cat file; ls {ws.parent}; cat ../out/file; mkdir /new || echo kept"
    process = client.shell(script, cwd=path_uri(ws), sandbox=sandbox).wait_closed()
    assert process.log.streams["stdout"] == b"inside\nws\nkept\n"
    assert b"No such file or directory" in process.output


@pytest.mark.statement("C11")
def test_roles_stand_for_folders_of_the_context_and_of_the_command(client: Client, ws: Path) -> None:
    folders = {name: ws.parent / name for name in ("cwd", "one", "two", "temp")}
    for folder in folders.values():
        folder.mkdir()
    permissions = restricted(
        READ_ROOT,
        special("current_working_directory", "write"),
        WRITE_WORKSPACE,
        special("tmpdir", "write"),
        special("unknown", "write", path=":future"),
    )
    process = client.shell(
        f"for folder in cwd one two temp ws out; do echo x > {ws.parent}/$folder/made; done",
        cwd=path_uri(ws),
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folders["temp"])},
        sandbox=context(permissions, cwd=folders["cwd"], roots=[folders["one"], folders["two"]]),
    )
    process.wait_closed()
    assert {folder.parent.name for folder in ws.parent.glob("*/made")} == set(folders)


@pytest.mark.statement("C11")
def test_slash_tmp_is_tmp(client: Client, ws: Path) -> None:
    script = f"rmdir $(mktemp -d /tmp/conformance-XXXXXX) && echo wrote; echo x > {ws}/made"
    sandbox = context(restricted(READ_ROOT, special("slash_tmp", "write"), at(ws, "read")), cwd=ws)
    process = client.shell(script, cwd=path_uri(ws), sandbox=sandbox).wait_closed()
    assert process.log.streams["stdout"] == b"wrote\n"
    assert not (ws / "made").exists()


@pytest.mark.statement("C11")
def test_the_policy_context_stands_in_for_folders_of_the_context(client: Client, ws: Path) -> None:
    out = ws.parent / "out"
    place = {"cwd": path_uri(out), "workspaceRoots": [path_uri(out)]}
    confined(client, ws, "echo x > made; echo x > ../out/made", policyContext=place)
    assert not (ws / "made").exists()
    assert (out / "made").exists()


@pytest.mark.statement("C12")
def test_without_folders_their_roles_grant_nothing(client: Client, ws: Path) -> None:
    sandbox = context(restricted(READ_ROOT, WRITE_WORKSPACE, special("current_working_directory", "write")))
    process = client.shell("echo x > made; cat file", cwd=path_uri(ws), sandbox=sandbox).wait_closed()
    assert b"inside\n" in process.output
    assert not (ws / "made").exists()


@pytest.mark.statement("C13")
def test_a_subpath_stays_below_its_folder(client: Client, ws: Path) -> None:
    (ws / "sub").mkdir()
    sandbox = context(
        restricted(READ_ROOT, special("project_roots", "write", subpath="sub")), cwd=ws, roots=[ws]
    )
    client.shell("echo x > made; echo x > sub/made", cwd=path_uri(ws), sandbox=sandbox).wait_closed()
    assert (ws / "sub/made").exists()
    assert not (ws / "made").exists()
    for subpath in ("../out", "/etc", "sub/../../out"):
        code, message = refusal(client, ws, special("project_roots", "write", subpath=subpath))
        assert code == -32602
        assert subpath in message


@pytest.mark.statement("C14")
def test_a_missing_path_grants_nothing_and_cannot_be_made_where_it_is_closed(
    client: Client, ws: Path
) -> None:
    process = confined(
        client,
        ws,
        "mkdir ../out/later; mkdir closed; mkdir free && echo made",
        at(ws.parent / "out/later", "write"),
        at(ws / "closed", "deny"),
        {**at(ws / "free", "deny"), "missing_path_behavior": "skip"},
    )
    assert process.log.streams["stdout"] == b"made\n"
    assert os.listdir(ws.parent / "out") == ["file"]
    wait_for_names(ws, ["file", "free"])


@pytest.mark.statement("C15")
def test_a_link_that_commands_can_replace_grants_nothing(client: Client, ws: Path) -> None:
    (ws / "link").symlink_to(ws.parent / "out")
    process = confined(client, ws, "echo x > link/made", at(ws / "link", "write"))
    assert process.exit_code
    assert not (ws.parent / "out/made").exists()


@pytest.mark.statement("C15")
@pytest.mark.parametrize("access", ["read", "deny"])
def test_forbidding_something_behind_such_a_link_is_refused(client: Client, ws: Path, access: str) -> None:
    (ws / "link").symlink_to(ws.parent / "out")
    code, message = refusal(client, ws, at(ws / "link/file", access))
    assert code == -32600
    assert message.startswith(f"{PREFIX}{ws}/link/file leads through the symbolic link {ws}/link")


@pytest.mark.statement("C15")
@pytest.mark.parametrize("beyond", ["", "/deeper"])
def test_a_grant_through_a_link_of_the_users_own_is_refused_by_what_it_leads_to(
    client: Client, ws: Path, beyond: str
) -> None:
    out = ws.parent / "out"
    (out / "deeper").mkdir()
    (ws.parent / "link").symlink_to("out")
    code, message = refusal(client, ws, at(f"{ws.parent}/link{beyond}", "write"))
    assert code == -32600
    assert message.endswith(f"a command may have put there: name what it leads to, {out}{beyond}")
    confined(client, ws, f"echo x > {out}{beyond}/made", at(f"{out}{beyond}", "write"))
    assert (ws.parent / f"out{beyond}/made").exists()


@pytest.mark.statement("C16")
def test_patterns_deny_what_matches_at_the_start(client: Client, ws: Path) -> None:
    (ws / "deep/.hidden").mkdir(parents=True)
    for name in (".env", "deep/.env", "deep/.hidden/.env", "key1.pem", "keyx.pem", "a.crt", "a.key"):
        (ws / name).write_text(f"secret of {name}\n")
    process = confined(
        client,
        ws,
        "cat .env deep/.env deep/.hidden/.env key1.pem keyx.pem a.crt a.key;"
        " rm .env; mv deep/.env deep/b; echo later > deep/.hidden/new.env; cat deep/.hidden/new.env",
        glob("**/*.env"),
        glob("key[0-9].pem"),
        glob(f"{ws}/a.{{crt,key}}"),
    )
    assert process.log.streams["stdout"] == b"secret of keyx.pem\nlater\n"
    assert (ws / ".env").exists()
    assert (ws / "deep/.env").exists()


@pytest.mark.statement("C16")
def test_a_pattern_is_searched_as_deep_as_the_context_says(client: Client, ws: Path) -> None:
    (ws / "a/b").mkdir(parents=True)
    for name in ("x.env", "a/x.env", "a/b/x.env"):
        (ws / name).write_text(f"{name}\n")
    permissions = restricted(READ_ROOT, WRITE_WORKSPACE, glob("**/*.env"))
    permissions["file_system"]["glob_scan_max_depth"] = 2
    sandbox = context(permissions, cwd=ws, roots=[ws])
    process = client.shell("cat x.env a/x.env a/b/x.env", cwd=path_uri(ws), sandbox=sandbox).wait_closed()
    assert process.log.streams["stdout"] == b"a/b/x.env\n"


@pytest.mark.statement("C17")
def test_patterns_that_match_too_much_or_are_none_are_refused(client: Client, ws: Path) -> None:
    (ws / "many").mkdir()
    for number in range(513):
        (ws / "many" / f"{number}.env").touch()
    code, message = refusal(client, ws, glob("**/*.env"))
    assert code == -32600
    assert message.startswith(PREFIX)
    assert "256" in message
    deep = ws / "/".join(["d"] * 130)
    deep.mkdir(parents=True)
    code, message = refusal(client, ws, glob("**/*.pem"))
    assert code == -32600
    assert "128 folders" in message
    for pattern in ("{a", "[a"):
        code, message = refusal(client, ws, glob(pattern))
        assert code == -32600
        assert "is not closed" in message
    for entries in ([glob("{a,b}" * 9)], [glob("a" * 8193)], [glob(f"{number}*") for number in range(257)]):
        code, message = refusal(client, ws, *entries)
        assert code == -32600
        assert "more than 256" in message or "more than 8192 characters" in message


# -- protected names


@pytest.mark.statement("C18")
@pytest.mark.parametrize("name", [".git", ".agents", ".codex", ".aws"])
def test_protected_names_of_writable_roots_are_read_only(client: Client, ws: Path, name: str) -> None:
    (ws / name).mkdir()
    (ws / name / "config").write_text("kept\n")
    (ws / "sub" / name).mkdir(parents=True)
    script = (
        f"cat {name}/config; echo x > {name}/made; mv {name} other; rm -rf {name}; echo x > sub/{name}/made"
    )
    process = confined(client, ws, script)
    assert process.log.streams["stdout"] == b"kept\n"
    assert (ws / name / "config").read_text() == "kept\n"
    assert os.listdir(ws / name) == ["config"]
    assert (ws / "sub" / name / "made").exists()
    confined(client, ws, f"echo x > {name}/made", special("project_roots", "write", subpath=name))
    assert (ws / name / "made").exists()


@pytest.mark.statement("C18")
def test_missing_protected_names_cannot_be_made_and_nothing_is_left(client: Client, ws: Path) -> None:
    process = confined(client, ws, "mkdir .git; echo x > .git/hooks; ls -A; echo x > made; ls .git")
    assert b"\n.git\n" in process.output
    wait_for_names(ws, ["file", "made"])


@pytest.mark.statement("C19")
def test_a_git_file_and_the_repository_that_it_names_are_read_only(client: Client, ws: Path) -> None:
    (ws / "real").mkdir()
    (ws / ".git").write_text("gitdir: real\n")
    confined(client, ws, "echo gitdir: /tmp > .git; echo x > real/hook; echo x > made")
    assert (ws / ".git").read_text() == "gitdir: real\n"
    assert os.listdir(ws / "real") == []
    assert (ws / "made").exists()


@pytest.mark.statement("C19")
def test_a_protected_name_that_is_a_link_is_refused(client: Client, ws: Path) -> None:
    (ws / ".git").symlink_to("../out")
    code, message = refusal(client, ws)
    assert code == -32600
    assert message.startswith(f"{PREFIX}{ws}/.git is a symbolic link")


# -- what stands there instead


@pytest.mark.statement("C20")
def test_denied_things_keep_their_names_and_cannot_be_changed(client: Client, ws: Path) -> None:
    out = ws.parent / "out"
    (out / "folder").mkdir()
    (out / "folder/file").write_text("below\n")
    script = f"stat -c '%s %a %n' {out}/file; stat -c '%a %n' {out}/folder; cat {out}/file {out}/folder/file"
    process = confined(client, ws, script, at(out / "file", "deny"), at(out / "folder", "deny"))
    assert process.log.streams["stdout"] == f"0 0 {out}/file\n0 {out}/folder\n".encode()
    assert process.log.streams["stderr"].count(b"Permission denied") == 2
    assert stat.S_IMODE((out / "file").stat().st_mode)


@pytest.mark.statement("C21")
def test_what_is_the_daemons_own_is_not_shown(endpoint: Endpoint, here: Path, ws: Path) -> None:
    settings = here / "settings.toml"
    settings.write_text("log_level = 'info'\n")
    settings.chmod(0o600)
    flags = ("--config", str(settings), "--spool-dir", str(here / "state"))
    client = endpoint.private(*flags).connect()
    process = confined(client, ws, f"cat {settings} || ls {here}/state || echo neither")
    assert process.log.streams["stdout"] == b"neither\n"
