"""The view of a sandbox, tested from the inside, and attacks by commands on it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execprotocol.errors import InvalidRequest
from execserver.sandbox import glob_search, view
from execserver.sandbox.options import PACKAGES, DaemonPaths, executed, socket_addresses
from execserver.sandbox.policy import Access, Glob, Policy, Rule
from execserver.sandbox.view import Bind, Mask, RequiredPaths, Tmpfs, View, build_view
from tests.unit.sandbox.rig import DENY, READ, WRITE, Rig, deny, policy, same_things, workspace

GUARDED = (".git", ".agents", ".codex", ".aws")


@pytest.fixture
def ws(base: Path) -> Path:
    folder = base / "ws"
    folder.mkdir()
    (folder / "a.txt").write_text("content of a\n")
    return folder


@pytest.fixture
def out(base: Path) -> Path:
    folder = base / "out"
    folder.mkdir()
    (folder / "secret").write_text("hidden text\n")
    return folder


def mounts_at(view: View, path: Path | str) -> list[object]:
    return [mount for mount in view.mounts if mount.target == str(path)]


def ids(paths: list[str]) -> list[str]:
    return [path.strip("/").replace("/", "-") for path in paths]


# -- what is seen


def test_a_readable_root_with_a_workspace_can_be_written_to_there_and_nowhere_else(
    rig: Rig, ws: Path, out: Path
) -> None:
    ran = rig.run(workspace(ws), f"echo 1 > {ws}/new; echo 1 > {out}/new; cat {out}/secret")
    assert (ws / "new").read_text() == "1\n"
    assert not (out / "new").exists()
    assert "hidden text" in ran.output


@pytest.mark.parametrize("way", ["read", "deny", "pointer"])
def test_the_end_of_one_command_does_not_uncover_what_was_made_for_it_and_another_needs_too(
    rig: Rig, ws: Path, way: str
) -> None:
    missing = ws / "missing"
    limits = workspace(ws)
    if way == "pointer":
        (ws / ".git").write_text(f"gitdir: {missing}\n")
    else:
        limits = workspace(ws, (missing, READ if way == "read" else DENY))
    first = rig.mount_points.acquire(rig.build_view(limits).mount_points)
    assert missing.is_dir()  # the mount point of the first
    second = rig.mount_points.acquire(rig.build_view(limits).mount_points)

    first.release()

    assert missing.is_dir()
    second.release()
    assert not missing.exists()


def test_named_pipes_of_daemons_cannot_be_written_to_without_network(
    rig: Rig, ws: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "run/daemon/deep").mkdir(parents=True)
    pipes = [base / "run/control", base / "run/daemon/control"]
    for pipe in pipes:
        os.mkfifo(pipe)
    (base / "run/file").write_text("content\n")
    monkeypatch.setattr(view, "RUNTIME_FOLDERS", (str(base / "run"),))
    script = f"for pipe in {pipes[0]} {pipes[1]}; do echo order > $pipe; done; cat {base}/run/file"
    readers = [os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) for pipe in pipes]
    try:
        # Free, and confined but told that it may.
        subprocess.run(["sh", "-c", script], check=True, stdout=subprocess.DEVNULL)
        assert [os.read(reader, 100) for reader in readers] == [b"order\n", b"order\n"]
        ran = rig.run(workspace(ws, *((pipe, WRITE) for pipe in pipes)), script)
        assert [os.read(reader, 100) for reader in readers] == [b"order\n", b"order\n"], ran

        ran = rig.run(workspace(ws), script)

        assert "content\n" in ran.output
        assert [os.read(reader, 100) for reader in readers] == [b"", b""], ran
    finally:
        for reader in readers:
            os.close(reader)


def test_without_a_rule_for_the_root_nothing_else_is_there_and_the_root_cannot_be_written_to(
    rig: Rig, ws: Path, out: Path
) -> None:
    ran = rig.run(
        policy((ws, WRITE), minimal=True),
        f"cat {ws}/a.txt; ls {out} || echo unseen; ls -A {rig.state} || echo hidden; mkdir /n || echo closed",
    )
    assert "content of a" in ran.output
    assert "unseen" in ran.output
    assert "hidden" in ran.output
    assert "closed" in ran.output


def test_a_denied_file_keeps_its_name_and_is_empty_and_of_mode_000(rig: Rig, ws: Path, out: Path) -> None:
    ran = rig.run(
        workspace(ws, (out / "secret", DENY)),
        f"stat -c '%a %s' {out}/secret; cat {out}/secret || echo refused; "
        f"chmod 600 {out}/secret || echo kept",
    )
    assert ran.output.startswith("0 0\n")
    assert "refused" in ran.output
    assert "kept" in ran.output


def test_a_denied_folder_is_an_empty_one_of_mode_000(rig: Rig, ws: Path, out: Path) -> None:
    ran = rig.run(
        workspace(ws, (out, DENY)),
        f"stat -c %a {out}; ls {out} || echo unlisted; cat {out}/secret || echo refused; mkdir {out}/x",
    )
    assert ran.output.startswith("0\n")
    assert "unlisted" in ran.output
    assert "refused" in ran.output
    assert not (out / "x").exists()


def test_a_denied_folder_with_something_open_in_it_can_be_passed_and_not_listed_nor_written_to(
    rig: Rig, ws: Path
) -> None:
    (ws / "closed" / "open").mkdir(parents=True)
    (ws / "closed" / "f").write_text("hidden\n")
    ran = rig.run(
        workspace(ws, (ws / "closed", DENY), (ws / "closed" / "open", WRITE)),
        f"ls {ws}/closed || echo unlisted; cat {ws}/closed/f || echo absent; "
        f"echo 1 > {ws}/closed/n || echo unwritten; echo 1 > {ws}/closed/open/n",
    )
    assert "unlisted" in ran.output
    assert "absent" in ran.output
    assert "unwritten" in ran.output
    assert (ws / "closed" / "open" / "n").exists()


def test_a_folder_is_narrowed_and_opened_again_below(rig: Rig, ws: Path) -> None:
    (ws / "ro" / "rw").mkdir(parents=True)
    rig.run(
        workspace(ws, (ws / "ro", READ), (ws / "ro" / "rw", WRITE)),
        f"echo 1 > {ws}/ro/n; echo 1 > {ws}/ro/rw/n",
    )
    assert not (ws / "ro" / "n").exists()
    assert (ws / "ro" / "rw" / "n").exists()


def test_a_writable_root_that_is_missing_makes_nothing_writable(rig: Rig, ws: Path, out: Path) -> None:
    ran = rig.run(workspace(ws, (out / "later" / "x", WRITE)), f"mkdir {out}/later || echo closed")
    assert "closed" in ran.output
    assert sorted(os.listdir(out)) == ["secret"]


@pytest.mark.parametrize("access", [READ, DENY], ids=["read", "deny"])
def test_a_missing_read_only_path_cannot_be_created(rig: Rig, ws: Path, access: object) -> None:
    limits = workspace(ws, Rule(str(ws / "x" / "y"), READ if access is READ else DENY))
    ran = rig.run(limits, f"mkdir -p {ws}/x/y || echo closed; rmdir {ws}/x || echo stays")
    assert "closed" in ran.output
    assert "stays" in ran.output
    assert sorted(os.listdir(ws)) == ["a.txt"]


def test_a_path_that_may_be_missing_is_not_guarded(rig: Rig, ws: Path) -> None:
    rig.run(workspace(ws, Rule(str(ws / "x"), DENY, skip_missing=True)), f"mkdir {ws}/x")
    assert (ws / "x").is_dir()


def test_a_file_can_be_a_writable_root(rig: Rig, ws: Path, out: Path) -> None:
    rig.run(workspace(ws, (out / "secret", WRITE)), f"echo 1 > {out}/secret; echo 1 > {out}/n")
    assert (out / "secret").read_text() == "1\n"
    assert not (out / "n").exists()


@pytest.fixture
def links(base: Path) -> Iterator[Path]:
    """A folder for links that no command of ours could have made."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder of another user")
    folder = base / "links"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def link(folder: Path, name: str, target: str | Path) -> Path:
    """Make a link there, and let it be another user's."""
    (folder / name).symlink_to(target)
    os.chown(folder, 65534, 65534)
    return folder / name


