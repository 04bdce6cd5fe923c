"""Denials by the reference's words, and by our evidence."""

from __future__ import annotations

import json
import time

import pytest

from execserver.sandbox.denial import Denial, Evidence, StandIns, denied, evidence, is_writable, respelled
from execserver.sandbox.policy import Access, Glob, Policy, Rule

WORKSPACE = Policy(
    unrestricted=False,
    network=False,
    rules=(
        Rule("/", Access.READ),
        Rule("/tmp", Access.WRITE),
        Rule("/ws", Access.WRITE),
        Rule("/ws/secret", Access.DENY),
        Rule("/ws/vendor", Access.READ),
        Rule("/ws/vendor/open", Access.WRITE),
    ),
    globs=(Glob("/ws/**/.env", Access.DENY),),
)
ONLINE = Policy(unrestricted=False, network=True, rules=WORKSPACE.rules, globs=WORKSPACE.globs)
READ_ONLY = Policy(unrestricted=False, network=False, rules=(Rule("/", Access.READ),))
CONFINED = Policy(unrestricted=False, network=False, rules=(Rule("/ws", Access.WRITE),), minimal=True)
OFFLINE = Policy(unrestricted=True, network=False)
OPEN = Policy(unrestricted=True, network=True)


# ------------------------------------------------------------------ the reference's rule


@pytest.mark.parametrize(
    "words",
    [
        "operation not permitted",
        "permission denied",
        "read-only file system",
        "seccomp",
        "sandbox",
        "landlock",
        "failed to write file",
    ],
)
def test_each_word_of_the_reference_is_a_denial_in_any_case_and_any_place(words: str) -> None:
    assert denied(1, f"before\n  xx{words.upper()}yy\nafter".encode())
    assert denied(2, words.encode() + b"\xff\xfe")
    assert not denied(1, words[:-1].encode())


@pytest.mark.parametrize(
    ("exit_code", "output", "expected"),
    [
        (0, b"Permission denied", False),
        (159, b"", True),
        (31, b"", False),
        (126, b"not executable", False),
        (127, b"command not found", False),
        (2, b"Read-only file system", True),
        (137, b"", False),
        (1, b"No such file or directory", False),
        (1, b"Device or resource busy", False),
        (1, "LANDLOC\N{KELVIN SIGN}".encode(), True),
    ],
)
def test_the_reference_asks_for_words_and_sigsys_only(exit_code: int, output: bytes, expected: bool) -> None:
    assert denied(exit_code, output) is expected


# ------------------------------------------------------------------ evidence

