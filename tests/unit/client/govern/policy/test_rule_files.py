from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from execclient.errors import PolicyError
from execclient.govern.policy import starlark_files
from execclient.govern.policy.rule_files import (
    MAX_FILE_BYTES,
    PolicyWarning,
    find_rule_files,
    load_rules,
    parse_rules,
)
from execclient.govern.policy.rules import NetworkRule, PrefixRule, RuleSource

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Make a file."""

    def make(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return make


def refusal(text: str) -> PolicyError:
    with pytest.raises(PolicyError) as refused:
        parse_rules(text, "a.rules")
    assert refused.value.file == "a.rules"
    return refused.value


def test_each_rule_knows_the_line_it_came_from() -> None:
    rules = parse_rules(
        '# why\nprefix_rule(["a"])\n\nprefix_rule(\n  ["b"],\n  "prompt", justification="x")', "f"
    )

    assert rules.prefix_rules == (
        PrefixRule((("a",),), "allow", None, RuleSource("f", 2)),
        PrefixRule((("b",),), "prompt", "x", RuleSource("f", 4)),
    )


def test_a_rule_made_by_a_function_has_the_line_of_the_function() -> None:
    text = 'def allow(*words):\n  prefix_rule(list(words))\n\nfor word in ["a", "b"]:\n  allow("git", word)\n'

    assert [str(rule.source) for rule in parse_rules(text, "f").prefix_rules] == ["f:2", "f:2"]


def test_a_list_in_front_makes_a_rule_for_each_program() -> None:
    rules = parse_rules('prefix_rule([["npm", "pnpm"], ["run", "exec"]])', "f").prefix_rules

    assert [rule.pattern for rule in rules] == [
        (("npm",), ("run", "exec")),
        (("pnpm",), ("run", "exec")),
    ]


def test_none_stands_for_what_is_left_out() -> None:
    text = 'prefix_rule(["a"], decision=None, match=None, not_match=None, justification=None)'

    assert parse_rules(text, "f").prefix_rules[0].decision == "allow"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ('pass\nprefix_rule(["a"], "Allow")', 2, "invalid decision: Allow"),
        ('prefix_rule(["a"], "deny")', 1, "invalid decision: deny"),
        (
            'prefix_rule(["a", ["b", 1]])',
            1,
            "invalid pattern element: pattern alternative must be a string (got int)",
        ),
        ('prefix_rule(["a", None])', 1, "pattern element must be a string or list of strings (got NoneType)"),
        ('prefix_rule(["a"], justification="  ")', 1, "invalid rule: justification cannot be empty"),
        (
            'prefix_rule("ls")',
            1,
            "Type of parameter `pattern` doesn't match, expected `list`, actual `string",
        ),
        (
            'prefix_rule(("ls",))',
            1,
            "Type of parameter `pattern` doesn't match, expected `list`, actual `tuple",
        ),
        (
            'prefix_rule(["a"], 3)',
            1,
            "Type of parameter `decision` doesn't match, expected `None | str`, actual `int (repr: 3)`",
        ),
        ('prefix_rule(["a"], match="a")', 1, "Type of parameter `match` doesn't match, expected `list`"),
        ("prefix_rule([lambda: 1])", 1, "pattern element must be a string or list of strings (got function)"),
        ('prefix_rule(["a"], match=["a \'"])', 1, "invalid example: example string has invalid shell syntax"),
        (
            'prefix_rule(["a"], match=[["a", 1]])',
            1,
            "invalid example: example tokens must be strings (got int)",
        ),
        ('prefix_rule(["a"], why="x")', 1, "`why`"),
        (
            'prefix_rule(["a"], "allow", [], [], None, 1)',
            1,
            "Found 1 extra positional argument(s) for call to prefix_rule",
        ),
        ('host_executable("git")', 1, "Missing parameter `paths` for call to `host_executable`"),
        (
            'host_executable("git", ["/usr/bin/rg"])',
            1,
            "invalid rule: host_executable path `/usr/bin/rg` must have basename `git`",
        ),
        ('host_executable("git", ["/usr/bin/git/.."])', 1, "must have basename `git`"),
        ('host_executable("..", [])', 1, "must be a bare executable name (got ..)"),
        ('host_executable("git", [1])', 1, "invalid rule: host_executable paths must be strings (got int)"),
        ('network_rule("", "http", "allow")', 1, "invalid rule: network_rule host cannot be empty"),
        (
            'network_rule("a b", "http", "allow")',
            1,
            "invalid rule: network_rule host cannot contain whitespace",
        ),
        (
            'network_rule("[::1", "http", "allow")',
            1,
            "network_rule host has an invalid bracketed IPv6 literal",
        ),
        (
            'network_rule("[::1]x", "http", "allow")',
            1,
            "network_rule host contains an unsupported suffix: [::1]x",
        ),
        ('network_rule("a", "http")', 1, "Missing parameter `decision`"),
        ("pass\nprefix_rule(\n", 2, "Parse error: "),
        ("pass\n\nnope()\n", 3, "Variable `nope` not found"),
        ('x = 1\nload("b.rules", "y")', 2, "No imports are available, you tried `b.rules`"),
        ('print("x")', 1, "Variable `print` not found"),
        ("def f():\n  f()\nf()", 2, "call stack overflow"),
        ('x = ["a"]\nx.append(x)\nprefix_rule(x)', 3, "call stack overflow"),
        ('fail("no\\n --> rules:77:1\\n")', 1, "fail: no"),
        ("# c\n# policy version: one\npass", 2, "policy version: expected a number, got 'one'"),
        ("# policy version: 2\nmystery_rule()", 1, "policy version 2: this program understands 1 and older"),
    ],
)
def test_a_refusal_names_the_line_and_what_is_wrong(text: str, line: int, reason: str) -> None:
    error = refusal(text)

    assert error.line == line
    assert reason in error.reason
    assert str(error) == f"a.rules:{line}: {error.reason}"


def test_examples_are_checked_when_the_whole_file_is_read() -> None:
    text = (
        'prefix_rule(["git"], match=["/usr/bin/git x"], not_match=["/opt/git x", "hg"])\n'
        'host_executable("git", ["/usr/bin/git"])\n'
    )

    assert len(parse_rules(text, "a.rules").prefix_rules) == 1


def test_an_example_that_matches_against_its_will_is_refused_with_its_line() -> None:
    error = refusal('pass\nprefix_rule(["git", ["push", "fetch"]], "prompt", not_match=["git push \'a b\'"])')

    assert error.line == 2
    assert error.reason == (
        'expected example to not match rule `PrefixRuleMatch { matched_prefix: ["git", "push"], '
        "decision: Prompt, resolved_program: None, justification: None }`: git push 'a b'"
    )


def test_examples_that_do_not_match_are_all_named() -> None:
    error = refusal('prefix_rule(["a", ["b", "c"], "d"], justification="x \\"y\\"", match=["a", ["z\\n"]])')

    assert error.reason == (
        'expected every example to match at least one rule. rules: ["PrefixRule { pattern: PrefixPattern { '
        'canonical_matching: false, first: \\"a\\", rest: [Alts([\\"b\\", \\"c\\"]), Single(\\"d\\")] }, '
        'decision: Allow, justification: Some(\\"x \\\\\\"y\\\\\\"\\") }"]; '
        'unmatched examples: ["a", "\'z\\n\'"]'
    )


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (" Example.COM. ", "example.com", None),
        ("example.com:443", "example.com", 443),
        ("10.0.0.1", "10.0.0.1", None),
        ("fe80::1", "fe80::1", None),
        ("[FE80::1]:80", "fe80::1", 80),
        ("[::1]", "::1", None),
    ],
)
def test_network_rules_are_kept_with_host_and_port(text: str, host: str, port: int | None) -> None:
    (rule,) = parse_rules(f'network_rule("{text}", "http-connect", "deny", "why")', "f").network_rules

    assert rule == NetworkRule(host, "https", "forbidden", "why", RuleSource("f", 1), port)


def test_an_endless_loop_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starlark_files, "LIMIT_SECONDS", 0.05)

    error = refusal("pass\nfor i in range(2000000000):\n  pass")

    assert error.line == 2
    assert "it takes more than 0.05 s" in error.reason


def test_a_panic_of_the_library_is_a_refusal() -> None:
    assert "Starlark gives up" in refusal("x = list(range(1 << 30))").reason


def test_a_file_of_an_older_version_is_read_with_a_warning() -> None:
    with pytest.warns(PolicyWarning, match=r"f:1: policy version 0 is older than 1"):
        rules = parse_rules('# policy version: 0\nprefix_rule(["a"])', "f")

    assert len(rules.prefix_rules) == 1


@pytest.mark.parametrize("head", ["", "# policy version: 1\n", "\n# x\n# Policy files of the team\n"])
def test_a_file_of_this_version_or_of_none_is_read_in_silence(head: str) -> None:
    assert len(parse_rules(f'{head}prefix_rule(["a"])', "f").prefix_rules) == 1


def test_a_version_below_the_first_statement_is_a_comment() -> None:
    assert len(parse_rules('prefix_rule(["a"])\n# policy version: 9', "f").prefix_rules) == 1


def test_a_byte_order_mark_in_front_of_a_file_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "a.rules"
    file.write_bytes('\ufeffprefix_rule(["a"])\r\nprefix_rule(["b"])\r\n'.encode())

    assert [str(rule.source) for rule in load_rules([file]).prefix_rules] == [f"{file}:1", f"{file}:2"]
    assert "policy version 99" in str(refusal("\ufeff# policy version: 99\n"))
    assert "policy version 99" in str(refusal("\ufeff\r\n# policy version: 99\r\n"))


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0c", "\x0b", "\x1c"])
def test_only_a_line_end_ends_the_comment_with_the_version(separator: str) -> None:
    parse_rules(f"# by hand{separator}# policy version: 99\n", "f")
    assert refusal(f"# by{separator}hand\n# policy version: 99\n").line == 2


def test_files_are_read_in_order_and_the_last_word_on_an_executable_counts(write: Write) -> None:
    first = write("a.rules", 'prefix_rule(["git"])\nhost_executable("git", ["/a/git"])')
    second = write("b.rules", 'prefix_rule(["ls"], match=["/bin/ls"])\nhost_executable("git", ["/b/git"])')

    rules = load_rules([first, second])

    assert [rule.pattern[0] for rule in rules.prefix_rules] == [("git",), ("ls",)]
    assert rules.host_executables == {"git": ("/b/git",)}


def test_examples_go_by_executables_of_earlier_files(write: Write) -> None:
    first = write("a.rules", 'host_executable("git", [])')
    second = write("b.rules", 'prefix_rule(["git"], not_match=["/usr/bin/git"])')

    assert len(load_rules([first, second]).prefix_rules) == 1


def test_one_broken_file_leaves_no_rule_in_force(write: Write) -> None:
    good, bad = write("a.rules", 'prefix_rule(["a"])'), write("b.rules", "prefix_rule(")

    with pytest.raises(PolicyError) as refused:
        load_rules([good, bad])

    assert str(refused.value).startswith(f"{bad}:1: Parse error")
    assert refused.value.code == "policy_error"


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"# a\n\xff", 2, "is not UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), None, "is larger than 1 MiB"),
    ],
)
def test_what_is_no_rule_file_is_refused(
    tmp_path: Path, content: bytes, line: int | None, reason: str
) -> None:
    file = tmp_path / "a.rules"
    file.write_bytes(content)

    with pytest.raises(PolicyError) as refused:
        load_rules([file])

    assert (refused.value.file, refused.value.line) == (str(file), line)
    assert reason in refused.value.reason


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read: No such file or directory"):
        load_rules([tmp_path / "a.rules"])


def test_files_are_found_by_name_first_at_home_then_in_projects(tmp_path: Path, write: Write) -> None:
    for name in (
        "home/rules/b.rules", "home/rules/a.rules", "home/rules/a.rules.bak", "home/rules/.default.rules.new",
        "p2/.codex/rules/z.rules", "p1/.codex/rules/y.rules", "p1/rules/no.rules",
    ):  # fmt: skip
        write(name, "")

    found = find_rule_files(tmp_path / "home", [tmp_path / "p2", tmp_path / "p1", tmp_path / "p3"])

    assert [str(file.relative_to(tmp_path)) for file in found] == [
        "home/rules/a.rules",
        "home/rules/b.rules",
        "p2/.codex/rules/z.rules",
        "p1/.codex/rules/y.rules",
    ]


def test_a_link_that_leads_nowhere_is_not_overlooked(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "a.rules").symlink_to(tmp_path / "gone")

    with pytest.raises(PolicyError, match=r"a\.rules: cannot be read"):
        load_rules(find_rule_files(tmp_path))


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)  # root, as which tests may run, is denied nothing

    with pytest.raises(PolicyError, match=r"rules: cannot be listed: Permission denied"):
        find_rule_files(tmp_path)


def test_a_missing_library_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def without_starlark(name: str, *rest: Any) -> Any:
        if name == "starlark":
            raise ImportError("No module named 'starlark'")
        return genuine(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_starlark)

    assert 'pip install "execclient[policy]"' in refusal("pass").reason


def test_the_library_is_imported_only_when_there_is_a_file() -> None:
    program = (
        "import sys; from execclient.govern.policy.rule_files import load_rules; load_rules([]);"
        "sys.exit('starlark' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