def test_links_of_the_host_on_the_way_are_there_too(rig: Rig, links: Path, ws: Path) -> None:
    alias = link(links, "alias", "../ws")
    limits = policy((alias, WRITE), minimal=True)
    ran = rig.run(limits, f"cat {alias}/a.txt; pwd -P", cwd=alias)
    assert ran.output == f"content of a\n{ws}\n"


Grant = Callable[[Path], Policy]


@pytest.mark.parametrize(
    "grant",
    [
        lambda planted: workspace(planted),
        lambda planted: workspace(planted.parent, (planted / "deeper", WRITE)),
        lambda planted: workspace(planted / "deeper"),
        lambda planted: policy(("/", DENY), (planted, WRITE), minimal=True),
        lambda planted: policy((planted / "deeper", READ), minimal=True),
    ],
    ids=["as the root", "below a root", "on the way", "restricted", "to read"],
)
def test_a_link_that_one_command_plants_is_no_grant_for_the_next(
    rig: Rig, ws: Path, out: Path, grant: Grant
) -> None:
    (out / "deeper").mkdir()
    planted = ws / "planted"
    script = f"echo 1 > {planted}/n; echo 1 > {planted}/deeper/n; cat {planted}/deeper/../secret"
    rig.run(workspace(ws), f"ln -s {out} {planted}")
    assert planted.is_symlink()
    before = sorted(os.walk(out))
    try:
        ran = rig.run(grant(planted), script)
    except InvalidRequest as error:
        assert f"leads through the symbolic link {planted}" in str(error)  # noqa: PT017  or grants nothing
        assert f"name what it leads to, {out}" in str(error)  # noqa: PT017
    else:
        assert "hidden text" not in ran.output or grant(planted).access("/") is READ
    assert sorted(os.walk(out)) == before
    # An entry may name the folder itself.
    rig.run(workspace(out), f"echo 1 > {out}/n")
    assert (out / "n").exists()


