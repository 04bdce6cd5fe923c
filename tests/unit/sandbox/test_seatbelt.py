"""The text of Seatbelt profiles. Nothing here runs on macOS."""

from __future__ import annotations

import re

import pytest

from execserver.sandbox.policy import Access, Glob, Policy, Rule
from execserver.sandbox.seatbelt import Grants, Profile, Root, arguments, canonical, grants, profile


def same(path: str) -> str:
    return path


def policy(*rules: Rule, network: bool = False, minimal: bool = False) -> Policy:
    return Policy(unrestricted=False, network=network, rules=rules, minimal=minimal)


def made(policy: Policy) -> Profile:
    return profile(grants(policy, exists=lambda _: True, real=same))


def section(text: str, head: str) -> str:
    """The rule with this beginning, up to its closing parenthesis."""
    start = text.index(head)
    level = 0
    for position in range(start, len(text)):
        level += {"(": 1, ")": -1}.get(text[position], 0)
        if level == 0:
            return text[start : position + 1]
    raise AssertionError("a parenthesis is not closed")


WORKSPACE = policy(
    Rule("/", Access.READ),
    Rule("/Users/me/ws", Access.WRITE),
    Rule("/Users/me/ws/lib/secret", Access.DENY),
    Rule("/Users/me/ws/lib/secret/open", Access.WRITE),
)


@pytest.mark.parametrize(
    "one",
    [
        WORKSPACE,
        policy(Rule("/", Access.READ)),
        policy(minimal=True),
        policy(Rule("/a", Access.WRITE), network=True),
        Policy(unrestricted=True, network=False),
    ],
)
def test_every_profile_is_well_formed_and_names_each_parameter_once(one: Policy) -> None:
    text, parameters = made(one).text, made(one).parameters
    code = re.sub(r'"[^"]*"|;[^\n]*', "", text)
    assert code.count("(") == code.count(")")
    assert text.startswith("(version 1)\n(deny default)\n")
    assert set(re.findall(r'\(param "([^"]+)"\)', text)) == set(parameters)
    assert all(path.startswith("/") for path in parameters.values())


def test_no_path_of_a_policy_stands_in_the_text() -> None:
    evil = '/Users/x")(allow default)(param "y'
    result = made(policy(Rule("/Users/ordinary", Access.READ), Rule(evil, Access.WRITE)))
    assert "ordinary" not in result.text
    assert "allow default" not in result.text
    assert evil in result.parameters.values()
    assert f"-DWRITABLE_ROOT_0={evil}" in arguments(result, ["true"])


def test_a_writable_root_leaves_out_what_is_narrower_and_the_protected_names() -> None:
    result = made(WORKSPACE)
    excluded = {
        value
        for name, value in result.parameters.items()
        if re.fullmatch(r"WRITABLE_ROOT_0_EXCLUDED_\d+", name)
    }
    inner = "/Users/me/ws/lib/secret/open"
    names = (".git", ".agents", ".codex", ".aws")
    assert excluded == {
        "/Users/me/ws/lib/secret",
        *(f"/Users/me/ws/{name}" for name in names),
        *(f"{inner}/{name}" for name in names),
    }
    rule = section(result.text, "(allow file-write*\n")
    for name, value in result.parameters.items():
        if value in excluded and name.startswith("WRITABLE_ROOT_0_EXCLUDED"):
            assert f'(require-not (literal (param "{name}")))' in rule
            assert f'(require-not (subpath (param "{name}")))' in rule
    assert result.parameters["WRITABLE_ROOT_0"] == "/Users/me/ws"
    assert result.parameters["WRITABLE_ROOT_1"] == inner


def test_folders_on_the_way_to_what_is_left_out_cannot_be_moved_away() -> None:
    result = made(WORKSPACE)
    pinned = {value for name, value in result.parameters.items() if "WRITABLE_ROOT_0_PINNED" in name}
    assert pinned >= {"/Users/me/ws", "/Users/me/ws/lib"}
    for name, value in result.parameters.items():
        if value in pinned and "_PINNED_" in name:
            assert f'(require-not (literal (param "{name}")))' in result.text
            assert f'(subpath (param "{name}"))' not in result.text


def test_a_denied_path_is_not_readable_and_a_deeper_grant_is() -> None:
    result = made(WORKSPACE)
    by_value = {value: name for name, value in result.parameters.items() if name.startswith("READABLE")}
    assert by_value.keys() >= {"/", "/Users/me/ws", "/Users/me/ws/lib/secret/open"}
    denied = [n for n, v in result.parameters.items() if v == "/Users/me/ws/lib/secret" and n[0] == "R"]
    assert denied == ["READABLE_ROOT_0_EXCLUDED_0", "READABLE_ROOT_1_EXCLUDED_0"]


def test_an_entry_for_a_protected_name_opens_it() -> None:
    result = made(policy(Rule("/ws", Access.WRITE), Rule("/ws/.git", Access.WRITE)))
    roots = [value for name, value in result.parameters.items() if re.fullmatch(r"WRITABLE_ROOT_\d", name)]
    assert roots == ["/ws", "/ws/.git"]
    excluded = [v for n, v in result.parameters.items() if n.startswith("WRITABLE_ROOT_0_EXCLUDED")]
    assert "/ws/.git" not in excluded
    assert "/ws/.aws" in excluded


