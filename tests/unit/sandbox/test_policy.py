"""From a sandbox context to absolute rules."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execprotocol.errors import InvalidParams
from execprotocol.model import decode
from execprotocol.sandbox import SandboxContext
from execserver.sandbox.policy import (
    PLATFORM_FOLDERS,
    Access,
    Glob,
    Policy,
    RequestFolders,
    Rule,
    depth,
    is_below,
    normal,
    resolve,
)
from tests.unit.sandbox.rig import DENY, READ, WRITE, policy

Json = dict[str, Any]

NOWHERE = RequestFolders(None, None)
SOMEWHERE = RequestFolders("/work/dir", "/var/tmp/mine")


def special(kind: str, access: str = "read", **more: Json | str | None) -> Json:
    return {"path": {"type": "special", "value": {"kind": kind, **more}}, "access": access}


def literal(path: str, access: str = "read", **more: str) -> Json:
    return {"path": {"type": "path", "path": f"file://{path}"}, "access": access, **more}


def pattern(text: str, access: str = "deny") -> Json:
    return {"path": {"type": "glob_pattern", "pattern": text}, "access": access}


def context(
    *entries: Json, network: str = "restricted", depth: int | None = None, **outer: Any
) -> SandboxContext:
    limits: Json = {"type": "restricted", "entries": list(entries)}
    if depth is not None:
        limits["glob_scan_max_depth"] = depth
    return of({"type": "managed", "file_system": limits, "network": network}, **outer)


def of(permissions: Json, **outer: Any) -> SandboxContext:
    return decode(SandboxContext, {"permissions": permissions, "windowsSandboxLevel": "disabled", **outer})


def rules(*entries: Json, around: RequestFolders = SOMEWHERE, **outer: Any) -> list[tuple[str, Access]]:
    return [(rule.path, rule.access) for rule in resolve(context(*entries, **outer), around).rules]


# -- what is limited at all


@pytest.mark.parametrize(
    ("permissions", "files", "network"),
    [
        ({"type": "disabled"}, False, True),
        ({"type": "external", "network": "enabled"}, False, True),
        ({"type": "external", "network": "restricted"}, False, False),
        ({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"}, False, True),
        ({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "restricted"}, False, False),
        (
            {
                "type": "managed",
                "file_system": {"type": "restricted", "entries": []},
                "network": "enabled",
            },
            *(True, True),
        ),
    ],
    ids=["disabled", "external", "external-offline", "unrestricted", "unrestricted-offline", "restricted"],
)
def test_each_kind_of_permissions_limits_what_it_says(permissions: Json, files: bool, network: bool) -> None:
    made = resolve(of(permissions), NOWHERE)
    assert (made.limits_files, made.network) == (files, network)
    assert made.limits_anything is (files or not network)


def test_a_writable_root_with_nothing_narrower_is_no_limit_on_files() -> None:
    made = resolve(context(special("root", "write"), literal("/x", "write")), SOMEWHERE)
    assert made.unrestricted
    assert not made.network


@pytest.mark.parametrize(
    "narrower",
    [literal("/x"), literal("/x", "deny"), pattern("/x/*"), special("tmpdir", "read")],
    ids=["read", "deny", "pattern", "special"],
)
def test_a_writable_root_with_something_narrower_is_a_limit(narrower: Json) -> None:
    assert resolve(context(special("root", "write"), narrower), SOMEWHERE).limits_files


def test_without_entries_nothing_is_granted() -> None:
    made = resolve(context(), SOMEWHERE)
    assert made.limits_files
    assert made.access("/") is DENY


# -- entries


def test_the_root_and_the_temporary_folders_are_known_by_name() -> None:
    assert rules(special("root"), special("slash_tmp", "write"), special("tmpdir", "write")) == [
        ("/", READ),
        ("/tmp", WRITE),
        ("/var/tmp/mine", WRITE),
    ]


@pytest.mark.parametrize("tmpdir", [None, "", "relative/one"])
def test_a_tmpdir_that_is_not_absolute_grants_nothing(tmpdir: str | None) -> None:
    assert rules(special("tmpdir", "write"), around=RequestFolders("/work", tmpdir)) == []


def test_the_temporary_folders_of_a_file_request_are_those_of_the_context() -> None:
    folders = {"temporaryDirectories": ["file:///t1", "file:///t2"]}
    entry = special("tmpdir", "write")
    assert rules(entry, around=RequestFolders(None, "/own"), **folders) == [("/t1", WRITE), ("/t2", WRITE)]
    # A command has a TMPDIR of its own.
    assert rules(entry, around=RequestFolders("/work", "/own"), **folders) == [("/own", WRITE)]


def test_project_roots_are_the_workspace_roots_and_not_the_working_directory() -> None:
    entry = special("project_roots", "write")
    assert rules(entry, cwd="file:///cwd", workspaceRoots=["file:///a", "file:///b/c"]) == [
        ("/a", WRITE),
        ("/b/c", WRITE),
    ]
    assert rules(entry, cwd="file:///cwd") == []
    assert rules(entry, cwd="file:///cwd", workspaceRoots=[]) == []


def test_a_subpath_is_below_each_root() -> None:
    entry = special("project_roots", "read", subpath="x/./y/../z")
    assert rules(entry, workspaceRoots=["file:///a", "file:///b"]) == [("/a/x/z", READ), ("/b/x/z", READ)]


@pytest.mark.parametrize("subpath", ["/etc", "..", "x/../../y", "a\0b"])
def test_a_subpath_that_leads_out_is_an_error_that_names_it(subpath: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        rules(special("project_roots", "read", subpath=subpath), workspaceRoots=["file:///a"])
    assert f"subpath {subpath!r} must be relative and stay below its folder" in str(caught.value)


def test_the_current_working_directory_is_that_of_the_context() -> None:
    assert rules(special("current_working_directory", "write"), cwd="file:///c") == [("/c", WRITE)]


def test_the_policy_context_says_where_entries_are_resolved_when_it_is_there() -> None:
    assert rules(
        special("current_working_directory", "write"),
        special("project_roots", "read"),
        cwd="file:///c",
        workspaceRoots=["file:///r"],
        policyContext={"cwd": "file:///pc", "workspaceRoots": ["file:///pr"]},
    ) == [("/pc", WRITE), ("/pr", READ)]


def test_a_grant_without_its_folder_grants_nothing_and_a_denial_is_taken_for_the_commands_own() -> None:
    for kind in ("current_working_directory", "project_roots"):
        assert rules(special(kind, "write")) == []
        assert rules(special(kind, "read")) == []
        assert rules(special(kind, "deny")) == [("/work/dir", DENY)]
        assert rules(special(kind, "deny", subpath="x")) == [("/work/dir/x", DENY)]
        assert rules(special(kind, "deny"), around=NOWHERE) == []


def test_an_unknown_entry_grants_and_denies_nothing() -> None:
    for access in ("read", "write", "deny"):
        made = resolve(context(special("unknown", access, path=":new", subpath="x")), SOMEWHERE)
        assert made.rules == ()
        assert made.access("/x") is DENY


def test_minimal_makes_the_platform_readable_and_never_writable() -> None:
    for access in ("read", "write"):
        made = resolve(context(special("minimal", access)), SOMEWHERE)
        assert made.minimal
        assert {made.access(f"{folder}/x") for folder in PLATFORM_FOLDERS} == {READ}
        assert made.access("/home") is DENY
    assert not resolve(context(special("minimal", "deny")), SOMEWHERE).minimal


def test_none_is_another_word_for_deny() -> None:
    assert rules(literal("/x", "none")) == [("/x", DENY)]


def test_a_path_that_may_be_missing_says_so_and_the_stricter_of_two_entries_counts() -> None:
    skipped, strict = literal("/x", "deny", missing_path_behavior="skip"), literal("/x", "deny")
    assert resolve(context(skipped), SOMEWHERE).rules == (Rule("/x", DENY, True),)
    for entries in ((skipped, strict), (strict, skipped)):
        assert resolve(context(*entries), SOMEWHERE).rules == (Rule("/x", DENY, False),)


@pytest.mark.parametrize(
    ("first", "second", "stronger"),
    [("read", "write", WRITE), ("read", "deny", DENY), ("write", "deny", DENY)],
)
def test_of_two_entries_for_one_path_deny_beats_write_and_write_beats_read(
    first: str, second: str, stronger: Access
) -> None:
    assert rules(literal("/x", first), literal("/x", second)) == [("/x", stronger)]
    assert rules(literal("/x", second), literal("/x", first)) == [("/x", stronger)]


def test_rules_come_shallow_first() -> None:
    assert [
        path for path, _ in rules(literal("/b/c/d"), literal("/z"), special("root"), literal("/a/b"))
    ] == [*("/", "/z", "/a/b", "/b/c/d")]


def test_paths_lose_their_dots_and_repeated_slashes() -> None:
    assert rules(literal("///x//y/../z/"), literal("//w")) == [("/w", READ), ("/x/z", READ)]
    assert rules(special("tmpdir"), around=RequestFolders("/w", "//t//u/")) == [("/t/u", READ)]


@pytest.mark.parametrize(
    ("outer", "field"),
    [
        ({"cwd": "file:///C:/x"}, "sandbox.cwd"),
        ({"workspaceRoots": ["file://host/x"]}, "sandbox.workspaceRoots"),
    ],
)
def test_a_path_of_another_system_is_an_error_that_names_the_member(outer: Json, field: str) -> None:
    with pytest.raises(InvalidParams, match="is invalid on 'linux'") as caught:
        rules(special("root"), **outer)
    assert str(caught.value).startswith(field)


def test_an_entry_of_another_system_is_an_error_that_names_the_member() -> None:
    with pytest.raises(
        InvalidParams, match=r"sandbox\.permissions\.file_system\.entries: .*is invalid on 'linux'"
    ):
        rules({"path": {"type": "path", "path": "file:///C:/x"}, "access": "read"})
    with pytest.raises(InvalidParams, match=r"sandbox\.temporaryDirectories"):
        rules(special("tmpdir"), around=NOWHERE, temporaryDirectories=["file:///C:/x"])


# -- entries that depend on a folder


@pytest.mark.parametrize(
    "entry",
    [special("project_roots"), special("current_working_directory"), pattern("**/.env")],
    ids=["project_roots", "current_working_directory", "pattern"],
)
def test_an_entry_that_depends_on_a_folder_leaves_the_policy_unresolved_without_one(entry: Json) -> None:
    assert resolve(context(entry), NOWHERE).unresolved
    assert not resolve(context(entry, cwd="file:///c"), NOWHERE).unresolved
    assert not resolve(context(entry, workspaceRoots=["file:///r"]), NOWHERE).unresolved


def test_other_entries_do_not() -> None:
    entries = (
        special("root"),
        special("tmpdir"),
        literal("/x"),
        pattern("/y/*"),
        special("unknown", path="p"),
    )
    assert not resolve(context(*entries), NOWHERE).unresolved


# -- patterns


def test_a_relative_pattern_is_below_the_working_directory() -> None:
    made = resolve(context(pattern("**/.env"), cwd="file:///c", workspaceRoots=["file:///r"]), SOMEWHERE)
    assert made.deny_globs == ("/c/**/.env",)


def test_without_a_working_directory_a_denied_pattern_is_below_all_that_it_may_mean() -> None:
    made = resolve(context(pattern("*.key"), workspaceRoots=["file:///r", "file:///s"]), SOMEWHERE)
    assert made.deny_globs == ("/r/*.key", "/s/*.key", "/work/dir/*.key")
    assert resolve(context(pattern("*.key", "write"), workspaceRoots=["file:///r"]), SOMEWHERE).globs == ()


def test_special_characters_of_the_folder_are_none_in_the_pattern() -> None:
    made = resolve(context(pattern("*.key"), cwd="file:///a*b%5Bc%7Bd%3F"), SOMEWHERE)
    assert made.deny_globs == ("/a[*]b[[]c[{]d[?]/*.key",)
    back = RequestFolders("/a\\b", None)
    assert resolve(context(pattern("*.key")), back).deny_globs == ("/a[\\]b/*.key",)


def test_patterns_keep_their_access_and_the_depth_is_the_policys() -> None:
    made = resolve(context(pattern("/a/*", "write"), pattern("//b/./*"), pattern("/b/*"), depth=3), SOMEWHERE)
    assert made.globs == (Glob("/a/*", WRITE), Glob("/b/*", DENY))
    assert made.glob_depth == 3
    assert made.deny_globs == ("/b/*",)


def test_a_pattern_with_a_nul_byte_is_an_error_that_names_the_member() -> None:
    with pytest.raises(InvalidParams, match="a glob pattern holds a NUL byte"):
        rules(pattern("/a\0b"))


# -- access, by text


_paths = st.lists(st.sampled_from("ab"), max_size=4).map(lambda names: "/" + "/".join(names))


@given(
    chosen=st.dictionaries(_paths, st.sampled_from(list(Access)), max_size=6),
    asked=_paths,
    minimal=st.booleans(),
)
def test_the_most_specific_rule_decides(chosen: dict[str, Access], asked: str, minimal: bool) -> None:
    made = policy(*chosen.items(), minimal=minimal)
    expected = DENY
    names = [name for name in asked.split("/") if name]
    for count in range(len(names), -1, -1):
        above = "/" + "/".join(names[:count])
        if above in chosen:
            expected = chosen[above]
            break
    assert made.access(asked) is expected
    assert made.access(f"/{asked}/./x/..") is expected


def test_a_rule_is_for_whole_names() -> None:
    made = policy(("/ab", WRITE))
    assert made.access("/ab/c") is WRITE
    assert made.access("/abc") is DENY


def test_a_rule_beats_the_platforms_folders_above_and_below() -> None:
    made = policy(("/usr", DENY), ("/usr/x", WRITE), minimal=True)
    assert [made.access(path) for path in ("/usr/bin", "/usr/x", "/etc/x")] == [DENY, WRITE, READ]


def test_everything_is_writable_without_limits() -> None:
    assert Policy(unrestricted=True, network=False).access("/etc/passwd") is WRITE


def test_equal_policies_have_equal_hashes() -> None:
    one, two = (
        resolve(context(special("root"), pattern("/a/*"), literal("/x")), SOMEWHERE) for _ in range(2)
    )
    assert one == two
    assert hash(one) == hash(two)


@pytest.mark.parametrize(
    ("path", "folder", "answer"),
    [("/a", "/a", True), ("/a/b", "/a", True), ("/ab", "/a", False), ("/", "/", True), ("/x", "/", True)],
)
def test_below_is_by_whole_names(path: str, folder: str, answer: bool) -> None:
    assert is_below(path, folder) is answer


@given(st.text(alphabet="/.a", min_size=1))
def test_normal_paths_have_one_leading_slash_and_the_depth_of_their_names(text: str) -> None:
    path = normal("/" + text)
    assert path == "/" or path.startswith("/")
    assert "//" not in path
    assert normal(path) == path
    assert os.path.normpath(path) == path
    assert depth(path) == len([name for name in path.split("/") if name])