SETTINGS = ".config/execserver/config.toml"


@pytest.mark.parametrize("there", ["", ".config", ".config/execserver", SETTINGS])
def test_settings_that_the_next_daemon_would_read_are_not_made_in_a_writable_home(
    rig: Rig, ws: Path, there: str
) -> None:
    if there == SETTINGS:
        (ws / SETTINGS).parent.mkdir(parents=True)
        (ws / SETTINGS).write_text("")
    else:
        (ws / there).mkdir(parents=True, exist_ok=True)
    before = same_things(ws)
    script = (
        f"cd {ws}; mkdir -p .config/execserver; echo forged > {SETTINGS}; mv .config away; "
        f"mkdir -p .config/execserver && echo forged > {SETTINGS}"
    )
    rig.run(workspace(ws), script, own=DaemonPaths((rig.state,), (f"{ws}/{SETTINGS}",), home=str(ws)))
    assert same_things(ws) == before
    assert not (ws / SETTINGS).exists() or (ws / SETTINGS).read_text() == ""
    subprocess.run(["/bin/sh", "-c", script], check=False, capture_output=True)
    assert (ws / SETTINGS).read_text() == "forged\n"


def test_files_that_the_daemon_executes_are_read_only_everywhere(rig: Rig, ws: Path, tmp_path: Path) -> None:
    venv.create(ws / ".venv", symlinks=True)
    python = ws / ".venv/bin/python"
    paths = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n"
    asked = subprocess.run(
        [python, "-I", "-c", paths + "from execserver.sandbox.options import executed; print(*executed())"],
        capture_output=True,
        text=True,
        check=True,
    )
    own = DaemonPaths((rig.state,), code=tuple(asked.stdout.split()))
    script = (
        f"cd {ws}; echo 'import os' >> .venv/lib/python*/site-packages/x.pth; echo x >> .venv/pyvenv.cfg; "
        "ln -sfn /bin/sh .venv/bin/python; mv .venv away; echo made > n"
    )
    before = same_things(ws)
    rig.run(workspace(ws), script, own=own)
    assert (ws / "n").exists()
    (ws / "n").unlink()
    assert same_things(ws) == before
    subprocess.run(["/bin/sh", "-c", script], check=False, capture_output=True)
    assert same_things(ws) != before


