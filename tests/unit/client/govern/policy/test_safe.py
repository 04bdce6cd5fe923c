"""What is known to be safe, and what stays so with which arguments. The attempts to abuse it are in
`test_bypasses`."""

from __future__ import annotations

import pytest

from execclient.govern.policy import CO_SAFE_COMMANDS, co_safe, co_safe_prefix, known_safe

SAFE = [
    "ls",
    "ls -la /etc",
    "cat a b",
    "grep -rn 'a b' .",
    "head -n 5 x | tail -1",
    "ls && pwd || echo no; echo done | wc -c",
    "ls\npwd",
    "ls \\\n  -la",
    "cd sub && ls",
    "echo 'a > b; c'",
    "/bin/ls -l",
    "/usr/bin/git status --ignore-submodules=all",
    "find . -name '*.py' -newer x -print",
    "rg -n foo .",
    "rg -ez foo",
    "rg -tzig foo",
    "rg -g '*.gz' --hidden foo",
    "uniq",
    "uniq -c in",
    "uniq -f 1 in",
    "uniq -- in",
    "base64 -d x",
    "base64 -w0 x",
    "sed -n 1,5p x",
    "sed -n 5p",
    "uname -a",
    "git status --porcelain --ignore-submodules=all",
    "git log --oneline -5",
    "git log -Sfoo -p",
    "git --no-pager diff --ignore-submodules=all --stat HEAD",
    "git -P show HEAD:x",
    "git diff --ignore-submodules=all --output-indicator-new=x",
    "git diff --no-ext-diff --no-textconv --ignore-submodules=all",
    "git branch",
    "git branch -a -vv",
    "git branch '--format=%(refname)'",
]

CO_SAFE = [
    "ls",
    " ls -la ",
    "tree -L 2 -a",
    "find . -name x",
    "fd -e py foo",
    "cat x",
    "rg foo",
    "ag foo src",
    "sort -k1,1n -u x",
    "uniq -c x",
    "jq .name x.json",
    "printf 'a b'",
    "hostname",
    "hostname -f",
    "date",
    "date -u +%Y-%m-%d",
    "date -d yesterday",
    "date --rfc-3339=seconds",
    "env",
    "env -0",
    "file -b x",
    "du -sh .",
    "df -h",
    "git status",
    "git diff HEAD",
    "git tag",
    "git tag -l v1",
    "git tag -n3",
    "git tag --sort=refname",
    "git blame x",
    "git branch -v",
]


@pytest.mark.parametrize("script", SAFE, ids=ascii)
def test_commands_that_only_read_are_known_to_be_safe(script: str) -> None:
    assert known_safe(["bash", "-lc", script], explicit_repositories=True)
    assert known_safe(["/bin/sh", "-c", script], explicit_repositories=True)


@pytest.mark.parametrize("argv", [["ls"], ["/bin/ls"], ["echo", "$HOME; rm x"], ["cat", "a\nb"]], ids=repr)
def test_an_argv_needs_no_quotes_to_be_safe(argv: list[str]) -> None:
    assert known_safe(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["./ls"],
        ["/tmp/ls"],
        ["uniq", "a", "b"],
        ["rg", "-nz", "x"],
        ["git", "diff", "-o", "x"],
        ["git", "log", "--outp=x"],
        ["git", "--", "status"],
        ["sed", "-n", "1p", "-i"],
        ["bash", "-lc", "cd x && git status"],
        ["bash", "-lc", "git log --out\\\nput=x"],
    ],
    ids=repr,
)
def test_the_gaps_of_the_older_list_are_open_only_for_parity(argv: list[str]) -> None:
    assert known_safe(argv, parity=True)
    assert not known_safe(argv, explicit_repositories=True)


def test_one_unknown_command_makes_a_script_unsafe() -> None:
    assert not known_safe(["bash", "-lc", "ls && make && pwd"])
    assert not known_safe(["bash", "-lc", "ls && make && pwd"], parity=True)


@pytest.mark.parametrize("argv", [[], [""], ["bash", "-lc", ""], ["bash", "-lc", " \n"]], ids=repr)
@pytest.mark.parametrize("parity", [False, True])
def test_nothing_at_all_is_not_safe(argv: list[str], parity: bool) -> None:
    assert not known_safe(argv, parity=parity)


@pytest.mark.parametrize("command", CO_SAFE, ids=ascii)
def test_a_safe_prefix_stays_safe_with_harmless_arguments(command: str) -> None:
    assert co_safe_prefix(command)
    assert co_safe(command)


def test_the_default_prefixes_are_the_documented_ones() -> None:
    words = [prefix for prefix in CO_SAFE_COMMANDS if " " not in prefix]
    forms_of_git = [prefix for prefix in CO_SAFE_COMMANDS if prefix.startswith("git ")]

    assert (len(set(CO_SAFE_COMMANDS)), len(words), len(forms_of_git)) == (35, 28, 7)


@pytest.mark.parametrize("prefix", CO_SAFE_COMMANDS)
def test_every_default_prefix_is_safe_by_itself(prefix: str) -> None:
    assert co_safe(prefix)


@pytest.mark.parametrize(
    "command",
    [
        "ls; pwd",
        "ls & pwd",
        "ls && pwd",
        "ls | wc",
        "ls || pwd",
        "ls > x",
        "ls >> x",
        "ls < x",
        "ls << x",
        "ls `pwd`",
        "ls $(pwd)",
        "ls\npwd",
        "ls\r\npwd",
        "echo ';'",
    ],
    ids=ascii,
)
def test_a_character_that_chains_or_redirects_refuses_a_command_line(command: str) -> None:
    assert not co_safe_prefix(command)
    assert not co_safe(command)


@pytest.mark.parametrize(
    "command", ["lsof", "catx", "git statusx", "git", "git push", "git-status", "ls,", "", " "]
)
def test_a_prefix_ends_at_a_blank(command: str) -> None:
    assert not co_safe_prefix(command)


def test_the_longest_prefix_counts() -> None:
    assert co_safe_prefix("git push", ["git push", "git"])
    assert not co_safe("git tag x", ["git", "git tag"])
    assert co_safe("git stash", ["git", "git tag"])


def test_prefixes_of_ones_own_are_taken_at_their_word() -> None:
    assert co_safe("make test -j4", ["make test"])
    assert not co_safe("make install", ["make test"])
    assert not co_safe("ls", ["make test"])
    assert not co_safe("ls", [""])


@pytest.mark.parametrize("command", ["make $X", "make *", "A=1 make", "make a\\ b", "'make' x"])
def test_prefixes_of_ones_own_bear_plain_arguments_only(command: str) -> None:
    assert not co_safe(command, ["make", "A=1 make", "'make'"])