DENIED_FILES = [
    ("/bin/sh: 1: cannot create /var/tmp/x: Read-only file system", "/var/tmp/x"),
    ("bash: line 1: /etc/x: Read-only file system", "/etc/x"),
    ("sh: can't create /etc/x: Read-only file system", "/etc/x"),
    ("touch: cannot touch '/home/me/a b': Read-only file system", "/home/me/a b"),
    ("touch: cannot touch \u2018/home/me/x\u2019: Read-only file system", "/home/me/x"),
    ("mkdir: /opt/x: Read-only file system", "/opt/x"),
    ("mkdir: //opt//x/: Read-only file system", "/opt/x"),
    ("cat: //ws/.env: Permission denied", "/ws/.env"),
    ("mv: cannot move 'a' to '/etc/a': Read-only file system", "/etc/a"),
    ("tee: /etc/hosts: Read-only file system", "/etc/hosts"),
    ("cp: cannot create regular file '../out': Read-only file system", "/out"),
    ("rm: cannot remove '.git/HEAD': Read-only file system", "/ws/.git/HEAD"),
    ("error: could not lock config file .git/config: Read-only file system", "/ws/.git/config"),
    ("fatal: Unable to create '/ws/.git/index.lock': Read-only file system", "/ws/.git/index.lock"),
    ("sed: couldn't open temporary file vendor/sedXf: Read-only file system", "/ws/vendor/sedXf"),
    ("OSError: [Errno 30] Read-only file system: '/usr/lib/x'", "/usr/lib/x"),
    ("ERROR: Could not install: [Errno 30] Read-only file system: '/usr/lib/x.py'", "/usr/lib/x.py"),
    ("Error: EROFS: read-only file system, open '/srv/x'", "/srv/x"),
    ("Error: EROFS: read-only file system, rename '/tmp/a' -> '/srv/b'", "/srv/b"),
    ("npm ERR! Error: EROFS: read-only file system, mkdir '/usr/lib/node_modules'", "/usr/lib/node_modules"),
    ("open /var/lib/x.db: read-only file system", "/var/lib/x.db"),
    ("error: failed to write `/root/.cargo/x`: Read-only file system (os error 30)", "/root/.cargo/x"),
    (
        "error: failed to write `/srv/t/x.json`\n\nCaused by:\n  Read-only file system (os error 30)",
        "/srv/t/x.json",
    ),
    ("java.io.FileNotFoundException: /var/x.log (Read-only file system)", "/var/x.log"),
    ("x.rb:1:in `initialize': Read-only file system @ rb_sysopen - /etc/x (Errno::EROFS)", "/etc/x"),
    ("\x1b[31mtouch: cannot touch '\x1b[1m/etc/x\x1b[0m': Read-only file system\x1b[0m", "/etc/x"),
    (
        "E: Could not open lock file /var/lib/dpkg/lock - open (30: Read-only file system)",
        "/var/lib/dpkg/lock",
    ),
    ("zsh:1: read-only file system: /etc/x", "/etc/x"),
    ("cat: secret/key: Permission denied", "/ws/secret/key"),
    ("cat: secret: Permission denied", "/ws/secret"),
    ("cat: /ws/a/.env: Permission denied", "/ws/a/.env"),
    ("PermissionError: [Errno 13] Permission denied: '/ws/secret/key'", "/ws/secret/key"),
    ("open /ws/secret/key: permission denied", "/ws/secret/key"),
    ("ls: cannot open directory 'secret': Permission denied", "/ws/secret"),
    ("mv: cannot move '.git' to '.git2': Device or resource busy", "/ws/.git"),
    ("mv: cannot move 'vendor' to 'v2': Device or resource busy", "/ws/vendor"),
]


@pytest.mark.parametrize(("output", "path"), DENIED_FILES, ids=[text[:60] for text, _ in DENIED_FILES])
def test_an_errno_beside_a_path_that_the_policy_closes_is_evidence(output: str, path: str) -> None:
    found = evidence(WORKSPACE, 1, output.encode(), "/ws")
    assert [(each.kind, each.path) for each in found.evidence] == [("file", path)]


DENIED_NETWORK = [
    "bash: socket: Operation not permitted\nbash: line 1: /dev/tcp/127.0.0.1/39097: Operation not permitted",
    "    _socket.socket.__init__(self, family)\nPermissionError: [Errno 1] Operation not permitted",
    "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    "curl: (6) Could not resolve host: example.com",
    "wget: unable to resolve host address \u2018example.com\u2019",
    "fatal: unable to access 'https://github.com/x/': Could not resolve host: github.com",
    "ssh: Could not resolve hostname github.com: Temporary failure in name resolution",
    "urllib.error.URLError: <urlopen error [Errno 1] Operation not permitted>",
    "Error: connect EPERM 93.184.216.34:443 - Local (undefined:undefined)",
    "Error: listen EPERM: operation not permitted 0.0.0.0:3000",
    "Error: getaddrinfo EAI_AGAIN registry.npmjs.org",
    "dial tcp 1.2.3.4:443: socket: operation not permitted",
    "listen tcp :8080: socket: operation not permitted",
    "tcp connect error: Operation not permitted (os error 1)",
    "ping: socket: Operation not permitted",
    "W: Failed to fetch http://deb.debian.org  Temporary failure resolving 'deb.debian.org'",
    "connect: Network is unreachable",
]


@pytest.mark.parametrize("output", DENIED_NETWORK, ids=lambda text: text[:60])
def test_a_network_operation_that_fails_is_evidence_while_the_network_is_off(output: str) -> None:
    found = evidence(WORKSPACE, 1, output.encode(), "/ws")
    assert found.likely
    assert {each.kind for each in found.evidence} == {"network"}
    assert evidence(OFFLINE, 1, output.encode(), "/ws").likely
    assert evidence(ONLINE, 1, output.encode(), "/ws") == Denial()