@pytest.mark.parametrize("package", PACKAGES)
def test_of_a_checkout_the_packages_are_read_only_and_the_rest_may_be_a_workspace(
    rig: Rig, ws: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    (ws / package).mkdir()
    monkeypatch.setattr("sys.path", [str(ws), ""])
    own = DaemonPaths((rig.state,), code=executed())
    rig.run(workspace(ws), f"cd {ws}; echo 1 > {package}/n; mv {package} x; echo 1 > n", own=own)
    assert (ws / "n").exists()
    assert os.listdir(ws / package) == []


def test_every_module_that_a_daemon_loads_from_a_checkout_is_read_only_in_sandboxes() -> None:
    code = "import json, sys; import execserver.server; from execserver.late_modules import load_everything; "
    code += "load_everything(); from execserver.sandbox.options import executed; "
    code += "files = [getattr(each, '__file__', None) for each in sys.modules.values()]; "
    code += "print(json.dumps([executed(), [file for file in files if file]]))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    covered, files = json.loads(done.stdout)
    assert [file for file in files if not any(file.startswith(f"{path}/") for path in covered)] == []


def test_code_behind_a_link_that_a_command_could_replace_is_refused(rig: Rig, ws: Path, out: Path) -> None:
    (ws / "venv").symlink_to(out)
    with pytest.raises(InvalidRequest, match=r"daemon's own .*/venv leads through the symbolic link"):
        rig.build_view(workspace(ws), own=DaemonPaths((rig.state,), code=(f"{ws}/venv", str(out))))


@pytest.mark.parametrize("access", [READ, WRITE])
def test_no_entry_opens_what_is_in_a_folder_of_the_daemons(rig: Rig, ws: Path, access: Access) -> None:
    (Path(rig.state) / "edits").mkdir()
    with pytest.raises(InvalidRequest, match=r"edits lies in .* which is the daemon's own"):
        rig.build_view(workspace(ws, (f"{rig.state}/edits", access)))
    assert rig.build_view(workspace(ws, (f"{rig.state}/edits", DENY)))


CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


@pytest.mark.parametrize("name", [".gnupg/S.gpg-agent", ".ssh/agent/s.x", ".ssh/control-host", "named"])
def test_agents_of_the_user_are_out_of_reach_with_the_network(rig: Rig, base: Path, name: str) -> None:
    home = base / "h"
    path = home / name
    path.parent.mkdir(parents=True)
    own = DaemonPaths((rig.state,), home=str(home), sockets=(f"{home}/named",))
    reading = policy(("/", READ), network=True)
    script = f"exec {sys.executable} -c '{CONNECT}' {path}"
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(path))
        agent.listen()
        assert rig.run(reading, script).status == 0, "it is reached where it is not known"
        assert rig.run(reading, script, own=own).status == 1


def test_sockets_are_taken_from_what_the_environment_says() -> None:
    environment = {
        "SSH_AUTH_SOCK": "/home/x/agent",
        "TMUX": "/tmp/t/default,123,0",
        "DBUS_SESSION_BUS_ADDRESS": "unix:abstract=/tmp/x;unix:path=/tmp/bus,guid=1",
        "WAYLAND_DISPLAY": "wayland-0",
        "XDG_RUNTIME_DIR": "/elsewhere",
    }
    found = socket_addresses(environment)
    assert set(found) == {"/home/x/agent", "/tmp/t/default", "/tmp/bus", "/elsewhere/wayland-0"}
    assert socket_addresses({"WAYLAND_DISPLAY": "/x", "SSH_AUTH_SOCK": "relative"}) == ("/x",)


def test_settings_behind_a_link_that_a_command_could_replace_are_refused(rig: Rig, ws: Path) -> None:
    (ws / "dotfiles").mkdir()
    (ws / ".config").symlink_to("dotfiles")
    own = DaemonPaths((rig.state,), (f"{ws}/{SETTINGS}",), home=str(ws))
    with pytest.raises(InvalidRequest, match=r"daemon's own .* leads through the symbolic link .*/\.config"):
        rig.build_view(workspace(ws), own=own)
    rig.build_view(workspace(ws / "dotfiles"), own=own)


def test_a_pattern_grants_nothing_through_a_link_that_a_command_planted(
    rig: Rig, ws: Path, out: Path
) -> None:
    rig.run(workspace(ws), f"ln -s {out} {ws}/planted.d")
    limits = policy(("/", READ), globs=[Glob(f"{ws}/*.d", WRITE)])
    rig.run(limits, f"echo 1 > {ws}/planted.d/n; echo 1 > {out}/n")
    assert not (out / "n").exists()


def test_a_working_directory_may_be_reached_by_a_link_that_no_rule_names(
    rig: Rig, base: Path, ws: Path
) -> None:
    (base / "alias").symlink_to("ws")
    ran = rig.run(policy((ws, WRITE), minimal=True), "pwd -P", cwd=base / "alias")
    assert ran.output == f"{ws}\n"


def test_a_rule_that_leads_to_the_root_through_a_link_is_one_for_the_root(
    rig: Rig, links: Path, ws: Path, out: Path
) -> None:
    everything = link(links, "all", "/")
    ran = rig.run(policy((everything, READ), (ws, WRITE), (out, DENY)), f"cat {out}/secret; echo 1 > {ws}/n")
    assert (ws / "n").exists()
    assert "hidden text" not in ran.output
    with pytest.raises(InvalidRequest, match="cannot be read"):
        rig.build_view(policy(("/", DENY), (everything, READ)))