def test_a_read_only_policy_has_no_rule_for_writing_but_devices() -> None:
    text = made(policy(Rule("/", Access.READ))).text
    assert "(allow file-write*" not in text
    assert text.count("(allow file-read* file-write-data file-ioctl") == 1


def test_writable_roots_that_are_missing_grant_nothing() -> None:
    one = policy(Rule("/", Access.READ), Rule("/missing", Access.WRITE))
    result = grants(one, exists=lambda path: path != "/missing", real=same)
    assert result.writable == ()


def test_paths_that_the_caller_denies_or_protects_are_excluded() -> None:
    one = policy(Rule("/", Access.READ), Rule("/ws", Access.WRITE))
    result = grants(
        one, denied=("/ws/.env", "/run/own"), read_only=("/ws/real-git",), exists=lambda _: True, real=same
    )
    (root,) = result.writable
    assert {"/ws/.env", "/ws/real-git", "/ws/.git"} <= set(root.excluded)
    assert [root.excluded for root in result.readable] == [("/run/own", "/ws/.env"), ("/ws/.env",)]


def test_a_denied_path_that_is_a_root_itself_is_no_root() -> None:
    one = policy(Rule("/", Access.READ), Rule("/own", Access.WRITE))
    result = grants(one, denied=("/own",), exists=lambda _: True, real=same)
    assert result.writable == ()
    assert [root.path for root in result.readable] == ["/"]


def test_the_network_is_open_only_when_it_is_granted() -> None:
    closed, opened = made(policy(minimal=True)).text, made(policy(minimal=True, network=True)).text
    for words in ("(allow network-outbound)", "(allow network-inbound)", "(allow system-socket)"):
        assert words not in closed
        assert words in opened
    assert "configd" not in closed


def test_sockets_of_container_daemons_are_denied_after_everything_else() -> None:
    one = policy(Rule("/", Access.WRITE), network=True)
    result = profile(grants(one, home="/Users/me", exists=lambda _: True, real=same))
    rule = section(result.text, "(deny network-outbound file-write*")
    assert result.text.rstrip().endswith(rule)
    named = {result.parameters[name] for name in re.findall(r'\(param "([^"]+)"\)', rule)}
    assert {"/private/var/run/docker.sock", "/Users/me/.docker/run", "/Users/me/.orbstack/run"} <= named


def test_links_on_the_way_are_followed_before_anything_is_granted() -> None:
    one = policy(Rule("/link", Access.WRITE))
    result = grants(one, exists=lambda _: True, real=lambda path: path.replace("/link", "/private/tmp/real"))
    assert [root.path for root in result.writable] == ["/private/tmp/real"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/tmp", "/private/tmp"),
        ("/tmp/a/../b", "/private/tmp/b"),
        ("/var/folders/x", "/private/var/folders/x"),
        ("/etc/hosts", "/private/etc/hosts"),
        ("/tmpx", "/tmpx"),
        ("/private/tmp", "/private/tmp"),
        ("//tmp//x/", "/private/tmp/x"),
        ("/", "/"),
    ],
)
def test_paths_are_those_that_seatbelt_sees(path: str, expected: str) -> None:
    assert canonical(path) == expected
    assert profile(Grants((Root(path),), (), network=False)).parameters["READABLE_ROOT_0"] == expected


@pytest.mark.parametrize("path", ["", "tmp", "./tmp", "/a\0b"])
def test_a_path_that_is_relative_or_invalid_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="no absolute path"):
        profile(Grants((Root(path),), (), network=False))


def test_ancestors_can_be_looked_at_but_not_listed() -> None:
    result = made(policy(Rule("/Users/me/ws", Access.READ)))
    rule = section(result.text, "(allow file-read-metadata")
    named = {result.parameters[name] for name in re.findall(r'\(param "([^"]+)"\)', rule)}
    assert named == {"/", "/Users", "/Users/me"}
    assert "subpath" not in rule


def test_the_command_stands_behind_all_parameters() -> None:
    result = made(policy(Rule("/ws", Access.WRITE)))
    line = arguments(result, ["/bin/sh", "-c", "echo -Dx=y"])
    assert line[:3] == ["/usr/bin/sandbox-exec", "-p", result.text]
    end = line.index("--")
    assert line[end + 1 :] == ["/bin/sh", "-c", "echo -Dx=y"]
    assert all(text.startswith("-D") for text in line[3:end])
    assert len(line[3:end]) == len(result.parameters)


@pytest.mark.parametrize("command", [[], ["a\0b"]])
def test_a_command_that_is_none_is_refused(command: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no command|null byte"):
        arguments(made(policy(minimal=True)), command)


def test_an_unrestricted_policy_hides_the_daemons_own_things_still() -> None:
    one = Policy(unrestricted=True, network=False, globs=(Glob("/x", Access.DENY),))
    result = grants(one, denied=("/tmp/own",), real=same)
    assert result.readable == result.writable == (Root("/", ("/private/tmp/own",)),)