def test_death_by_sigsys_is_evidence_without_any_output() -> None:
    found = evidence(OFFLINE, 159, b"", "/")
    assert [each.kind for each in found.evidence] == ["signal"]
    assert evidence(OPEN, 159, b"", "/") == Denial()


def test_success_is_no_denial_whatever_was_written() -> None:
    assert evidence(WORKSPACE, 0, b"touch: /etc/x: Read-only file system\n", "/ws") == Denial()


BENIGN = [
    # words in names and in messages
    "/home/me/sandbox/tests/test_x.py:3: AssertionError",
    "cd: /home/me/sandbox: No such file or directory",
    "error: package `sandbox` not found",
    "FAILED tests/test_seccomp.py::test_filter_is_loaded - assert 1 == 2",
    "test landlock::rules ... FAILED",
    "thread 'sandbox_mode' panicked at src/lib.rs:3: explicit panic",
    "FAILED test_permission_denied_is_reported - AssertionError",
    "AssertionError: expected 'Permission denied' to equal 'ok'",
    "- Expected: 'Read-only file system'\n+ Received: undefined",
    "expected 'Read-only file system' for '/ro/x'",
    'assert error.message == "Operation not permitted"',
    "error TS2339: Property 'sandbox' does not exist on type 'Window'",
    "failed to write file: disk quota exceeded",
    "README.md:12:A sandboxed command sees 'Operation not permitted'.",
    # grep, diff, false: nothing, or what they found
    "",
    "1c1\n< sandbox: on\n---\n> sandbox: off",
    "Binary files a/sandbox.bin and b/sandbox.bin differ",
    # the other side of a connection
    "git@github.com: Permission denied (publickey).\nfatal: Could not read from remote repository.",
    "root@10.0.0.1: Permission denied (publickey,password).",
    "Permission denied (publickey).",
    "Permission denied, please try again.",
    "remote: Permission denied to deploy-key.\nfatal: unable to access: 403",
    "ERROR: Permission to x/y.git denied to z.",
    "remote: fatal: /srv/git/x.git/objects: Read-only file system",
    "scp: /var/x: Read-only file system",
    'rsync: mkstemp "/backup/.x" failed: Permission denied (13)',
    "HTTP 403 Forbidden",
    "HTTP/1.1 401 Unauthorized: permission denied",
    '{"error": {"code": 403, "message": "Permission denied on resource project x"}}',
    "ERROR:  permission denied for table users",
    'psql: FATAL: permission denied for database "x"',
    "ERROR 1045 (28000): Access denied for user 'x'@'localhost'",
    "Error response from daemon: mkdir /mnt/x: read-only file system",
    "rpc error: code = PermissionDenied desc = permission denied",
    "AccessDenied: User is not authorized to perform s3:PutObject",
    "denied: requested access to the resource is denied",
    # the file's own mode, where the policy allows what was tried
    "npm ERR! Error: EACCES: permission denied, access '/ws/node_modules'",
    "npm ERR! Error: EACCES: permission denied, mkdir '/usr/lib/node_modules'",
    "bash: ./run.sh: Permission denied",
    "bash: /ws/run.sh: Permission denied",
    "zsh: permission denied: ./run.sh",
    "sh: 1: ./build: Permission denied",
    "cat: /etc/shadow: Permission denied",
    "PermissionError: [Errno 13] Permission denied: '/etc/shadow'",
    "find: \u2018/proc/1/fd\u2019: Permission denied",
    "ls: cannot open directory '/root': Permission denied",
    "rm: cannot remove 'build/x': Permission denied",
    "cp: cannot open '/ws/other' for reading: Permission denied",
    "open /tmp/locked: permission denied",
    "make: execvp: ./configure: Permission denied",
    "chown: changing ownership of 'a': Operation not permitted",
    "chown: changing ownership of 'socket': Operation not permitted",
    "chown: socket: Operation not permitted",
    "chmod: changing permissions of '/ws/x': Operation not permitted",
    "kill: (1): Operation not permitted",
    "ln: failed to create hard link 'b' => 'a': Operation not permitted",
    "mknod: dev: Operation not permitted",
    "Error: EPERM: operation not permitted, unlink '/ws/x'",
    "dial unix /var/run/docker.sock: connect: permission denied",
    "Got permission denied while trying to connect to the Docker daemon socket",
    # what really is read-only or busy where writing is allowed
    "touch: cannot touch '/ws/cd/x': Read-only file system",
    "mount: /mnt/x: WARNING: source write-protected, mounted read-only.",
    "rm: cannot remove '/ws/nfs/.nfs01': Device or resource busy",
    "umount: /mnt/x: target is busy.",
    "touch: cannot touch '/ws/vendor/open/x': Read-only file system",
    # ordinary failures
    "error[E0432]: unresolved import `sandbox::Policy`",
    "ModuleNotFoundError: No module named 'seccomp'",
    "bash: line 1: landlock: command not found",
    "Segmentation fault (core dumped)",
    "Error: listen EADDRINUSE: address already in use 127.0.0.1:3000",
    "curl: (7) Failed to connect to 127.0.0.1 port 1: Connection refused",
    "curl: (22) The requested URL returned error: 403",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "test_temporary_failure_in_name_resolution FAILED",
    "Traceback (most recent call last):\nRuntimeError: sandbox denied by the test's own double",
    "OSError: [Errno 30] Read-only file system",
    'Os { code: 13, kind: PermissionDenied, message: "Permission denied" }',
    "sudo: a password is required",
    "E: Are you root?",
    "\xff\x00 sandbox \x1b[",
]