def test_two_names_of_one_folder_are_one_and_the_denial_wins(
    rig: Rig, links: Path, ws: Path, out: Path
) -> None:
    alias = link(links, "alias", out)
    for rules in ([(alias, DENY), (out, WRITE)], [(alias, WRITE), (out, DENY)]):
        ran = rig.run(workspace(ws, *rules), f"cat {out}/secret; cat {alias}/secret; echo 1 > {out}/n")
        assert "hidden text" not in ran.output
        assert not (out / "n").exists()


def test_everything_unrestricted_leaves_the_host_as_it_is_but_for_our_own_things(
    rig: Rig, ws: Path, out: Path
) -> None:
    ran = rig.run(
        Policy(True, False), f"echo 1 > {out}/n; ls -A {rig.state} || true; ls /proc | grep -cx {os.getpid()}"
    )
    assert (out / "n").exists()
    assert "empty" not in ran.output
    assert ran.output.rstrip().endswith("1")


def test_processes_of_the_host_are_not_seen_when_files_are_limited(rig: Rig, ws: Path) -> None:
    assert rig.run(workspace(ws), f"ls /proc | grep -cx {os.getpid()}").output != "1\n" or os.getpid() < 10
    assert "/1/" not in rig.run(workspace(ws), "readlink /proc/self/ns/pid").output
    assert os.readlink("/proc/self/ns/pid") not in rig.run(workspace(ws), "readlink /proc/self/ns/pid").output


def test_settings_of_the_machine_cannot_be_written_to(rig: Rig, ws: Path) -> None:
    # An ordinary user may change what belongs to the namespaces of the sandbox, and root nothing at all.
    folders = "/proc/irq /proc/bus /sys" + (" /proc/sys" if os.geteuid() == 0 else "")
    assert rig.run(workspace(ws), f"find {folders} -type f -writable 2>/dev/null").output == ""


def test_no_descriptor_of_the_launch_is_open_inside(rig: Rig, ws: Path) -> None:
    # The listing itself has one more open: the folder that it lists.
    assert sorted(rig.run(workspace(ws), "ls /proc/self/fd").output.split()) == ["0", "1", "2", "3"]


# -- what the request needs


def test_a_working_directory_that_cannot_be_read_is_refused(rig: Rig, ws: Path, out: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"the working directory {out} cannot be read") as caught:
        rig.build_view(policy((ws, WRITE), minimal=True), cwd=str(out))
    assert "allow reading it" in str(caught.value)


def test_a_program_that_cannot_be_read_is_refused(rig: Rig, ws: Path) -> None:
    limits = policy((ws, WRITE))
    with pytest.raises(InvalidRequest, match="the program /bin/sh cannot be read"):
        build_view(limits, rig.own, RequiredPaths(str(ws), "/bin/sh"))
    with pytest.raises(InvalidRequest, match="the program /usr/bin/setsid cannot be read"):
        build_view(limits, rig.own, RequiredPaths(str(ws), None, ("/usr/bin/setsid",)))


def test_a_missing_program_is_left_to_the_spawn_to_report(rig: Rig, ws: Path) -> None:
    assert build_view(workspace(ws), rig.own, RequiredPaths(str(ws / "no"), str(ws / "none"))).base == "read"


def test_extra_paths_are_readable_under_every_policy(rig: Rig, ws: Path, out: Path) -> None:
    limits = policy((ws, WRITE), (out, DENY), minimal=True)
    view = build_view(
        limits, rig.own, RequiredPaths(str(ws), None, (), (str(out / "secret"), str(out / "none")))
    )
    assert mounts_at(view, out / "secret") == [Bind(str(out / "secret"), str(out / "secret"), writable=False)]
    assert not mounts_at(view, out / "none")


def test_no_entries_at_all_let_nothing_run(rig: Rig) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read under this policy"):
        rig.build_view(policy())


# -- what is our own


def test_the_daemon_s_own_files_are_hidden_also_in_a_workspace(rig: Rig, ws: Path) -> None:
    (ws / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(ws / "run" / "s"))
        own = DaemonPaths((rig.state,), (str(ws / "run" / "s"), str(ws / "none")))
        script = f"stat -c %F {ws}/run/s; mv {ws}/run {ws}/away || echo stays; rm {ws}/run/s || echo stays"
        ran = rig.run(workspace(ws), script, own=own)
    assert "regular empty file" in ran.output
    assert ran.output.count("stays\n") == 2
    assert stat.S_ISSOCK(os.lstat(ws / "run" / "s").st_mode)


def test_a_workspace_that_holds_our_state_does_not_show_it(rig: Rig, base: Path) -> None:
    ran = rig.run(
        workspace(base), f"ls -A {rig.state} || echo unlisted; mv {rig.state} {base}/x || echo stays"
    )
    assert "unlisted" in ran.output
    assert "stays" in ran.output


