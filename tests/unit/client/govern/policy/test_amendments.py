from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from execclient.govern.policy.amendments import allow_rule, append_rule
from execclient.govern.policy.policy import Policy, default_home
from execclient.govern.policy.rule_files import MAX_FILE_BYTES, load_rules
from execclient.govern.policy.rules import PrefixRule, strictest

ADD_MANY = """
import sys
from pathlib import Path
from execclient.govern.policy.amendments import allow_rule, append_rule
file, writer, count = sys.argv[1:]
for number in range(int(count)):
    append_rule(Path(file), allow_rule(["run", writer, str(number), "x" * 300]))
"""

DIE_IN_FSYNC = """
import os, signal, sys
from pathlib import Path
from execclient.govern.policy.amendments import allow_rule, append_rule
file, survived = sys.argv[1], int(sys.argv[2])
sync = os.fsync
def fsync(descriptor):
    global survived
    if survived == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    survived -= 1
    sync(descriptor)
os.fsync = fsync
append_rule(Path(file), allow_rule(["new"]))
"""


def program(text: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", text, *map(str, arguments)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "rules" / "default.rules"


def prefixes(file: Path) -> list[tuple[str, ...]]:
    """What the rules of a file allow."""
    rules = load_rules([file]).prefix_rules
    assert {rule.decision for rule in rules} <= {"allow"}
    return [tuple(each for (each,) in rule.pattern) for rule in rules]


def test_the_line_is_the_one_that_the_reference_writes(file: Path) -> None:
    assert append_rule(file, allow_rule(["wc", "-l", "a.txt"])) is True

    assert file.read_text() == 'prefix_rule(pattern=["wc", "-l", "a.txt"], decision="allow")\n'


def test_the_same_rule_is_written_once(file: Path) -> None:
    append_rule(file, allow_rule(["wc", "-l"]))

    assert append_rule(file, allow_rule(["wc", "-l"])) is False
    assert append_rule(file, allow_rule(["wc"])) is True

    assert prefixes(file) == [("wc", "-l"), ("wc",)]


@pytest.mark.parametrize(
    "argument",
    [
        "",
        " ",
        'a"b',
        "a\\b",
        "\\b",
        "\\u0041",
        "two\nlines\r\n",
        "é … 😀",
        "\x1b[31m\x7f\x00\x85\u2028\u2029\u202e\ufeff\b\f\t",
        "\U000e0001",
        "{x} %s ]) # '",
    ],
)
def test_every_text_comes_back_as_it_was(file: Path, argument: str) -> None:
    append_rule(file, allow_rule(["run", argument]))

    assert prefixes(file) == [("run", argument)]
    assert len(file.read_text().splitlines()) == 1
    assert append_rule(file, allow_rule(["run", argument])) is False


@pytest.mark.parametrize(
    ("prefix", "message"),
    [([], "prefix: a rule needs at least one argument"), (["a\udcff"], "prefix: .* is not text")],
)
def test_what_no_rule_file_can_hold_is_refused_and_nothing_is_made(
    file: Path, prefix: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        append_rule(file, allow_rule(prefix))

    assert not file.parent.exists()


def test_what_is_there_is_kept_also_without_a_line_break_at_its_end(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text('# mine\nprefix_rule(["ls"])')

    append_rule(file, allow_rule(["wc"]))

    assert file.read_text().startswith('# mine\nprefix_rule(["ls"])\n')
    assert prefixes(file) == [("ls",), ("wc",)]


def test_only_we_may_write_a_new_file_and_the_mode_of_another_is_kept(file: Path) -> None:
    append_rule(file, allow_rule(["a"]))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700

    file.chmod(0o644)
    append_rule(file, allow_rule(["b"]))
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_a_link_stays_one(tmp_path: Path, file: Path) -> None:
    target = tmp_path / "dotfiles" / "default.rules"
    append_rule(target, allow_rule(["a"]))
    file.parent.mkdir(parents=True)
    file.symlink_to(target)

    append_rule(file, allow_rule(["b"]))

    assert file.is_symlink()
    assert prefixes(target) == [("a",), ("b",)]


def test_many_writers_lose_nothing_and_a_reader_sees_only_whole_lines(file: Path) -> None:
    file.parent.mkdir(parents=True)
    writers = [program(ADD_MANY, file, writer, 12) for writer in range(4)]

    seen = {0}
    while any(writer.poll() is None for writer in writers):
        content = file.read_text() if file.exists() else ""
        assert content == "" or content.endswith(', decision="allow")\n')
        assert all(line.startswith('prefix_rule(pattern=["run", ') for line in content.splitlines())
        seen.add(content.count("\n"))

    assert [writer.returncode for writer in writers] == [0] * 4
    expected = {("run", str(writer), str(number), "x" * 300) for writer in range(4) for number in range(12)}
    assert set(prefixes(file)) == expected
    assert len(prefixes(file)) == 48
    assert len(seen) > 2, "the reader saw nothing of the middle"
    assert [each.name for each in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("survived", "expected"), [(0, [("old",)]), (1, [("old",), ("new",)])], ids=["before", "after"]
)
def test_a_kill_leaves_a_file_that_loads_and_takes_more(
    file: Path, survived: int, expected: list[tuple[str, ...]]
) -> None:
    append_rule(file, allow_rule(["old"]))

    assert program(DIE_IN_FSYNC, file, survived).wait(20) == -signal.SIGKILL

    assert prefixes(file) == expected
    assert len(Policy.load(file.parent.parent).rules.prefix_rules) == len(expected)
    assert append_rule(file, allow_rule(["later"])) is True
    assert prefixes(file) == [*expected, ("later",)]
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_full_disk_leaves_the_file_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_rule(file, allow_rule(["old"]))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        append_rule(file, allow_rule(["new"]))

    assert prefixes(file) == [("old",)]
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_rule_that_would_make_the_file_too_large_to_load_is_refused(file: Path) -> None:
    policy = Policy(amendments=file)
    policy.amend(["old"])

    with pytest.raises(OSError, match="would be larger than 1 MiB"):
        policy.amend(["bash", "-lc", "x" * MAX_FILE_BYTES])

    assert prefixes(file) == [("old",)]
    assert len(policy.rules.prefix_rules) == 1


def test_an_amendment_holds_at_once_and_for_the_next_process(tmp_path: Path) -> None:
    policy = Policy.load(tmp_path)
    before = policy.revision

    policy.amend(["wc", "-l"])

    for each in (policy, Policy.load(tmp_path)):
        assert strictest(match.decision for match in each.rules.matches(["wc", "-l", "a"])) == "allow"
        assert each.revision == policy.revision != before
    assert str(policy.rules.prefix_rules[0].source) == str(tmp_path / "rules" / "default.rules")


def test_an_amendment_that_is_there_changes_nothing(tmp_path: Path) -> None:
    policy = Policy.load(tmp_path)
    policy.amend(["wc"])
    revision = policy.revision

    policy.amend(["wc"])

    assert policy.revision == revision


def test_one_of_another_process_comes_into_force_when_it_is_made_here_too(tmp_path: Path) -> None:
    policy, other = Policy.load(tmp_path), Policy.load(tmp_path)
    other.amend(["wc"])

    policy.amend(["wc"])

    assert policy.rules.matches(["wc"])
    assert len(Policy.load(tmp_path).rules.prefix_rules) == 1


def test_a_policy_without_a_file_forgets_with_the_process() -> None:
    policy = Policy()

    policy.amend(["wc"])

    assert policy.rules.prefix_rules == (PrefixRule((("wc",),)),)


def test_what_cannot_be_written_down_does_not_come_into_force(tmp_path: Path) -> None:
    policy = Policy(amendments=tmp_path)  # a folder

    with pytest.raises(IsADirectoryError):
        policy.amend(["wc"])
    with pytest.raises(ValueError, match="prefix"):
        Policy().amend(["\udc80"])

    assert policy.rules.prefix_rules == ()


def test_the_flags_are_part_of_the_revision() -> None:
    both = (False, True)
    policies = [Policy(parity=parity, bypass_sandbox=bypass) for parity in both for bypass in both]

    assert len({policy.revision for policy in policies}) == 4


@pytest.mark.parametrize(
    ("variables", "home"),
    [
        ({"EXECSERVER_POLICY_HOME": "/p", "XDG_CONFIG_HOME": "/x"}, "/p"),
        ({"XDG_CONFIG_HOME": "/x"}, "/x/execserver"),
        ({"XDG_CONFIG_HOME": "relative"}, "/h/.config/execserver"),
        ({"EXECSERVER_POLICY_HOME": ""}, "/h/.config/execserver"),
    ],
)
def test_the_home_is_the_one_of_the_variable_else_in_the_settings_of_the_user(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], home: str
) -> None:
    monkeypatch.setenv("HOME", "/h")
    for name in ("EXECSERVER_POLICY_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert default_home() == Path(home)