def test_the_corpus_of_benign_failures_is_large_and_has_no_repeats() -> None:
    assert len(set(BENIGN)) == len(BENIGN) >= 60


@pytest.mark.parametrize("output", BENIGN, ids=lambda text: text[:60])
@pytest.mark.parametrize("exit_code", [1, 2, 126, 127, 255])
def test_a_benign_failure_is_no_denial(output: str, exit_code: int) -> None:
    assert evidence(WORKSPACE, exit_code, output.encode("latin-1", "replace"), "/ws") == Denial()
    assert evidence(WORKSPACE, exit_code, output.encode(), "/ws") == Denial()
    assert evidence(OPEN, exit_code, output.encode(), "/ws") == Denial()


def test_evidence_depends_on_the_policy() -> None:
    output = b"cat: /home/me/x: Permission denied"
    assert evidence(WORKSPACE, 1, output, "/ws") == Denial()
    assert evidence(CONFINED, 1, output, "/ws").likely
    local = b"touch: cannot touch 'x': Read-only file system"
    assert evidence(WORKSPACE, 1, local, "/ws") == Denial()
    assert evidence(WORKSPACE, 1, local, "/opt").evidence[0].path == "/opt/x"
    assert evidence(READ_ONLY, 1, local, "/ws").evidence[0].path == "/ws/x"


def test_landlock_refuses_writes_with_eacces() -> None:
    output = b"touch: cannot touch '/etc/x': Permission denied"
    assert evidence(WORKSPACE, 1, output, "/ws") == Denial()
    assert evidence(WORKSPACE, 1, output, "/ws", landlock=True).likely


STAND_INS = StandIns(("/ws/.codex", "/ws/.aws", "/ws/secret-too"), lambda folder: folder == "/ws")
"""Two protected names and a denied path that are missing, in a folder with nothing else."""

AT_STAND_INS = [
    ("mkdir: cannot create directory \u2018.codex\u2019: File exists", "/ws/.codex"),
    ("mkdir: can't create directory '.codex': File exists", "/ws/.codex"),
    ("mkdir: .codex: File exists", "/ws/.codex"),
    ("FileExistsError: [Errno 17] File exists: '.aws'", "/ws/.aws"),
    ("Error: EEXIST: file already exists, mkdir '.codex'", "/ws/.codex"),
    ("mkdir .aws: file exists", "/ws/.aws"),
    ("Error: File exists (os error 17): .aws", "/ws/.aws"),
    ("sh: 1: cannot create .aws: Is a directory", "/ws/.aws"),
    ("bash: line 1: .aws: Is a directory", "/ws/.aws"),
    ("tee: .codex: Is a directory", "/ws/.codex"),
    ("Error: EISDIR: illegal operation on a directory, open '.codex'", "/ws/.codex"),
    ("bash: line 1: .aws/config: Permission denied", "/ws/.aws/config"),
    (
        "fatal: cannot copy '/usr/share/x' to '/ws/.codex/description': Permission denied",
        "/ws/.codex/description",
    ),
    ("Error: EACCES: permission denied, open '/ws/.aws/credentials'", "/ws/.aws/credentials"),
    ("fatal: destination path '.' already exists and is not an empty directory.", "/ws"),
    ("abort: destination '/ws' is not empty", "/ws"),
    ("OSError: [Errno 39] Directory not empty: '/ws'", "/ws"),
]