def test_an_empty_folder_of_ours_with_a_protected_name_is_hidden_all_the_same(rig: Rig, ws: Path) -> None:
    (ws / ".codex").mkdir()
    view = rig.build_view(workspace(ws), own=DaemonPaths((str(ws / ".codex"),)))
    assert mounts_at(view, ws / ".codex") == [Mask(str(ws / ".codex"), directory=True)]


def test_sockets_of_daemons_are_not_found_when_the_network_is_on(rig: Rig, ws: Path) -> None:
    ran = rig.run(workspace(ws, network=True), "find /run -type s; mkdir /run/x || echo closed; ls /run")
    assert set(ran.output.split("closed\n")[1].split()) <= {"systemd", "resolvconf", "NetworkManager"}
    sockets = [line for line in ran.output.split("\n") if line.startswith("/run/")]
    assert all(line.startswith("/run/systemd/resolve/") for line in sockets)


def test_a_workspace_below_run_is_still_there_when_the_network_is_on(rig: Rig) -> None:
    limits = workspace("/run", network=True)
    assert Tmpfs("/run", 0o755) not in rig.build_view(limits).mounts
    limits = policy(("/", READ), network=True)
    assert Tmpfs("/run", 0o755) in rig.build_view(limits).mounts


@pytest.mark.parametrize("minimal", [False, True], ids=["readable-root", "minimal"])
def test_sockets_of_container_daemons_in_the_home_folder_are_hidden_when_the_network_is_on(
    rig: Rig, ws: Path, minimal: bool
) -> None:
    (ws / ".docker" / "run").mkdir(parents=True)
    (ws / ".docker" / "run" / "docker.sock").write_text("stands for it\n")
    own = DaemonPaths((rig.state,), home=str(ws))
    limits = policy((ws, WRITE), minimal=True, network=True) if minimal else workspace(ws, network=True)
    script = f"cat {ws}/.docker/run/docker.sock; mv {ws}/.docker {ws}/d && echo moved"
    ran = rig.run(limits, script, own=own)
    assert "stands" not in ran.output
    assert "moved" not in ran.output


# -- links that a command may have planted


def test_no_grant_follows_a_link_out_of_a_writable_folder(rig: Rig, ws: Path, out: Path) -> None:
    (ws / "link").symlink_to(out)
    rig.run(workspace(ws, (ws / "link", WRITE)), f"echo 1 > {ws}/link/n; echo 1 > {out}/n")
    assert sorted(os.listdir(out)) == ["secret"]


def test_no_grant_follows_such_a_link_either_when_its_folder_has_another_shorter_name(
    rig: Rig, base: Path, out: Path
) -> None:
    deep = base / "p" / "q" / "ws"
    deep.mkdir(parents=True)
    (base / "s").symlink_to(deep)
    (deep / "link").symlink_to(out)
    # By its text this rule comes before the one that makes its folder writable.
    ran = rig.run(workspace(deep, (base / "s" / "link", WRITE)), f"echo 1 > {out}/n; ls -A {out}")
    assert not (out / "n").exists(), ran.output


@pytest.mark.parametrize("access", ["read", "deny"])
def test_a_limit_behind_a_link_that_commands_may_replace_is_refused(rig: Rig, ws: Path, access: str) -> None:
    (ws / "real").mkdir()
    (ws / "link").symlink_to("real")
    rule = Rule(str(ws / "link" / "x"), READ if access == "read" else DENY)
    with pytest.raises(InvalidRequest, match="link") as caught:
        rig.build_view(workspace(ws, rule))
    assert str(ws / "link") in str(caught.value)
    assert "name what it leads to" in str(caught.value)


def test_links_that_go_round_in_circles_grant_nothing_and_guard_nothing(
    rig: Rig, base: Path, ws: Path
) -> None:
    (base / "a").symlink_to("b")
    (base / "b").symlink_to("a")
    assert not mounts_at(rig.build_view(workspace(ws, (base / "a", WRITE))), base / "a")
    with pytest.raises(InvalidRequest, match="too many links"):
        rig.build_view(workspace(ws, (base / "a", DENY)))


def test_a_missing_path_is_guarded_also_under_another_shorter_name(rig: Rig, base: Path) -> None:
    deep = base / "p" / "q" / "ws"
    deep.mkdir(parents=True)
    (base / "s").symlink_to(deep)
    ran = rig.run(workspace(deep, (base / "s" / "secret", DENY)), f"echo 1 > {deep}/secret || echo closed")
    assert "closed" in ran.output
    assert not (deep / "secret").exists()


