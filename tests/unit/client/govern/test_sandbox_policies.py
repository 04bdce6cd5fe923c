from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from execclient.connection.connection import Json
from execclient.govern.approval_policy import approval_policy
from execclient.govern.sandbox import (
    MODES,
    DangerFullAccess,
    ExternalSandbox,
    Profile,
    ReadOnly,
    SandboxPolicy,
    WorkspaceWrite,
    platform_sandbox,
    sandbox_policy,
    without_sandbox,
)
from execprotocol.model import decode
from execprotocol.sandbox import SandboxContext
from execserver.sandbox.policy import Access, Policy, RequestFolders, resolve

ROOT_READ = {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}
ROOT_WRITE = {**ROOT_READ, "access": "write"}


def restricted(*entries: Mapping[str, Json], network: str = "restricted") -> Profile:
    return Profile(
        {
            "type": "managed",
            "network": network,
            "file_system": {"type": "restricted", "entries": list(entries)},
        }
    )


def at(path: str, access: str) -> dict[str, Json]:
    return {"path": {"type": "path", "path": f"file://{path}"}, "access": access}


def special(kind: str, access: str, **more: str) -> dict[str, Json]:
    return {"path": {"type": "special", "value": {"kind": kind, **more}}, "access": access}


def resolved(policy: SandboxPolicy, *roots: str) -> Policy:
    """What the daemon makes of a policy, for a command in `/w`."""
    context = policy.context("/w", roots or ("/w",))
    assert context is not None
    model = decode(SandboxContext, json.loads(json.dumps(context)))
    return resolve(model, RequestFolders(cwd="/w", tmpdir="/var/tmp/mine"))


ALL = [
    ReadOnly(),
    ReadOnly(network=True, deny_read=("**/.env", "/etc/shadow")),
    WorkspaceWrite(),
    WorkspaceWrite(
        writable_roots=("/srv/cache",),
        network=True,
        exclude_tmpdir=True,
        exclude_slash_tmp=True,
        deny_read=("*.pem",),
    ),
    DangerFullAccess(),
    ExternalSandbox(),
    ExternalSandbox(network=True),
    restricted(ROOT_READ, at("/secret", "deny")),
]


# -- JSON


@pytest.mark.parametrize("policy", ALL, ids=str)
def test_a_policy_is_read_from_what_it_is_written_as(policy: SandboxPolicy) -> None:
    written = json.loads(json.dumps(policy.to_json()))

    assert sandbox_policy(written) == policy
    assert hash(sandbox_policy(written)) == hash(policy)
    assert sandbox_policy(policy) is policy


@pytest.mark.parametrize(
    ("policy", "written"),
    [
        (ReadOnly(), {"type": "read-only", "network_access": False}),
        (
            WorkspaceWrite(writable_roots=("/a",)),
            {
                "type": "workspace-write",
                "writable_roots": ["/a"],
                "network_access": False,
                "exclude_tmpdir_env_var": False,
                "exclude_slash_tmp": False,
            },
        ),
        (DangerFullAccess(), {"type": "danger-full-access"}),
        (ExternalSandbox(network=True), {"type": "external-sandbox", "network_access": "enabled"}),
    ],
)
def test_the_four_policies_have_the_names_of_the_reference(
    policy: SandboxPolicy, written: dict[str, Json]
) -> None:
    assert policy.to_json() == written
    assert sandbox_policy(written) == policy