@pytest.mark.parametrize(("output", "path"), AT_STAND_INS, ids=[text[:60] for text, _ in AT_STAND_INS])
def test_an_empty_folder_in_place_of_a_missing_name_is_evidence(output: str, path: str) -> None:
    (one,) = evidence(WORKSPACE, 1, output.encode(), "/ws", stand_ins=STAND_INS).evidence
    assert (one.kind, one.path, one.reason) == ("file", path, "protectedName")
    assert one.protected in ("/ws/.codex", "/ws/.aws")
    assert one.protected.startswith(path) or path.startswith(one.protected)
    assert evidence(WORKSPACE, 1, output.encode(), "/ws") == Denial(), "without a stand-in it is no denial"


@pytest.mark.parametrize(
    "output",
    [
        "mkdir: cannot create directory 'build': File exists",
        "mkdir: cannot create directory '.codex/x': File exists",
        "cp: cannot open '.codexrc': Permission denied",
        "fatal: destination path 'sub' already exists and is not an empty directory.",
        "fatal: destination path '/home/me' already exists and is not an empty directory.",
        "rmdir: failed to remove 'build': Directory not empty",
        "cat: build: Is a directory",
        "bash: line 1: .codex/x: Is a directory",
        "grep: .codex: Is a directory",
        "cat: .aws: Is a directory",
        "IsADirectoryError: [Errno 21] Is a directory: '.codex'",
        "the queue is not empty",
    ],
)
def test_what_exists_elsewhere_is_no_denial(output: str) -> None:
    assert evidence(WORKSPACE, 1, output.encode(), "/ws", stand_ins=STAND_INS) == Denial()


def test_a_folder_with_something_else_in_it_is_not_empty_by_itself() -> None:
    output = b"fatal: destination path '.' already exists and is not an empty directory."
    full = StandIns(STAND_INS.paths, lambda _: False)
    assert evidence(WORKSPACE, 1, output, "/ws", stand_ins=full) == Denial()


@pytest.mark.parametrize(
    ("output", "reason", "protected"),
    [
        ("rm: cannot remove '.git/HEAD': Read-only file system", "protectedName", "/ws/.git"),
        ("mv: cannot move '.agents' to 'x': Device or resource busy", "protectedName", "/ws/.agents"),
        (
            "fatal: cannot copy '/usr/share/git/x' to '/ws/.git/x': Read-only file system",
            "protectedName",
            "/ws/.git",
        ),
        ("touch: cannot touch '/tmp/.aws/x': Read-only file system", "protectedName", "/tmp/.aws"),
        ("touch: cannot touch '/etc/x': Read-only file system", "readOnly", None),
        ("touch: cannot touch 'vendor/x': Read-only file system", "readOnly", None),
        ("cat: secret/key: Permission denied", "noAccess", None),
        ("cat: a/.env: Permission denied", "noAccess", None),
        ("mkdir: cannot create directory 'secret-too': File exists", "readOnly", None),
    ],
)
def test_the_reason_of_a_denied_path_is_named(output: str, reason: str, protected: str | None) -> None:
    (one,) = evidence(WORKSPACE, 1, output.encode(), "/ws", stand_ins=STAND_INS).evidence
    assert (one.reason, one.protected) == (reason, protected)
    assert one.as_json().get("protectedPath") == protected