# -- folders that a command may rename


@pytest.mark.parametrize("access", [READ, DENY], ids=["read", "deny"])
@pytest.mark.parametrize("missing", [False, True], ids=["there", "missing"])
def test_no_folder_can_be_moved_out_of_the_way_with_what_is_limited_in_it(
    rig: Rig, ws: Path, access: object, missing: bool
) -> None:
    guarded = ws / "x" / "y" / "secret"
    guarded.parent.mkdir(parents=True)
    if not missing:
        guarded.write_text("kept\n")
    before = same_things(ws)
    rule = (guarded, READ if access is READ else DENY)
    ran = rig.run(
        workspace(ws, rule),
        f"mv {ws}/x/y {ws}/x/z; mv {ws}/x {ws}/z; rm -rf {ws}/x; mkdir -p {ws}/x/y; echo forged > {guarded}; "
        f"find {ws} -path '*/x/y' -o -path '*/z*'",
    )
    assert same_things(ws) == before, ran.output
    if not missing:
        assert guarded.read_text() == "kept\n"


def test_a_workspace_inside_another_writable_folder_cannot_be_moved_away_from_its_protected_names(
    rig: Rig, base: Path
) -> None:
    tmp, inner = base / "tmp", base / "tmp" / "job" / "ws"
    (inner / ".git").mkdir(parents=True)
    (inner / ".git" / "config").write_text("[core]\n")
    before = same_things(tmp)
    rig.run(
        workspace(tmp, (inner, WRITE)),
        f"mv {tmp}/job {tmp}/x; mv {inner} {tmp}/y; mkdir -p {inner}/.git; echo forged > {inner}/.git/config",
    )
    after = same_things(tmp)
    assert {path: after.get(path) for path in before} == before
    assert (inner / ".git" / "config").read_text() == "[core]\n"


def test_files_can_still_be_moved_between_folders_that_are_held_in_place(rig: Rig, ws: Path) -> None:
    (ws / "x" / "y").mkdir(parents=True)
    (ws / "x" / "y" / "secret").write_text("kept\n")
    ran = rig.run(
        workspace(ws, (ws / "x" / "y" / "secret", DENY)),
        f"mv {ws}/a.txt {ws}/x/y/ && mkdir {ws}/x/n && mv {ws}/x/n {ws}/x/m && echo done",
    )
    assert ran.output == "done\n"
    assert (ws / "x" / "y" / "a.txt").read_text() == "content of a\n"


def test_a_folder_that_no_command_could_move_is_not_mounted_over_itself() -> None:
    view = build_view(policy(("/", READ), ("/usr/bin/env", DENY)), DaemonPaths(), RequiredPaths())
    assert [mount.target for mount in view.mounts] == [os.path.realpath("/usr/bin/env")]


# -- patterns


def test_a_pattern_hides_what_matches_hidden_deep_and_with_strange_names(rig: Rig, ws: Path) -> None:
    strange = [
        b".env",
        b"sub/.env",
        b"sub/new\nline/.env",
        b"sub/\xff\xfe/.env",
        b"*[a]/.env",
        b"sub/ {} /.env",
    ]
    for name in strange:
        path = os.path.join(os.fsencode(ws), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"hidden word\n")
    limits = policy(("/", READ), (ws, WRITE), globs=[deny(f"{ws}/**/.env")])
    ran = rig.run(limits, f"find {ws} -name .env -exec cat {{}} + ; find {ws} -name .env | wc -l")
    assert "hidden word" not in ran.output
    assert os.fsencode(ran.output).count(b".env") >= len(strange)


def test_folders_with_matches_in_them_cannot_be_moved_to_where_nothing_matches(rig: Rig, ws: Path) -> None:
    (ws / "conf" / "keys").mkdir(parents=True)
    (ws / "conf" / "keys" / "k").write_text("hidden word\n")
    before = same_things(ws)
    limits = policy(("/", READ), (ws, WRITE), globs=[deny(f"{ws}/*/keys/*")])
    rig.run(limits, f"mv {ws}/conf/keys {ws}/conf/other; mv {ws}/conf {ws}/other")
    assert same_things(ws) == before


def test_a_link_that_matches_hides_what_it_leads_to(rig: Rig, ws: Path, out: Path) -> None:
    (ws / ".env").symlink_to(out / "secret")
    limits = policy(("/", READ), (ws, WRITE), globs=[deny(f"{ws}/**/.env")])
    assert "hidden text" not in rig.run(limits, f"cat {ws}/.env {out}/secret").output


