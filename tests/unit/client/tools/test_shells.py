from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable, Collection, Iterator

import pytest

from execclient import shells
from execclient.shells import (
    BASH,
    CMD,
    LAST_RESORT,
    POWERSHELL,
    SH,
    ZSH,
    Shell,
    ShellType,
    candidates,
    detect_user_shell,
    find_shell,
    register_shell_type,
    shell_from_info,
    shell_type_of,
    stderr_to_stdout,
)

SCRIPT = "echo \"$HOME\" 'a b'\nls *"


def among(*paths: str) -> Callable[[str], bool]:
    return lambda path: path in paths


def found_by_path(**programs: str) -> Callable[[str], str | None]:
    return lambda program: programs.get(program.removesuffix(".exe"))


@pytest.fixture
def fish() -> Iterator[ShellType]:
    """A kind of shell that is not known by itself."""
    yield ShellType("fish", ("fish",), ("--login", "-c"), ("-c",))
    shells._TYPES.pop("fish", None)


def test_both_streams_are_in_one_in_the_order_in_which_they_were_written() -> None:
    script = "for number in 1 2 3; do echo out $number; echo err $number >&2; done; exit 3"
    done = subprocess.run(stderr_to_stdout(["sh", "-c", script]), capture_output=True, text=True)

    assert done.stdout.split("\n") == [
        f"{name} {number}" for number in (1, 2, 3) for name in ("out", "err")
    ] + [""]
    assert (done.returncode, done.stderr) == (3, "")


# -- how each is told to run a script


@pytest.mark.parametrize(
    ("shell", "login", "argv"),
    [
        (Shell(ZSH, "/bin/zsh"), True, ("/bin/zsh", "-lc", SCRIPT)),
        (Shell(ZSH, "/bin/zsh"), False, ("/bin/zsh", "-c", SCRIPT)),
        (Shell(BASH, "/bin/bash"), True, ("/bin/bash", "-lc", SCRIPT)),
        (Shell(BASH, "/bin/bash"), False, ("/bin/bash", "-c", SCRIPT)),
        (Shell(SH, "/bin/sh"), True, ("/bin/sh", "-lc", SCRIPT)),
        (Shell(SH, "/bin/sh"), False, ("/bin/sh", "-c", SCRIPT)),
        (Shell(POWERSHELL, "pwsh"), True, ("pwsh", "-Command", SCRIPT)),
        (Shell(POWERSHELL, "pwsh"), False, ("pwsh", "-NoProfile", "-Command", SCRIPT)),
        (Shell(CMD, "cmd.exe"), True, ("cmd.exe", "/c", SCRIPT)),
        (Shell(CMD, "cmd.exe"), False, ("cmd.exe", "/c", SCRIPT)),
    ],
)
def test_a_script_is_one_word_behind_the_options_of_its_shell(
    shell: Shell, login: bool, argv: tuple[str, ...]
) -> None:
    assert shell.exec_args(SCRIPT, login=login) == argv
    assert shell.exec_args(SCRIPT, login=login) == argv


def test_a_real_shell_gets_the_script_unchanged() -> None:
    argv = Shell(SH, "/bin/sh").exec_args("printf '%s|' \"a  b\" '$x' \"$1\"", login=False)

    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "a  b|$x||"


# -- which kind a program is


@pytest.mark.parametrize(
    ("program", "shell_type"),
    [
        ("/bin/zsh", ZSH),
        ("/usr/local/bin/bash", BASH),
        ("sh", SH),
        ("/bin/dash", None),
        ("/usr/bin/pwsh", POWERSHELL),
        ("C:\\Windows\\System32\\WindowsPowerShell\\v1.0\\powershell.exe", POWERSHELL),
        ("PowerShell.EXE", POWERSHELL),
        ("C:/Windows/System32/cmd.exe", CMD),
        ("cmd", CMD),
        ("bash.exe", BASH),
        ("/usr/bin/fish", None),
        ("/usr/sbin/nologin", None),
        ("/bin/bash/", None),
        ("mybash", None),
        ("", None),
    ],
)
def test_the_kind_is_told_by_the_programs_name(program: str, shell_type: ShellType | None) -> None:
    assert shell_type_of(program) == shell_type


# -- the account's own


def test_the_shell_of_the_accounts_entry_is_taken() -> None:
    shell = detect_user_shell(platform="linux", login_shell=lambda: "/bin/zsh", exists=among("/bin/zsh"))

    assert shell == Shell(ZSH, "/bin/zsh")


@pytest.mark.parametrize(
    ("there", "by_path", "expected"),
    [
        ((), {"zsh": "/opt/bin/zsh"}, Shell(ZSH, "/opt/bin/zsh")),
        (("/usr/bin/zsh",), {"bash": "/x/bash"}, Shell(ZSH, "/usr/bin/zsh")),
        ((), {"bash": "/usr/bin/bash", "sh": "/bin/sh"}, Shell(BASH, "/usr/bin/bash")),
        (("/bin/bash",), {}, Shell(BASH, "/bin/bash")),
        ((), {"sh": "/usr/bin/sh"}, Shell(SH, "/usr/bin/sh")),
        ((), {}, LAST_RESORT),
    ],
)
def test_a_shell_that_is_gone_is_replaced(
    there: Collection[str], by_path: dict[str, str], expected: Shell
) -> None:
    shell = detect_user_shell(
        platform="linux",
        login_shell=lambda: "/bin/zsh",
        exists=among(*there),
        which=found_by_path(**by_path),
    )

    assert shell == expected