def test_the_real_path_of_a_writable_folder_is_the_folder() -> None:
    output = b"fatal: Unable to create '/var/ws/.git/index.lock': Read-only file system"
    (one,) = evidence(WORKSPACE, 1, output, "/ws", spellings={"/var/ws": "/ws"}).evidence
    assert (one.path, one.reason, one.protected) == ("/ws/.git/index.lock", "protectedName", "/ws/.git")
    beside = b"touch: cannot touch '/var/ws2': Read-only file system"
    assert evidence(WORKSPACE, 1, beside, "/ws", spellings={"/var/ws": "/ws"}).evidence[0].path == "/var/ws2"
    assert respelled("/var/ws", {"/var/ws": "/ws"}) == "/ws"


@pytest.mark.parametrize(
    ("path", "writable"),
    [
        ("/ws", True),
        ("/ws/a", True),
        ("/ws/.git", False),
        ("/ws/.git/hooks/x", False),
        ("/ws/.gitignore", True),
        ("/ws/sub/.git", True),
        ("/ws/vendor/x", False),
        ("/ws/vendor/open/x", True),
        ("/ws/vendor/open/.git", False),
        ("/tmp/.codex/x", False),
        ("/ws/../etc", False),
        ("/etc", False),
    ],
)
def test_protected_names_are_not_writable_in_any_root(path: str, writable: bool) -> None:
    assert is_writable(WORKSPACE, path) is writable


def test_an_entry_for_a_protected_name_opens_it() -> None:
    rules = (Rule("/ws", Access.WRITE), Rule("/ws/.git", Access.WRITE))
    policy = Policy(unrestricted=False, network=False, rules=rules)
    assert is_writable(policy, "/ws/.git/HEAD")
    assert not is_writable(policy, "/ws/.aws/credentials")


def test_at_most_five_different_things_are_told_and_long_lines_are_cut() -> None:
    lines = [f"touch: cannot touch '/etc/{n % 7}': Read-only file system" for n in range(100)]
    found = evidence(WORKSPACE, 1, "\n".join(lines).encode(), "/ws")
    assert [each.path for each in found.evidence] == [f"/etc/{n}" for n in range(5)]
    long = "x" * 5000 + " open /etc/x: read-only file system " + "y" * 5000
    (one,) = evidence(WORKSPACE, 1, long.encode(), "/ws").evidence
    assert one.path == "/etc/x"
    assert len(one.text) <= 200


def test_the_member_is_plain_json_whatever_the_names_hold() -> None:
    output = b"touch: cannot touch '/etc/\xff\x01': Read-only file system"
    text = json.dumps(evidence(WORKSPACE, 1, output, "/ws").as_json())
    text.encode()
    assert json.loads(text)["likely"] is True
    assert json.loads(text)["evidence"][0]["path"].startswith("/etc/")
    assert Denial().as_json() == {"likely": False, "evidence": []}
    assert Evidence("signal", "x").as_json() == {"kind": "signal", "text": "x"}


def test_the_last_lines_are_found_behind_a_flood_of_harmless_ones() -> None:
    flood = b"rm: cannot remove 'x': Read-only file system\n" * 20_000
    found = evidence(WORKSPACE, 1, flood + b"touch: cannot touch '/etc/x': Read-only file system", "/ws")
    assert [each.path for each in found.evidence] == ["/etc/x"]


FLOODS = {
    "one line": b"a" * (1 << 20),
    "quotes": b"'" * (1 << 20),
    "errnos": b"permission denied: " * (1 << 16),
    "eperm": b" eperm " * (1 << 17),
    "slashes": b"/" * (1 << 19) + b": read-only file system",
    "lines": b"cat: 'a': Permission denied\n" * 40_000,
    "escapes": b"\x1b[" * (1 << 19) + b"(os error 13)",
    "spaces": b" " * (1 << 20) + b"[errno 1]" + b" " * (1 << 20),
    "words": b"open " * 200_000 + b": operation not permitted",
    "not UTF-8": b"\xff" * (1 << 20),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_megabyte_of_anything_takes_a_moment(name: str) -> None:
    began = time.process_time()
    evidence(WORKSPACE, 1, FLOODS[name], "/ws")
    denied(1, FLOODS[name])
    # A quadratic search of a megabyte would take minutes.
    assert time.process_time() - began < 10
