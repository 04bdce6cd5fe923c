"""What is dangerous: forced removal, as the reference sees it, and as it is hidden from the reference."""

from __future__ import annotations

import pytest

from execclient.govern.policy import dangerous

SEEN_BY_BOTH = [
    ["rm", "-f", "x"],
    ["rm", "-rf", "x"],
    ["rm", "-vrf", "x"],
    ["rm", "x", "-f"],
    ["rm", "--force", "x"],
    ["/bin/rm", "-f", "x"],
    ["./rm", "-f", "x"],
    ["sudo", "rm", "-f", "x"],
    ["sudo", "env", "rm", "-f", "x"],
    ["env", "-i", "A=1", "rm", "-f", "x"],
    ["env", "--", "rm", "-f", "x"],
    ["trap", "rm -f x", "EXIT"],
    ["trap", "--", "rm -f x", "EXIT"],
    ["sh", "-c", "ls; rm -f x"],
    ["zsh", "-lc", "for i in a; do rm -f $i; done"],
    ["bash", "-lc", "echo $(rm -f x)"],
    ["bash", "-lc", "A=1 'rm' '-f' x > /dev/null"],
    ["bash", "-lc", "bash -c 'rm -rf x'"],
]

HIDDEN_FROM_THE_REFERENCE = [
    ["sudo", "-u", "root", "rm", "-rf", "x"],
    ["env", "-u", "A", "rm", "-rf", "x"],
    ["nice", "rm", "-rf", "x"],
    ["command", "rm", "-rf", "x"],
    ["xargs", "rm", "-rf"],
    ["find", ".", "-exec", "rm", "-f", "{}", ";"],
    ["bash", "-lc", "r\\m -rf x"],
    ["bash", "-lc", "echo rm -rf x | sh"],
    ["bash", "-ec", "rm -rf x"],
    ["bash", "-c", "rm -rf x", "name"],
    ["bash", "-lc", "ca\\\nt x; r\\\nm -rf x"],
    ["rm", "-r", "--forc", "x"],
    ["rm", "-r", "--f", "x"],
    ["rm", "x", "--fo", "-r"],
    ["sudo", "rm", "--for", "x"],
    ["bash", "-lc", "F=-rf; rm $F x"],
    ["bash", "-lc", 'F=-rf; rm "$F" x'],
    ["bash", "-lc", "rm $(echo -rf) x"],
    ["bash", "-lc", "rm {-rf,x}"],
    ["bash", "-lc", "rm `echo -f` x"],
    ["bash", "-lc", "rm x$F"],
    ["bash", "-lc", "rm *"],
    ["bash", "-lc", "echo -rf x | xargs rm"],
    ["choom", "-n", "0", "--", "rm", "-rf", "x"],
    ["setarch", "x86_64", "rm", "-rf", "x"],
    ["npx", "rm", "-rf", "x"],
    ["some-wrapper", "--option", "x", "--", "rm", "-rf", "x"],
    ["some-wrapper", "rm", "--forc", "x"],
    ["ssh", "h", "rm -rf x"],
    ["docker", "exec", "c", "rm", "-rf", "x"],
    ["tini", "--", "/bin/rm", "-fr", "x"],
]

HARMLESS = [
    [],
    ["rm"],
    ["rm", "x"],
    ["rm", "-r", "x"],
    ["rm", "--", "-f"],
    ["rm", "--interactive", "x"],
    ["ls", "-f"],
    ["echo", "rm", "-rf", "x"],
    ["grep", "rm -rf", "x"],
    ["bash", "-lc", "echo 'rm -rf x'"],
    ["trap", "-", "EXIT"],
    ["trap", "-p"],
    ["env"],
    ["env", "A=1"],
    ["sudo"],
    ["git", "rm", "-f", "x"],
    ["docker", "rm", "-f", "x"],
    ["npm", "rm", "-f", "x"],
    ["rm", "--", "$F"],
    ["rm", "-r", "--", "--forc"],
    ["rm", "--dir", "x"],
    ["bash", "-lc", 'rm -- "$F"'],
    ["bash", "-lc", "rm *.o"],
    ["bash", "-lc", "rm -r build/*"],
    ["bash", "-lc", 'rm "$DIR/x"'],
    ["bash", "-lc", 'rm -r "${DIR}/x" ./"$F"'],
    ["bash", "-lc", "find . -name '*.o' -exec rm {} +"],
    ["bash", "-lc", "git add $F && rm x"],
    ["bash", "-lc", "some-program -f x $F"],
]


@pytest.mark.parametrize("argv", SEEN_BY_BOTH, ids=repr)
@pytest.mark.parametrize("strict", [False, True])
def test_forced_removal_is_dangerous(argv: list[str], strict: bool) -> None:
    assert dangerous(argv, strict=strict) == "forced_rm"


@pytest.mark.parametrize("argv", HIDDEN_FROM_THE_REFERENCE, ids=repr)
def test_hidden_removal_is_seen_unless_parity_is_asked_for(argv: list[str]) -> None:
    assert dangerous(argv) == "forced_rm"
    assert dangerous(argv, strict=False) is None


@pytest.mark.parametrize("argv", HARMLESS, ids=repr)
@pytest.mark.parametrize("strict", [False, True])
def test_what_does_not_remove_by_force_is_no_danger(argv: list[str], strict: bool) -> None:
    assert dangerous(argv, strict=strict) is None


def test_tuples_are_taken_like_lists() -> None:
    assert dangerous(("trap", "--", "rm -f x", "EXIT"), strict=False) == "forced_rm"


@pytest.mark.parametrize(("layers", "danger"), [(8, None), (9, "other")])
def test_too_many_layers_are_a_danger_in_themselves(layers: int, danger: str | None) -> None:
    assert dangerous(["sudo"] * layers + ["ls"]) == danger


def test_a_script_with_errors_is_not_searched_for_parity_but_is_otherwise() -> None:
    argv = ["bash", "-lc", "rm -rf x; )"]

    assert dangerous(argv, strict=False) is None
    assert dangerous(argv) == "forced_rm"
