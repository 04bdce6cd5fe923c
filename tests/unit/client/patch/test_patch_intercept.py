"""Which shell calls are patches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execclient.patch.errors import PatchSyntaxError
from execclient.patch.intercept import Intercepted, PatchWithoutCall, UnknownDirectory, intercept

PATCH = "*** Begin Patch\n*** Add File: f\n+one\n*** End Patch"
DOCUMENT = f"<<'EOF'\n{PATCH}\nEOF"


def in_shell(script: str) -> Intercepted | PatchWithoutCall | UnknownDirectory | None:
    return intercept(["/bin/bash", "-lc", script], "/w")


@pytest.mark.parametrize("name", ["apply_patch", "applypatch"])
def test_a_direct_call_is_taken(name: str) -> None:
    assert intercept([name, PATCH], "/w") == Intercepted(PATCH, "/w")


@pytest.mark.parametrize("shell", ["bash", "/usr/bin/zsh", "sh", "Bash.exe"])
@pytest.mark.parametrize("flag", ["-c", "-lc"])
def test_a_call_in_a_shell_is_taken(shell: str, flag: str) -> None:
    assert intercept([shell, flag, f"apply_patch {DOCUMENT}"], "/w") == Intercepted(PATCH, "/w")


@pytest.mark.parametrize(
    "argv",
    [
        ["apply_patch"],
        ["apply_patch", PATCH, "more"],
        ["/usr/bin/apply_patch", PATCH],
        ["fish", "-c", f"apply_patch {DOCUMENT}"],
        ["bash", "-xc", f"apply_patch {DOCUMENT}"],
        ["bash", "-c", f"apply_patch {DOCUMENT}", "arg0"],
        ["ls"],
        [],
    ],
)
def test_other_calls_are_not(argv: list[str]) -> None:
    assert intercept(argv, "/w") is None


@pytest.mark.parametrize(
    "script",
    [
        f"\n  apply_patch {DOCUMENT}\n\n",
        f"A=1 B='2 3' apply_patch {DOCUMENT}",
        f"apply_patch <<EOF\n{PATCH}\nEOF",
        f'apply_patch << "EOF"\n{PATCH}\nEOF',
        f"apply_patch <<\\EOF\n{PATCH}\nEOF",
        f"apply_patch <<'END OF PATCH'\n{PATCH}\nEND OF PATCH",
        f"apply_patch <<END-OF.PATCH\n{PATCH}\nEND-OF.PATCH",
        f"apply_patch <<-EOF\n{PATCH}\n\tEOF",
        "apply_patch <<-EOF\n" + "".join(f"\t\t{line}\n" for line in PATCH.split("\n")) + "\tEOF",
    ],
)
def test_all_forms_of_a_here_document_are_taken(script: str) -> None:
    assert in_shell(script) == Intercepted(PATCH, "/w")


@pytest.mark.parametrize(
    "line",
    [
        "+$HOME `id` $(id)",
        "+${unclosed",
        "+$(unclosed",
        "+` unclosed",
        "+it's",
        '+"',
        "+<<OTHER",
        "+EOF",
        "+\\",
    ],
)
@pytest.mark.parametrize("tag", ["EOF", "'EOF'"])
def test_what_a_patch_holds_is_never_read_as_a_script(line: str, tag: str) -> None:
    patch = PATCH.replace("+one", line)

    assert in_shell(f"apply_patch <<{tag}\n{patch}\nEOF") == Intercepted(patch, "/w")


@pytest.mark.parametrize(
    ("change", "directory"),
    [
        ("cd d", "/w/d"),
        ("cd /abs/x", "/abs/x"),
        ("cd ../x", "/x"),
        ("cd 'my dir'", "/w/my dir"),
        ('cd "my dir"', "/w/my dir"),
        ("cd my\\ dir", "/w/my dir"),
        ('cd "a\\"b"', '/w/a"b'),
        ("cd '~'", "/w/~"),
        ("cd 2026", "/w/2026"),
        ("cd ''", "/w"),
        ("A=1 cd d", "/w/d"),
        ("cd d/../e/", "/w/e"),
    ],
)
def test_a_change_of_directory_before_it_is_followed(change: str, directory: str) -> None:
    assert in_shell(f"{change} && apply_patch {DOCUMENT}") == Intercepted(PATCH, directory)
    assert in_shell(f"{change} &&\n  apply_patch {DOCUMENT}") == Intercepted(PATCH, directory)


@pytest.mark.parametrize("change", ["cd ~", "cd ~/x", "cd ~root"])
def test_a_home_directory_is_refused_with_the_way_out(change: str) -> None:
    result = in_shell(f"{change} && apply_patch {DOCUMENT}")

    assert isinstance(result, UnknownDirectory)
    assert result.tool_text.startswith("apply_patch verification failed: ")
    assert "absolute path" in result.tool_text


@pytest.mark.parametrize(
    "script",
    [
        f"cd && apply_patch {DOCUMENT}",
        f"cd a b && apply_patch {DOCUMENT}",
        f"cd -P a && apply_patch {DOCUMENT}",
        f"cd - && apply_patch {DOCUMENT}",
        f"cd $HOME && apply_patch {DOCUMENT}",
        f'cd "$HOME/x" && apply_patch {DOCUMENT}',
        f"cd d* && apply_patch {DOCUMENT}",
        f"cd {{a,b}} && apply_patch {DOCUMENT}",
        f"CDPATH=/x cd d && apply_patch {DOCUMENT}",
        f"cd d; apply_patch {DOCUMENT}",
        f"cd d || apply_patch {DOCUMENT}",
        f"cd d | apply_patch {DOCUMENT}",
        f"cd a && cd b && apply_patch {DOCUMENT}",
        f"pushd d && apply_patch {DOCUMENT}",
        f"cd d && apply_patch x {DOCUMENT}",
        f"echo x && apply_patch {DOCUMENT}",
        f"apply_patch {DOCUMENT}\necho done",
        f"apply_patch {DOCUMENT}\n# done",
        f"# first\napply_patch {DOCUMENT}",
        f"apply_patch {DOCUMENT.replace(chr(10), ' && echo done' + chr(10), 1)}",
        f"apply_patch {DOCUMENT.replace(chr(10), ' | cat' + chr(10), 1)}",
        f"apply_patch {DOCUMENT.replace(chr(10), ' > out' + chr(10), 1)}",
        f"apply_patch {DOCUMENT.replace(chr(10), ' &' + chr(10), 1)}",
        f"apply_patch > out {DOCUMENT}",
        f"apply_patch 3{DOCUMENT}",
        f"apply_patch -x {DOCUMENT}",
        f"! apply_patch {DOCUMENT}",
        f"(apply_patch {DOCUMENT}\n)",
        f"{{ apply_patch {DOCUMENT}\n}}",
        f"if true; then apply_patch {DOCUMENT}\nfi",
        f"f() {{ apply_patch {DOCUMENT}\n}}",
        f"'apply_patch' {DOCUMENT}",
        f"\\apply_patch {DOCUMENT}",
        f"command apply_patch {DOCUMENT}",
        f"apply_patch <<< '{PATCH}'",
        f"apply_patch '{PATCH}'",
        f"apply_patch <<EOF\n{PATCH}",
        f"apply_patch <<EOF\n{PATCH}\nEOF EOF",
        f"cat {DOCUMENT}",
        f"echo '<<EOF' && apply_patch {DOCUMENT}",
        f"apply_patch <<A <<B\n{PATCH}\nA\n{PATCH}\nB",
        f'bash -lc "apply_patch {DOCUMENT}"',
        "apply_patch",
        "",
    ],
)
def test_whatever_else_a_shell_has_to_do_is_left_to_it(script: str) -> None:
    assert in_shell(script) is None


@pytest.mark.parametrize(
    "text",
    [
        PATCH,
        f"\n\n{PATCH}\n",
        f"<<'EOF'\n{PATCH}\nEOF",
        "*** Begin Patch\nbroken",
        PATCH.replace("\n", "\r\n"),
    ],
)
def test_a_patch_in_place_of_a_command_is_no_command(text: str) -> None:
    for argv in ([text], ["sh", "-c", text]):
        result = intercept(argv, "/w")

        assert isinstance(result, PatchWithoutCall)
        assert result.tool_text == (
            "apply_patch verification failed: patch detected without explicit call to apply_patch. "
            'Rerun as ["apply_patch", "<patch>"]'
        )


@pytest.mark.parametrize("body", ["not a patch", "", "*** Begin Patch\n*** Nonsense\n*** End Patch"])
def test_a_call_with_something_else_is_taken_too_and_is_an_error(body: str) -> None:
    result = in_shell(f"apply_patch <<'EOF'\n{body}\nEOF")

    assert isinstance(result, Intercepted)
    with pytest.raises(PatchSyntaxError):
        result.parse()


def test_a_patch_larger_than_any_script_is_taken() -> None:
    patch = PATCH.replace("+one", "+one\n" * 600_000 + "+two")

    result = in_shell(f"apply_patch <<EOF\n{patch}\nEOF")

    assert isinstance(result, Intercepted)
    assert result.text == patch


PIECES = [
    "apply_patch",
    "cd",
    "d",
    " ",
    "&&",
    "||",
    "|",
    "<<EOF",
    "<<'EOF'",
    "<<-EOF",
    "\nEOF",
    "EOF",
    PATCH,
    "\n",
    "'",
    '"',
    "\\",
    "$(",
    "#",
    "\t",
    "\ud800",
    "\0",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_script_is_taken_whole_or_left(script: str) -> None:
    result = in_shell(script)

    if isinstance(result, Intercepted):
        assert result.text in script.replace("\t", "") or result.text in script
        before, _, rest = script.partition("<<")
        assert before.split("&&")[-1].split() == ["apply_patch"], "nothing else is before it"
        assert rest.rstrip().endswith("EOF"), "nor behind it"


def test_a_patch_behind_a_byte_order_mark_is_recognized() -> None:
    assert in_shell(f"\ufeff{PATCH}") == PatchWithoutCall()
    assert intercept([f"\ufeff\n{PATCH}"], "/w") == PatchWithoutCall()
    assert in_shell(f"\ufeff{DOCUMENT.replace(chr(39), '')}") == PatchWithoutCall()
    call = in_shell(f"apply_patch <<'EOF'\n\ufeff{PATCH}\nEOF")
    assert isinstance(call, Intercepted)
    assert len(call.parse().hunks) == 1
