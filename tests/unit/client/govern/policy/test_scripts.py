"""Lowering: which scripts are lists of plain commands, and what is found in all the others."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from execclient.govern.policy import literal_commands, lower, plain_commands, script_of, unreadable
from execclient.govern.policy.shell_syntax import MAX_SCRIPT_BYTES

Plain = list[list[str]]

PLAIN: list[tuple[str, Plain]] = [
    ("make", [["make"]]),
    ("make -j8 all", [["make", "-j8", "all"]]),
    ("  make  all  ", [["make", "all"]]),
    ("make\tall", [["make", "all"]]),
    ("\n\nmake\n\n", [["make"]]),
    ("make; ninja", [["make"], ["ninja"]]),
    ("make;ninja;", [["make"], ["ninja"]]),
    ("make && ninja", [["make"], ["ninja"]]),
    ("make&&ninja", [["make"], ["ninja"]]),
    ("make || ninja", [["make"], ["ninja"]]),
    ("make | less", [["make"], ["less"]]),
    ("make|sort|uniq -c", [["make"], ["sort"], ["uniq", "-c"]]),
    ("a && b || c; d | e\nf", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
    ("make &&\n  ninja", [["make"], ["ninja"]]),
    ("make ||\nninja", [["make"], ["ninja"]]),
    ("make |\n  less", [["make"], ["less"]]),
    ("make\nninja", [["make"], ["ninja"]]),
    ("make\n\n\nninja\n", [["make"], ["ninja"]]),
    ("make \\\n  all", [["make", "all"]]),
    ("make all \\\n  && ninja", [["make", "all"], ["ninja"]]),
    ("grep 'a b' x", [["grep", "a b", "x"]]),
    ('grep "a b" x', [["grep", "a b", "x"]]),
    ("grep 'a'\"b\"c x", [["grep", "abc", "x"]]),
    ("grep a'b'c x", [["grep", "abc", "x"]]),
    ("grep '$HOME *' x", [["grep", "$HOME *", "x"]]),
    ("grep '`x`' x", [["grep", "`x`", "x"]]),
    ("grep 'a;b|c&d' x", [["grep", "a;b|c&d", "x"]]),
    ('grep "a;b|c&d>e" x', [["grep", "a;b|c&d>e", "x"]]),
    ('grep "it\'s" x', [["grep", "it's", "x"]]),
    ("grep 'say \"x\"' x", [["grep", 'say "x"', "x"]]),
    ("grep '' x", [["grep", "", "x"]]),
    ('grep "" x', [["grep", "", "x"]]),
    ('grep "  a  " x', [["grep", "  a  ", "x"]]),
    ("grep '\\n' x", [["grep", "\\n", "x"]]),
    ('grep "\\n" x', [["grep", "\\n", "x"]]),
    ("printf 'a\nb'", [["printf", "a\nb"]]),
    ("python3 -c 'print(1)'", [["python3", "-c", "print(1)"]]),
    ("sed -n '1,$p' x", [["sed", "-n", "1,$p", "x"]]),
    ("git commit -m 'Fix #12'", [["git", "commit", "-m", "Fix #12"]]),
    ("git log --format='%h %s'", [["git", "log", "--format=%h %s"]]),
    ("cargo test -- --nocapture", [["cargo", "test", "--", "--nocapture"]]),
    ("npm run build:prod", [["npm", "run", "build:prod"]]),
    ("pytest tests/a.py::test_b", [["pytest", "tests/a.py::test_b"]]),
    ("docker run -v /a:/b image", [["docker", "run", "-v", "/a:/b", "image"]]),
    ("curl https://example.org/a", [["curl", "https://example.org/a"]]),
    ("kill -9 123", [["kill", "-9", "123"]]),
    ("sleep 0.5", [["sleep", "0.5"]]),
    ("test 1 -eq 2", [["test", "1", "-eq", "2"]]),
    ("dd if=a of=b", [["dd", "if=a", "of=b"]]),
    ("./configure --prefix=/usr", [["./configure", "--prefix=/usr"]]),
    ("/bin/ls -l", [["/bin/ls", "-l"]]),
    ("echo if then else", [["echo", "if", "then", "else"]]),
    ("echo a!", [["echo", "a!"]]),
    ("echo größer", [["echo", "größer"]]),
    ("time make", [["time", "make"]]),
    ("sudo make install", [["sudo", "make", "install"]]),
    ("sh -c 'a; b'", [["sh", "-c", "a; b"]]),
    (":", [[":"]]),
    ("", []),
    (" \n ", []),
]

NOT_PLAIN = [
    "make &",
    "make & ninja",
    "make |& less",
    "! make",
    "make > log",
    "make >> log",
    "make 2>&1",
    "make &> log",
    "make < in",
    "make <<< text",
    "make <<EOF\nx\nEOF",
    "make <<'EOF'\nx\nEOF",
    "make <(ninja)",
    "(make)",
    "{ make; }",
    "$(make)",
    "`make`",
    "echo $(make)",
    'echo "$(make)"',
    'echo "`make`"',
    "echo $HOME",
    'echo "$HOME"',
    "echo ${HOME}",
    "echo $1",
    "echo $?",
    "echo $((1+1))",
    "echo *",
    "echo a?",
    "echo [ab]",
    "echo {a,b}",
    "echo {1..3}",
    "echo ~",
    "echo ~/x",
    "echo =ls",
    "echo a^b",
    "echo a#b",
    "echo 10#3",
    "echo a\\ b",
    "echo \\a",
    'echo "a\\"b"',
    'echo "a\\$b"',
    'echo "a\\\\b"',
    'echo "$"',
    "echo $'a'",
    'echo $"a"',
    "echo \"\"''",
    "'make'",
    '"make"',
    "ma'ke'",
    "\\make",
    "$MAKE all",
    "A=1",
    "A=1 make",
    "A=(1 2)",
    "export A=1",
    "declare -x A",
    "unset A",
    "[ -f x ]",
    "[[ -f x ]]",
    "((1))",
    "if make; then ninja; fi",
    "for i in a b; do make; done",
    "for ((i=0;;)); do make; done",
    "while make; do ninja; done",
    "until make; do ninja; done",
    "case a in a) make;; esac",
    "select a in b; do make; done",
    "f() { make; }",
    "function f { make; }",
    "make # all",
    "# make",
    "make;;",
    "make &&",
    "&& make",
    "make |",
    "; make",
    "make )",
    "make 'x",
    'make "x',
    "make \\",
    "make\0all",
    "make \ud800",
]

INEXACT = [
    ("ma\\\nke", [["ma", "ke"]]),
    ("make a\\\nb", [["make", "a", "b"]]),
    ("make\\\n\\\n all", [["make", "all"]]),
    ("make\rall", [["make", "all"]]),
    ("make\r\nninja", [["make"], ["ninja"]]),
    ("make\x0ball", [["make", "all"]]),
    ("make \\ all", [["make", "all"]]),
    ("\ufeffmake", [["make"]]),
    ("make\n\\\n all", [["make", "all"]]),
]


def as_lists(commands: object) -> object:
    return [list(each) for each in commands] if isinstance(commands, list) else commands


def test_the_corpus_is_large_enough_and_has_no_script_twice() -> None:
    scripts = [script for script, _ in PLAIN] + NOT_PLAIN + [script for script, _ in INEXACT]

    assert len(scripts) == len(set(scripts)) >= 100


@pytest.mark.parametrize(("script", "commands"), PLAIN, ids=ascii)
@pytest.mark.parametrize("exact", [False, True])
def test_a_script_of_plain_commands_is_lowered(script: str, commands: Plain, exact: bool) -> None:
    assert as_lists(plain_commands(script, exact=exact)) == commands


@pytest.mark.parametrize("script", NOT_PLAIN, ids=ascii)
def test_any_other_script_is_unknown(script: str) -> None:
    argv = ("bash", "-lc", script)

    assert plain_commands(script) is None
    assert lower(argv) == ((argv,), False)


@pytest.mark.parametrize(("script", "commands"), INEXACT, ids=ascii)
def test_where_the_parser_and_bash_part_words_differently_exact_lowering_refuses(
    script: str, commands: Plain
) -> None:
    assert as_lists(plain_commands(script)) == commands
    assert plain_commands(script, exact=True) is None


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        (["bash", "-c", "ls"], "ls"),
        (["bash", "-lc", "ls"], "ls"),
        (["/bin/zsh", "-lc", "ls"], "ls"),
        (["/usr/bin/sh", "-c", ""], ""),
        (["bash.exe", "-c", "ls"], "ls"),
        (["bash", "-cl", "ls"], None),
        (["bash", "-c", "ls", "x"], None),
        (["bash", "-c"], None),
        (["bash", "-x", "ls"], None),
        (["dash", "-c", "ls"], None),
        (["rbash", "-c", "ls"], None),
        (["ls", "-c", "ls"], None),
        ([], None),
    ],
    ids=repr,
)
def test_a_script_is_what_a_known_shell_is_given(argv: list[str], script: str | None) -> None:
    assert script_of(argv) == script


def test_an_argv_without_a_script_is_its_own_only_command() -> None:
    assert lower(["ls", "$HOME"]) == ((("ls", "$HOME"),), True)
    assert lower([]) == ((), True)


def test_an_empty_script_counts_as_unknown() -> None:
    assert lower(["bash", "-lc", " "]) == ((("bash", "-lc", " "),), False)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("A=1 cat x > out", ["cat", "x"]),
        ("cat $A x", ["cat", "x"]),
        ('cat "a b" c\\ d', ["cat", "a b", "c d"]),
        ("cat 'a'$'\\tb'", ["cat", "a\tb"]),
        ('cat "a\\$b"', ["cat", "a$b"]),
        ('"c"\\at "a"\\b', ["cat", "ab"]),
        ("cat 2>/dev/null x", ["cat", "x"]),
        ("< in cat x", ["cat", "x"]),
        ("git > log push 2> err origin", ["git", "push", "origin"]),
        ("ls | git > log push", ["git", "push"]),
        ("git <<E push\nx\nE", ["git", "push"]),
        ("git <<E > log push\nx\nE", ["git", "push"]),
        ("git <<< x push", ["git", "push"]),
        ("cat {} +", ["cat", "{}", "+"]),
        ("sudo -u root git push", ["git", "push"]),
        ("timeout -k 5 10 git push", ["git", "push"]),
        ("ls | xargs -n1 git push", ["git", "push"]),
        ("find . -exec git push ';'", ["git", "push"]),
        ("sh -c 'sh -c \"git push\"'", ["git", "push"]),
        ("eval git push", ["git", "push"]),
        ("echo git push | sh", ["git", "push"]),
        ("if a; then b; else git push; fi", ["git", "push"]),
        ("f() { for i in 1; do git push & done; }", ["git", "push"]),
        ("declare -r X=$(git push)", ["git", "push"]),
        ("export X", ["export"]),
        ("g\\\nit push", ["git", "push"]),
    ],
    ids=ascii,
)
def test_commands_are_found_wherever_they_can_be_read(script: str, expected: list[str]) -> None:
    argv = ["bash", "-lc", script]

    assert tuple(expected) in literal_commands(argv)
    assert not unreadable(argv)


def test_commands_are_found_behind_the_wrappers_of_an_argv() -> None:
    assert literal_commands(["nice", "env", "A=1", "cat", "x"]) == [
        ("nice", "env", "A=1", "cat", "x"),
        ("env", "A=1", "cat", "x"),
        ("cat", "x"),
    ]


def test_the_search_begins_with_the_lowered_commands() -> None:
    argv = ["bash", "-lc", "ls && sudo cat x"]

    assert literal_commands(argv) == [("ls",), ("sudo", "cat", "x"), tuple(argv), ("cat", "x")]


@pytest.mark.parametrize(
    "script",
    [
        "command -v cat",
        "bash build.sh | tee log",
        "bash --version | head -1",
        "source ./env.sh && make",
        "find . | xargs -0 -n 1 rm",
        "find . | xargs",
        "sudo -E make",
        "env | sort",
        "cat $FILE",
        "trap - EXIT",
        "grep -c . < in",
        'while read -r l; do echo "$l"; done < in',
    ],
)
def test_ordinary_scripts_are_readable(script: str) -> None:
    assert not unreadable(["bash", "-lc", script])


@pytest.mark.parametrize(
    "script",
    [
        "$CMD",
        '"$CMD" x',
        "c${x}at",
        "/bin/c?t",
        "~/cat",
        "{cat,x}",
        'eval "$X"',
        'sh -c "$X"',
        "sudo $X",
        "timeout 5 $X",
        "xargs sudo",
        "curl x | sh",
        "cat f | sh",
        'bash <<< "$X"',
        "cat <<A <<B\na\nA\nb\nB",
        "ls (",
        "ls\0",
        "ls \udcff",
    ],
    ids=ascii,
)
def test_a_script_is_unreadable_where_only_a_shell_could_tell(script: str) -> None:
    assert unreadable(["bash", "-lc", script])


def test_scripts_inside_of_scripts_are_read_up_to_a_depth() -> None:
    def nested(depth: int) -> list[str]:
        argv = ["cat", "x"]
        for _ in range(depth):
            argv = [
                "sh",
                "-c",
                " ".join(word if word.isalnum() or word == "-c" else quoted(word) for word in argv),
            ]
        return argv

    def quoted(text: str) -> str:
        return "'" + text.replace("'", "'\\''") + "'"

    assert ("cat", "x") in literal_commands(nested(8))
    assert not unreadable(nested(8))
    assert unreadable(nested(9))


def test_a_script_above_the_limit_is_refused() -> None:
    script = "#" * MAX_SCRIPT_BYTES + "\nls"

    assert plain_commands(script) is None
    assert unreadable(["bash", "-lc", script])


def test_a_long_script_is_read_like_a_short_one() -> None:
    script = "echo 'größer' x" + "y" * 30_000 + "\n" + "ls -la | wc\n" * 1000

    commands = plain_commands(script, exact=True)

    assert commands is not None
    assert commands[0] == ("echo", "größer", "x" + "y" * 30_000)
    assert commands[-2:] == [("ls", "-la"), ("wc",)]
    assert len(commands) == 2001


@pytest.mark.parametrize(
    "script",
    [
        "ls;" * 100_000,
        "(" * 200_000,
        "$(" * 100_000,
        "<<A " * 15_000,
        "sudo -a b " * 20_000,
        "bwrap " + "a " * 5_000,
        "find " + "-exec " * 5_000,
    ],
    ids=lambda script: script[:12],
)
def test_scripts_made_to_be_slow_are_given_up_in_time(script: str) -> None:
    before = time.process_time()

    assert unreadable(["bash", "-lc", script])
    assert time.process_time() - before < 5


def test_importing_the_package_does_not_load_the_parser() -> None:
    code = "import sys, execclient.govern.policy; print('tree_sitter' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


def test_a_missing_parser_is_an_error_that_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['tree_sitter_bash'] = None\n"
        "from execclient.govern.policy import plain_commands\n"
        "plain_commands('ls')"
    )

    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert failed.returncode == 1
    assert b"ImportError: reading shell commands needs tree-sitter" in failed.stderr
    assert b'pip install "execclient[tools]"' in failed.stderr
