"""Where control groups are found, with the files of other machines, and what the settings accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from execprotocol.errors import InvalidRequest
from execprotocol.process import ResourceLimits
from execserver.limits.hierarchies import INNER, find_hierarchies, obstacle
from execserver.limits.settings import LimitSettings, parsed


def machine(folder: Path, mountinfo: str, memberships: str) -> str:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mountinfo").write_text(mountinfo)
    (folder / "proc/self/cgroup").write_text(memberships)
    return str(folder / "proc")


def group(folder: Path, controllers: str = "cpu io memory pids") -> Path:
    folder.mkdir(parents=True)
    for name, content in (
        ("controllers", controllers),
        ("procs", ""),
        ("subtree_control", ""),
        ("type", "domain"),
    ):
        (folder / f"cgroup.{name}").write_text(content)
    return folder


@pytest.mark.parametrize("inner", ["", f"/{INNER}"])
def test_the_own_group_of_version_2_is_that_of_the_unit(tmp_path: Path, inner: str) -> None:
    own = group(tmp_path / "fs/user.slice/x.service")
    mounts = (
        f"30 20 0:26 / /sys rw - sysfs s rw\n31 30 0:27 / {tmp_path}/fs rw,nosuid shared:9 - cgroup2 c rw\n"
    )
    proc = machine(tmp_path, mounts, f"0::/user.slice/x.service{inner}\n")
    [found] = find_hierarchies(proc)
    assert (found.folder, found.version, found.may_hold_processes) == (str(own), 2, False)
    assert found.controllers == {"cpu", "io", "memory", "pids"}
    assert obstacle(found) is None
    (own / "cgroup.procs").write_text("1\n")
    assert "holds other processes" in (obstacle(found) or "")


def test_a_container_finds_its_own_group_below_the_root_of_its_mount(tmp_path: Path) -> None:
    own = tmp_path / "fs/memory/inner"
    own.mkdir(parents=True)
    mounts = (
        f"31 30 0:27 /docker/abc {tmp_path}/fs/memory ro - cgroup cgroup rw,memory\n"
        f"32 30 0:28 /other {tmp_path}/fs/pids ro - cgroup cgroup rw,pids\n"
        f"33 30 0:29 / {tmp_path}/with\\040space ro - cgroup cgroup rw,cpu,cpuacct\n"
    )
    memberships = "3:cpu,cpuacct:/\n2:pids:/docker/abc\n1:memory:/docker/abc/inner\n"
    memory, cpu = find_hierarchies(machine(tmp_path, mounts, memberships))
    assert (memory.folder, memory.version, [*memory.controllers]) == (str(own), 1, ["memory"])
    # The mount of the pids controller does not show the own group.
    assert (cpu.folder, sorted(cpu.controllers)) == (f"{tmp_path}/with space", ["cpu", "cpuacct"])


def test_a_machine_without_control_groups_has_none(tmp_path: Path) -> None:
    assert find_hierarchies(machine(tmp_path, "30 20 0:26 / /sys rw - sysfs s rw\n", "0::/\n")) == []


def test_a_group_that_is_not_delegated_is_an_obstacle(tmp_path: Path) -> None:
    own = group(tmp_path / "fs/x")
    proc = machine(tmp_path, f"31 30 0:27 / {tmp_path}/fs rw - cgroup2 c rw\n", "0::/x\n")
    [found] = find_hierarchies(proc)
    (own / "cgroup.procs").unlink()
    assert "not delegated" in (obstacle(found) or "")


def test_the_settings_are_written_as_on_the_command_line() -> None:
    assert parsed(["memory=512M", "pids=64", "cpu=150", "io=50", "wall=30"]) == {
        "memoryBytes": 512 << 20,
        "pids": 64,
        "cpuPercent": 150,
        "ioWeight": 50,
        "wallMs": 30_000,
    }


@pytest.mark.parametrize(
    "text", ["memory", "memory=lots", "memory=1", "pids=1M", "wall=-1", "disk=1G", "cpu=0"]
)
def test_a_wrong_setting_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(ValueError, match="must be memory=SIZE"):
        parsed([text])


def settings(sandboxed_only: bool = False) -> LimitSettings:
    made = LimitSettings.of(["memory=64M"], ["memory=1G", "pids=99"], sandboxed_only=sandboxed_only)
    assert made is not None
    return made


def test_a_start_without_limits_gets_the_defaults_and_the_ceiling() -> None:
    assert settings().effective(None, sandboxed=False) == ResourceLimits(memory_bytes=64 << 20, pids=99)
    assert settings(True).effective(None, sandboxed=True) == ResourceLimits(memory_bytes=64 << 20, pids=99)
    assert settings(True).effective(None, sandboxed=False) == ResourceLimits(memory_bytes=1 << 30, pids=99)


def test_a_default_above_the_ceiling_is_lowered_to_it() -> None:
    made = LimitSettings.of(["memory=2G", "pids=9"], ["memory=1G"], sandboxed_only=False)
    assert made is not None
    assert made.effective(None, sandboxed=False) == ResourceLimits(memory_bytes=1 << 30, pids=9)


def test_a_start_may_ask_for_other_limits_up_to_the_ceiling() -> None:
    asked = ResourceLimits(memory_bytes=512 << 20, cpu_percent=50)
    expected = ResourceLimits(memory_bytes=512 << 20, cpu_percent=50, pids=99)
    assert settings().effective(asked, sandboxed=False) == expected
    with pytest.raises(InvalidRequest, match="at most 99 here") as refused:
        settings().effective(ResourceLimits(pids=100), sandboxed=False)
    assert refused.value.field == "limits.pids"


def test_without_settings_there_are_no_limits() -> None:
    assert LimitSettings.of([], [], sandboxed_only=False) is None