@pytest.mark.parametrize("policy", [ReadOnly(), WorkspaceWrite(), DangerFullAccess(), ExternalSandbox()])
def test_a_type_alone_is_a_policy_too(policy: SandboxPolicy) -> None:
    assert sandbox_policy(policy.kind) == policy
    assert sandbox_policy({"type": policy.kind}) == policy


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("readonly", r"^sandbox_policy.type: 'readonly' is none of read-only, workspace-write, "),
        ({}, r"^sandbox_policy.type: None is none of"),
        ({"type": ["read-only"]}, "is none of"),
        (7, r"^sandbox_policy: expected a type or an object, not 7"),
        (
            {"type": "read-only", "networkAccess": True},
            r"sandbox_policy.networkAccess is unknown; .* network_access",
        ),
        ({"type": "danger-full-access", "network_access": True}, "network_access is unknown"),
        (
            {"type": "read-only", "network_access": "enabled"},
            "network_access: 'enabled' is neither true nor false",
        ),
        ({"type": "external-sandbox", "network_access": "on"}, "network_access: 'on'"),
        (
            {"type": "workspace-write", "writable_roots": "/a"},
            "writable_roots: expected a list of texts, not '/a'",
        ),
        ({"type": "workspace-write", "writable_roots": ["a"]}, "writable_roots: 'a' is not an absolute path"),
        ({"type": "workspace-write", "writable_roots": ["/x/.."]}, "use the policy danger-full-access"),
        ({"type": "workspace-write", "writable_roots": ["/x\0"]}, "NUL"),
        ({"type": "read-only", "deny_read": ["~/.ssh"]}, "~ is not expanded"),
        ({"type": "read-only", "deny_read": [""]}, "deny_read: '' is empty"),
        ({"type": "profile"}, "permissions"),
        ({"type": "profile", "permissions": {"type": "managed"}}, r"permissions\.managed\.\w+: "),
        ({"type": "profile", "permissions": {"type": "none"}}, "permissions: "),
    ],
)
def test_what_is_no_policy_is_an_error_that_names_the_field(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sandbox_policy(value)  # type: ignore[arg-type]


def test_one_text_is_no_sequence_of_patterns() -> None:
    with pytest.raises(ValueError, match=r"deny_read: '\*\*/.env' is one text"):
        ReadOnly(deny_read="**/.env")  # type: ignore[arg-type]


# -- the wire


def test_a_context_is_exactly_what_the_wire_has() -> None:
    policy = WorkspaceWrite(writable_roots=("/srv/a b",), deny_read=("**/.env", "/etc/shadow", "/k[12]"))

    context = policy.context("/w", ["/w", "/v/../u"])

    assert context == {
        "permissions": {
            "type": "managed",
            "network": "restricted",
            "file_system": {
                "type": "restricted",
                "entries": [
                    ROOT_READ,
                    special("project_roots", "write"),
                    special("slash_tmp", "write"),
                    special("tmpdir", "write"),
                    at("/srv/a%20b", "write"),
                    {"path": {"type": "glob_pattern", "pattern": "**/.env"}, "access": "deny"},
                    at("/etc/shadow", "deny"),
                    {"path": {"type": "glob_pattern", "pattern": "/k[12]"}, "access": "deny"},
                ],
            },
        },
        "cwd": "file:///w",
        "workspaceRoots": ["file:///w", "file:///u"],
        "windowsSandboxLevel": "disabled",
    }


@pytest.mark.parametrize("policy", [policy for policy in ALL if policy != DangerFullAccess()], ids=str)
def test_the_daemon_decodes_every_context(policy: SandboxPolicy) -> None:
    assert resolved(policy).network is policy.network_allowed
    assert resolved(policy).limits_anything is policy.confines


def test_full_access_has_no_context() -> None:
    assert DangerFullAccess().context("/w", ["/w"]) is None
    assert Profile({"type": "disabled"}).context("/w", ["/w"]) is None


@pytest.mark.parametrize(("cwd", "roots"), [("w", ["/w"]), ("/w", ["w"]), ("/w", "/w"), ("", [])])
def test_paths_of_a_context_are_absolute(cwd: str, roots: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^(cwd|workspace_roots): "):
        ReadOnly().context(cwd, roots)


def test_workspace_write_writes_to_its_roots_and_temporary_folders() -> None:
    policy = resolved(WorkspaceWrite(writable_roots=("/srv/cache",)), "/w", "/v")
    narrow = resolved(WorkspaceWrite(exclude_tmpdir=True, exclude_slash_tmp=True), "/w")

    writable = ("/w/x", "/v/x", "/srv/cache/x", "/tmp/x", "/var/tmp/mine/x")
    assert [policy.access(path) for path in writable] == [Access.WRITE] * 5
    assert [policy.access(path) for path in ("/etc", "/home/me", "/srv")] == [Access.READ] * 3
    assert [narrow.access(path) for path in ("/tmp/x", "/var/tmp/mine/x")] == [Access.READ] * 2


def test_the_folder_of_a_turn_is_not_writable_unless_it_is_of_the_workspace() -> None:
    assert resolved(WorkspaceWrite(), "/elsewhere").access("/w/x") is Access.READ


# -- without


def test_lifting_a_sandbox_leaves_nothing_of_it() -> None:
    assert without_sandbox(ReadOnly()) == DangerFullAccess()
    assert without_sandbox(WorkspaceWrite()) == DangerFullAccess()
    assert without_sandbox(DangerFullAccess()) == DangerFullAccess()
    assert without_sandbox(restricted(ROOT_READ)) == DangerFullAccess()


def test_a_sandbox_around_the_daemon_cannot_be_lifted() -> None:
    assert without_sandbox(ExternalSandbox()) == ExternalSandbox(network=True)


@pytest.mark.parametrize(
    "policy",
    [
        ReadOnly(deny_read=("**/.env", "/home/me")),
        WorkspaceWrite(deny_read=("**/.env", "/home/me")),
        restricted(
            ROOT_READ,
            {"path": {"type": "glob_pattern", "pattern": "**/.env"}, "access": "none"},
            at("/home/me", "none"),
        ),
    ],
    ids=str,
)
def test_what_must_not_be_read_outlives_the_sandbox(policy: SandboxPolicy) -> None:
    lifted = without_sandbox(policy)
    daemon = resolved(lifted)

    assert lifted.denies_reads
    assert daemon.access("/home/me/.ssh/id") is Access.DENY
    assert daemon.deny_globs == ("/w/**/.env",)
    assert (daemon.access("/etc/passwd"), daemon.network) == (Access.WRITE, True)
    assert without_sandbox(lifted) == lifted


def test_a_workspace_below_what_is_denied_stays_open_when_the_sandbox_is_lifted() -> None:
    daemon = resolved(without_sandbox(WorkspaceWrite(deny_read=("/home/me",))), "/home/me/work")

    assert daemon.access("/home/me/work/.git/config") is Access.WRITE
    assert daemon.access("/home/me/other") is Access.DENY


def test_lifting_keeps_the_depth_to_which_patterns_are_searched() -> None:
    policy = Profile(
        {
            "type": "managed",
            "network": "restricted",
            "file_system": {
                "type": "restricted",
                "entries": [
                    ROOT_READ,
                    {"path": {"type": "glob_pattern", "pattern": "**/.env"}, "access": "deny"},
                ],
                "glob_scan_max_depth": 2,
            },
        }
    )

    assert resolved(without_sandbox(policy)).glob_depth == 2


# -- what is asked of a policy


@pytest.mark.parametrize(
    ("policy", "confines", "network", "denies"),
    [
        (ReadOnly(), True, False, False),
        (ReadOnly(network=True, deny_read=("x",)), True, True, True),
        (WorkspaceWrite(network=True), True, True, False),
        (DangerFullAccess(), False, True, False),
        (ExternalSandbox(), True, False, False),
        (ExternalSandbox(network=True), False, True, False),
        (Profile({"type": "disabled"}), False, True, False),
        (
            Profile({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"}),
            False,
            True,
            False,
        ),
        (restricted(ROOT_WRITE, network="enabled"), False, True, False),
        (restricted(ROOT_WRITE), True, False, False),
        (restricted(ROOT_WRITE, at("/a", "read"), network="enabled"), True, True, False),
        (restricted(at("/", "write"), network="enabled"), False, True, False),
        (restricted(special("root", "write", subpath="srv"), network="enabled"), True, True, False),
    ],
)
def test_a_policy_knows_whether_it_confines(
    policy: SandboxPolicy, confines: bool, network: bool, denies: bool
) -> None:
    assert (policy.confines, policy.network_allowed, policy.denies_reads) == (confines, network, denies)


def test_a_profile_is_a_value_of_its_own() -> None:
    permissions: dict[str, Json] = {"network": "enabled", "type": "external"}
    profile = Profile(permissions)
    permissions["network"] = "restricted"
    profile.permissions()["network"] = "restricted"

    assert profile.network_allowed
    assert profile == Profile({"type": "external", "network": "enabled"})


# -- words


@pytest.mark.parametrize(
    ("policy", "sentences"),
    [
        (
            ReadOnly(),
            (
                "read everything",
                "write nothing",
                "no network",
                "still confined: it sees no processes but its own, and gains no privileges",
            ),
        ),
        (DangerFullAccess(), ("run without a sandbox, with all that the daemon's user may do",)),
        (
            ExternalSandbox(),
            ("run with no limits on files but those of the sandbox around the daemon", "no network"),
        ),
    ],
)
def test_a_policy_is_told_in_sentences(policy: SandboxPolicy, sentences: tuple[str, ...]) -> None:
    assert policy.describe() == sentences


def test_what_can_be_written_is_listed() -> None:
    told = WorkspaceWrite(writable_roots=("/srv/a b",), network=True).describe()

    assert told[:3] == ("read everything", "write the workspace, /tmp, $TMPDIR, /srv/a b", "use the network")


def test_an_escalation_says_which_restrictions_remain() -> None:
    told = without_sandbox(WorkspaceWrite(deny_read=("**/.env", "/etc/shadow"))).describe()

    assert told == (
        "read and write everything",
        "use the network",
        "still denied: reading **/.env, /etc/shadow",
        "still confined: it sees no processes but its own, and gains no privileges",
    )


def test_no_denial_of_a_profile_goes_untold() -> None:
    told = restricted(
        special("minimal", "read"),
        special("project_roots", "write"),
        special("project_roots", "deny", subpath="keys"),
        special("unknown", "deny", path=":later"),
        at("/a", "none"),
    ).describe()

    assert told[:2] == ("read what programs need to run, the workspace", "write the workspace")
    assert "still denied: reading keys in the workspace, :later, /a" in told


def test_what_stays_read_only_below_a_writable_root_is_told() -> None:
    assert restricted(ROOT_WRITE, at("/etc", "read")).describe()[:2] == (
        "read and write everything",
        "not write /etc",
    )


# -- tables


@pytest.mark.parametrize(
    ("platform", "sandbox"),
    [
        ("linux", "linuxSeccomp"),
        ("darwin", "macosSeatbelt"),
        ("macos", "macosSeatbelt"),
        ("win32", "windowsRestrictedToken"),
        ("windows", "windowsRestrictedToken"),
        ("freebsd14", "none"),
    ],
)
def test_each_platform_has_its_sandbox(platform: str, sandbox: str) -> None:
    assert platform_sandbox(platform) == sandbox


@pytest.mark.parametrize(
    ("mode", "policy", "sandbox", "patches"),
    [
        ("suggest", "unless-trusted", ReadOnly(), "ask"),
        ("auto-edit", "auto-edit", WorkspaceWrite(), "allow"),
        ("full-auto", "on-failure", WorkspaceWrite(), "allow"),
    ],
)
def test_the_older_modes_are_pairs_of_policies(
    mode: str, policy: str, sandbox: SandboxPolicy, patches: str
) -> None:
    assert MODES[mode] == (policy, sandbox)
    assert approval_policy(MODES[mode][0]).patches == patches
    assert len(MODES) == 3