def test_a_planted_link_to_the_root_does_not_lift_other_denials(rig: Rig, ws: Path, out: Path) -> None:
    (ws / ".env").symlink_to("/")
    limits = policy(("/", READ), (ws, WRITE), (out / "secret", DENY), globs=[deny(f"{ws}/**/.env")])
    with pytest.raises(InvalidRequest, match="leads to /"):
        rig.build_view(limits)


def test_a_planted_link_into_proc_is_of_no_account(rig: Rig, ws: Path) -> None:
    (ws / ".env").symlink_to("/proc/self/environ")
    limits = policy(("/", READ), (ws, WRITE), globs=[deny(f"{ws}/**/.env")])
    assert rig.run(limits, "echo ran").output == "ran\n"


def test_patterns_can_grant_and_narrow_too(rig: Rig, ws: Path, out: Path) -> None:
    for name in ("x.log", "x.lock"):
        (out / name).write_text("")
        (ws / name).write_text("")
    limits = policy(("/", READ), (ws, WRITE), globs=[Glob(f"{out}/*.log", WRITE), Glob(f"{ws}/*.lock", READ)])
    rig.run(limits, f"for f in {out}/x.log {out}/x.lock {ws}/x.log {ws}/x.lock; do echo 1 > $f; done")
    assert [
        len(path.read_text()) for path in (out / "x.log", out / "x.lock", ws / "x.log", ws / "x.lock")
    ] == [*(2, 0, 2, 0)]


def test_a_pattern_grants_nothing_through_a_planted_link(rig: Rig, ws: Path, out: Path) -> None:
    (ws / "x.log").symlink_to(out / "secret")
    limits = policy(("/", READ), (ws, WRITE), globs=[Glob(f"{ws}/*.log", WRITE)])
    rig.run(limits, f"echo 1 > {out}/secret")
    assert (out / "secret").read_text() == "hidden text\n"


def test_a_pattern_without_a_folder_is_looked_for_wherever_it_may_be_read(
    rig: Rig, ws: Path, out: Path
) -> None:
    (ws / "x.key").write_text("")
    (out / "x.key").write_text("")
    limits = policy((out, READ), (ws, WRITE), minimal=True, globs=[deny("/**/x.key")])
    view = rig.build_view(limits, cwd=None)
    assert mounts_at(view, ws / "x.key")
    assert mounts_at(view, out / "x.key")


def test_a_pattern_that_would_have_to_be_looked_for_everywhere_is_refused_with_the_way_out(
    rig: Rig, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glob_search, "MAX_SCANNED", 2000)
    limits = policy(("/", READ), (ws, WRITE), globs=[deny("/**/x.key")])
    with pytest.raises(InvalidRequest, match=r"set glob_scan_max_depth.*the pattern is '/\*\*/x.key'"):
        rig.build_view(limits)
    limits = policy(("/", READ), (ws, WRITE), globs=[deny("/**/x.key")], glob_depth=1)
    rig.build_view(limits)


# -- places that a sandbox has of its own


@pytest.mark.parametrize("path", ["/proc", "/proc/cpuinfo"], ids=ids)
def test_a_denial_below_proc_is_refused_because_it_cannot_be_kept(rig: Rig, ws: Path, path: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{path} cannot be denied"):
        rig.build_view(workspace(ws, (path, DENY)))


def test_a_grant_below_proc_changes_nothing(rig: Rig, ws: Path) -> None:
    ran = rig.run(workspace(ws, ("/proc", WRITE)), "echo x > /proc/sys/kernel/core_pattern || echo closed")
    assert "closed" in ran.output


def test_devices_are_the_few_harmless_ones_unless_a_rule_names_them(rig: Rig, ws: Path) -> None:
    names = rig.run(workspace(ws), "ls /dev").output.split()
    assert set(names) <= {
        *("console", "core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin"),
        *("stdout", "tty", "urandom", "zero"),
    }
    ran = rig.run(workspace(ws, ("/dev/shm", WRITE)), "ls -d /dev/shm; stat -c %i /dev/shm")
    assert str(os.stat("/dev/shm").st_ino) in ran.output.split()


def test_mounts_come_in_an_order_in_which_none_covers_a_deeper_one(rig: Rig, ws: Path) -> None:
    (ws / "a" / "b" / "c").mkdir(parents=True)
    view = rig.build_view(
        workspace(ws, (ws / "a", DENY), (ws / "a" / "b", READ), (ws / "a" / "b" / "c", WRITE))
    )
    targets = [mount.target for mount in view.mounts]
    for index, target in enumerate(targets):
        assert not any(target.startswith(later + "/") for later in targets[index:])