@pytest.mark.parametrize("path", [None, "/usr/bin/fish", "/usr/sbin/nologin"])
def test_an_account_without_a_shell_of_a_known_kind_gets_sh(path: str | None) -> None:
    shell = detect_user_shell(platform="linux", login_shell=lambda: path, exists=lambda path: True)

    assert shell == Shell(SH, "/bin/sh")


def test_the_account_is_looked_up_by_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(uid: int) -> pwd.struct_passwd:
        assert uid == os.getuid()
        return pwd.struct_passwd(("name", "x", uid, uid, "", "/", "/bin/zsh"))

    monkeypatch.setattr(pwd, "getpwuid", entry)

    assert detect_user_shell(platform="linux", exists=among("/bin/zsh")) == Shell(ZSH, "/bin/zsh")


def test_a_uid_without_an_account_gets_sh(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_account(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", no_account)

    assert detect_user_shell(platform="linux") == Shell(SH, "/bin/sh")


def test_on_this_machine_the_detected_shell_runs() -> None:
    argv = detect_user_shell().exec_args("echo here", login=False)

    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "here\n"


@pytest.mark.parametrize(
    ("by_path", "expected"),
    [
        ({"pwsh": "C:\\pwsh.exe", "powershell": "C:\\ps.exe"}, Shell(POWERSHELL, "C:\\pwsh.exe")),
        ({"powershell": "C:\\ps.exe", "cmd": "C:\\cmd.exe"}, Shell(POWERSHELL, "C:\\ps.exe")),
        ({"cmd": "C:\\cmd.exe"}, Shell(CMD, "C:\\cmd.exe")),
        ({}, Shell(CMD, "cmd.exe")),
    ],
)
def test_on_windows_powershell_comes_before_cmd(by_path: dict[str, str], expected: Shell) -> None:
    assert detect_user_shell(platform="win32", which=found_by_path(**by_path)) == expected


# -- the daemon's


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"shell": {"name": "bash", "path": "/bin/bash"}}, Shell(BASH, "/bin/bash")),
        ({"shell": {"name": "zsh", "path": "/run/current-system/sw/bin/zsh-5.9"}},
         Shell(ZSH, "/run/current-system/sw/bin/zsh-5.9")),
        ({"shell": {"path": "/usr/bin/zsh"}}, Shell(ZSH, "/usr/bin/zsh")),
        ({"shell": {"name": "fish", "path": "/usr/bin/fish"}}, LAST_RESORT),
        ({"shell": {"name": "bash"}}, LAST_RESORT),
        ({"shell": None}, LAST_RESORT),
        ({}, LAST_RESORT),
    ],
)  # fmt: skip
def test_the_daemon_tells_the_shell_of_its_account(info: dict[str, object], expected: Shell) -> None:
    assert shell_from_info(info) == expected


# -- one that a model names


def test_a_path_that_is_there_is_taken_as_it_is() -> None:
    assert find_shell("/opt/bash", lambda path: True) == Shell(BASH, "/opt/bash")


def test_a_name_is_found_in_the_order_of_path() -> None:
    assert find_shell("sh", among("/bin/sh", "/usr/bin/sh")) == Shell(SH, "/usr/bin/sh")


def test_a_path_that_is_not_there_gives_way_to_another_shell_of_its_kind() -> None:
    assert find_shell("/opt/bash", among("/bin/bash")) == Shell(BASH, "/bin/bash")


def test_the_accounts_shell_comes_first_for_its_kind() -> None:
    user = Shell(BASH, "/nix/bash")

    assert find_shell("bash", lambda path: True, user) == user
    assert find_shell("zsh", lambda path: True, user) == Shell(ZSH, "/usr/local/bin/zsh")
    assert next(candidates("/bin/bash", user)) == Shell(BASH, "/bin/bash")


@pytest.mark.parametrize("name", ["/bin/nosuchshell", "fish", "python3", "/bin/zsh", ""])
def test_a_shell_that_cannot_be_used_is_none(name: str) -> None:
    assert find_shell(name, among("/bin/bash", "/bin/nosuchshell")) is None


# -- one that is added


def test_one_row_makes_a_kind_of_shell_known_everywhere(fish: ShellType) -> None:
    register_shell_type(fish)

    shell = detect_user_shell(
        platform="linux", login_shell=lambda: "/usr/bin/fish", exists=among("/usr/bin/fish")
    )
    assert shell == Shell(fish, "/usr/bin/fish")
    assert shell.exec_args("ls") == ("/usr/bin/fish", "--login", "-c", "ls")
    assert shell.exec_args("ls", login=False) == ("/usr/bin/fish", "-c", "ls")
    assert shell_from_info({"shell": {"name": "fish", "path": "/usr/bin/fish"}}) == shell
    assert find_shell("fish", among("/usr/bin/fish")) == shell
    register_shell_type(fish)


def test_a_name_belongs_to_one_kind() -> None:
    with pytest.raises(ValueError, match="bash: already a shell of the kind bash"):
        register_shell_type(ShellType("mine", ("bash",), ("-c",), ("-c",)))
    with pytest.raises(ValueError, match="mine: no program"):
        register_shell_type(ShellType("mine", (), ("-c",), ("-c",)))
    assert shell_type_of("mine") is None
