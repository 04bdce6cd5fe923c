"""The filters' answers to calls, by an interpreter, for both machines."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from execserver.sandbox import seccomp
from execserver.sandbox.seccomp_numbers import ARCHITECTURES
from tests.unit.sandbox import bpf

ALLOWED, REFUSED, NOT_IMPLEMENTED, KILLED = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
AUDIT_I386, AUDIT_ARM = 0x40000003, 0x40000028
MACHINES = ("x86_64", "aarch64")


def _table(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in (each.split("=") for each in text.split())}


# From the kernel's headers (asm/unistd_64.h, asm-generic/unistd.h), a second time on purpose.
NUMBERS = {
    "x86_64": _table("""
        ioctl=16 socket=41 connect=42 accept=43 sendto=44 shutdown=48 bind=49 listen=50
        getsockname=51 getpeername=52 socketpair=53 setsockopt=54 getsockopt=55 clone=56 ptrace=101
        pivot_root=155 chroot=161 mount=165 umount2=166 add_key=248 request_key=249 keyctl=250
        unshare=272 accept4=288 recvmmsg=299 sendmmsg=307 setns=308 process_vm_readv=310
        process_vm_writev=311 bpf=321 execveat=322 setpriority=141 setrlimit=160 sched_setparam=142
        sched_setscheduler=144 sched_setaffinity=203 ioprio_set=251 prlimit64=302 sched_setattr=314
        read=0 write=1 recvfrom=45 sendmsg=46 recvmsg=47 fork=57
        vfork=58 execve=59 kill=62
    """),
    "aarch64": _table("""
        ioctl=29 umount2=39 mount=40 pivot_root=41 chroot=51 unshare=97 ptrace=117 socket=198
        socketpair=199 bind=200 listen=201 accept=202 connect=203 getsockname=204 getpeername=205
        sendto=206 setsockopt=208 getsockopt=209 shutdown=210 add_key=217 request_key=218 keyctl=219
        clone=220 accept4=242 recvmmsg=243 setns=268 sendmmsg=269 process_vm_readv=270
        process_vm_writev=271 bpf=280 execveat=281 ioprio_set=30 sched_setparam=118 sched_setscheduler=119
        sched_setaffinity=122 setpriority=140 setrlimit=164 prlimit64=261 sched_setattr=274
        read=63 write=64 recvfrom=207 sendmsg=211 recvmsg=212
        execve=221 kill=129
    """),
}
SINCE_5_1 = _table("""
    io_uring_setup=425 io_uring_enter=426 io_uring_register=427 open_tree=428 move_mount=429
    fsopen=430 fsconfig=431 fsmount=432 fspick=433 pidfd_open=434 clone3=435 pidfd_getfd=438 mount_setattr=442
    open_tree_attr=467
""")

IO_URING = ("io_uring_setup", "io_uring_enter", "io_uring_register")
KEYS_AND_BPF = ("bpf", "keyctl", "add_key", "request_key")
TRACING = {"ptrace": 1, "process_vm_readv": 0, "process_vm_writev": 0}
"""With the index of the pid argument."""
PRIORITIES = {
    "sched_setaffinity": (0,),
    "sched_setattr": (0,),
    "sched_setparam": (0,),
    "sched_setscheduler": (0,),
    "setpriority": (0, 0),
    "ioprio_set": (1, 0),
}
"""With the arguments by which a thread names itself."""
SOCKETS = ("connect", "accept", "accept4", "bind", "listen")
PAIRS = (
    "getsockname", "getpeername", "shutdown", "sendmsg", "sendmmsg", "recvmsg", "recvmmsg", "recvfrom",
    "getsockopt", "setsockopt",
)  # fmt: skip
MOUNTS = (
    "mount", "umount2", "pivot_root", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsmount",
    "fsconfig", "fspick", "mount_setattr", "setns", "chroot",
)  # fmt: skip
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK = 1, 2, 10, 16, 17, 38, 40
STREAM, DGRAM, RAW, SEQPACKET = 1, 2, 3, 5
CLOEXEC, NONBLOCK = 0o2000000, 0o4000
HIGH = 0xDEADBEEF << 32
TIOCSTI, TIOCLINUX, TIOCGWINSZ = 0x5412, 0x541C, 0x5413
CLONE_NEW = {
    "NEWNS": 0x00020000,
    "NEWCGROUP": 0x02000000,
    "NEWUTS": 0x04000000,
    "NEWIPC": 0x08000000,
    "NEWUSER": 0x10000000,
    "NEWPID": 0x20000000,
    "NEWNET": 0x40000000,
}


class Filter(NamedTuple):
    network: bool
    files_limited: bool
    namespaces_denied: bool
    managed: bool = False


OFFLINE = Filter(network=False, files_limited=True, namespaces_denied=False)
OFFLINE_UNLIMITED_FILES = Filter(network=False, files_limited=False, namespaces_denied=False)
ONLINE = Filter(network=True, files_limited=True, namespaces_denied=False)
OFFLINE_ALONE = Filter(network=False, files_limited=True, namespaces_denied=True)
ONLINE_ALONE = Filter(network=True, files_limited=True, namespaces_denied=True)
MANAGED = Filter(network=False, files_limited=True, namespaces_denied=False, managed=True)
FILTERS = (OFFLINE, OFFLINE_UNLIMITED_FILES, ONLINE, OFFLINE_ALONE, ONLINE_ALONE, MANAGED)
OFFLINES = (OFFLINE, OFFLINE_UNLIMITED_FILES, OFFLINE_ALONE)
ONLINES = (ONLINE, ONLINE_ALONE)


def number(machine: str, name: str) -> int:
    return (NUMBERS[machine] | SINCE_5_1)[name]


def verdict(machine: str, which: Filter, name: str, *arguments: int) -> int:
    program = seccomp.program(**which._asdict(), architecture=machine)
    return bpf.run(program, number(machine, name), AUDIT[machine], arguments)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", sorted({*ARCHITECTURES["x86_64"].numbers}))
def test_every_call_that_is_named_has_the_headers_number(machine: str, name: str) -> None:
    assert ARCHITECTURES[machine].numbers[name] == number(machine, name)


def test_both_machines_name_the_same_calls() -> None:
    assert set(ARCHITECTURES["x86_64"].numbers) == set(ARCHITECTURES["aarch64"].numbers)


@pytest.mark.parametrize("which", FILTERS)
@pytest.mark.parametrize("name", [*IO_URING, *KEYS_AND_BPF, "pidfd_getfd"])
def test_rings_bpf_keyrings_and_descriptors_of_others_are_always_refused(
    machine: str, which: Filter, name: str
) -> None:
    assert verdict(machine, which, name) == REFUSED


@pytest.mark.parametrize("which", FILTERS)
@pytest.mark.parametrize("command", [TIOCSTI, TIOCLINUX])
def test_typing_into_the_terminal_is_always_refused(machine: str, which: Filter, command: int) -> None:
    assert verdict(machine, which, "ioctl", 0, command) == REFUSED
    assert verdict(machine, which, "ioctl", 0, command | HIGH) == REFUSED


@pytest.mark.parametrize("which", FILTERS)
@pytest.mark.parametrize("name", ["read", "write", "sendmsg", "recvmsg", "recvfrom", "execve", "kill"])
def test_calls_that_every_program_needs_are_always_allowed(machine: str, which: Filter, name: str) -> None:
    assert verdict(machine, which, name) == ALLOWED


@pytest.mark.parametrize("which", FILTERS)
def test_other_terminal_controls_are_allowed(machine: str, which: Filter) -> None:
    assert verdict(machine, which, "ioctl", TIOCSTI, TIOCGWINSZ, TIOCSTI) == ALLOWED


@pytest.mark.parametrize("which", FILTERS)
@pytest.mark.parametrize(("name", "index"), [*TRACING.items(), ("pidfd_open", 0)])
@pytest.mark.parametrize("pid", [1, 1 | HIGH, 1 | 1 << 32])
def test_the_first_process_is_out_of_reach_under_every_policy(
    machine: str, which: Filter, name: str, index: int, pid: int
) -> None:
    assert verdict(machine, which, name, *[0x4206] * index, pid) == REFUSED


@pytest.mark.parametrize(("name", "index"), TRACING.items())
@pytest.mark.parametrize("pid", [0, 2, 12345, 1 << 32])
def test_with_the_network_own_processes_are_traced_unless_nothing_may_be(
    machine: str, name: str, index: int, pid: int
) -> None:
    arguments = (*[0x4206] * index, pid)
    for which in (*ONLINES, MANAGED):
        assert verdict(machine, which, name, *arguments) == ALLOWED
        program = seccomp.program(**which._asdict(), tracing=False, architecture=machine)
        assert bpf.run(program, number(machine, name), AUDIT[machine], arguments) == REFUSED


@pytest.mark.parametrize(("name", "own"), PRIORITIES.items())
def test_where_others_can_be_named_a_thread_changes_its_own_priority_only(
    machine: str, name: str, own: tuple[int, ...]
) -> None:
    for which in (OFFLINE_ALONE, ONLINE_ALONE):
        assert verdict(machine, which, name, *own) == ALLOWED
        for index in range(len(own)):
            for other in (own[index] + 1, own[index] + 12345, 0xFFFFFFFF):
                arguments = (*own[:index], other, *own[index + 1 :])
                assert verdict(machine, which, name, *arguments) == REFUSED
    assert verdict(machine, OFFLINE, name, *own[:-1], 12345) == ALLOWED


@pytest.mark.parametrize("pointer", [0x1000, 1 << 32, 0x7FFF_0000_1000])
def test_where_others_can_be_named_their_limits_are_read_and_not_set(machine: str, pointer: int) -> None:
    for which in (OFFLINE_ALONE, ONLINE_ALONE):
        for pid in (1, 12345, 0xFFFFFFFF):
            assert verdict(machine, which, "prlimit64", pid, 0, pointer) == REFUSED
            assert verdict(machine, which, "prlimit64", pid, 0, 0, pointer) == ALLOWED
        assert verdict(machine, which, "prlimit64", 0, 0, pointer) == ALLOWED
    assert verdict(machine, OFFLINE, "prlimit64", 12345, 0, pointer) == ALLOWED


def test_where_a_tag_tells_what_is_confined_it_cannot_be_taken_off(machine: str) -> None:
    for which in (OFFLINE_ALONE, ONLINE_ALONE):
        for pid in (0, 12345):
            assert verdict(machine, which, "prlimit64", pid, 15 | HIGH, 0x1000) == REFUSED
            assert verdict(machine, which, "prlimit64", pid, 15, 1 << 32) == REFUSED
            assert verdict(machine, which, "prlimit64", pid, 15, 0, 0x1000) == ALLOWED
        assert verdict(machine, which, "setrlimit", 15 | HIGH, 0x1000) == REFUSED
        assert verdict(machine, which, "setrlimit", 7, 0x1000) == ALLOWED
    assert verdict(machine, ONLINE, "setrlimit", 15, 0x1000) == ALLOWED


@pytest.mark.parametrize("name", [*TRACING, *SOCKETS])
def test_without_the_network_no_connections_and_no_other_processes(machine: str, name: str) -> None:
    for which in OFFLINES:
        assert verdict(machine, which, name) == REFUSED
    for which in ONLINES:
        assert verdict(machine, which, name) == ALLOWED


@pytest.mark.parametrize("call", ["socket", "socketpair"])
@pytest.mark.parametrize("family", [0, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK, 0xFFFF])
@pytest.mark.parametrize("which", OFFLINES)
def test_without_the_network_only_unix_sockets(machine: str, which: Filter, call: str, family: int) -> None:
    assert verdict(machine, which, call, family, STREAM) == REFUSED
    assert verdict(machine, which, call, family | HIGH, STREAM) == REFUSED


@pytest.mark.parametrize("call", ["socket", "socketpair"])
@pytest.mark.parametrize("flags", [0, CLOEXEC, CLOEXEC | NONBLOCK, HIGH])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [(STREAM, ALLOWED), (SEQPACKET, ALLOWED), (DGRAM, REFUSED), (RAW, REFUSED), (0, REFUSED), (15, REFUSED)],
)
def test_without_the_network_unix_sockets_are_streams_or_sequenced_packets(
    machine: str, call: str, flags: int, kind: int, expected: int
) -> None:
    for which in OFFLINES:
        assert verdict(machine, which, call, AF_UNIX, kind | flags) == expected


def test_the_upper_half_of_a_socket_family_hides_nothing_and_means_nothing(machine: str) -> None:
    assert verdict(machine, OFFLINE, "socket", AF_UNIX | HIGH, STREAM) == ALLOWED


@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_with_the_network_only_sockets_of_the_hypervisor_are_refused(machine: str, call: str) -> None:
    for which in ONLINES:
        assert verdict(machine, which, call, AF_VSOCK, STREAM) == REFUSED
        assert verdict(machine, which, call, AF_VSOCK | HIGH, STREAM) == REFUSED
        for family in (AF_INET, AF_INET6, AF_NETLINK):
            assert verdict(machine, which, call, family, DGRAM) == ALLOWED
    assert verdict(machine, ONLINE, call, AF_UNIX, DGRAM) == ALLOWED


@pytest.mark.parametrize("kind", [STREAM, SEQPACKET, DGRAM, RAW])
def test_where_nothing_covers_the_hosts_unix_sockets_there_are_only_pairs_of_them(
    machine: str, kind: int
) -> None:
    for family in (AF_UNIX, AF_UNIX | HIGH):
        assert verdict(machine, ONLINE_ALONE, "socket", family, kind | CLOEXEC) == REFUSED
        pair = ALLOWED if kind in (STREAM, SEQPACKET) else REFUSED
        assert verdict(machine, ONLINE_ALONE, "socketpair", family, kind | CLOEXEC) == pair


@pytest.mark.parametrize("family", [AF_INET, AF_INET6, AF_INET | HIGH])
def test_a_managed_network_has_tcp_sockets_and_no_others(machine: str, family: int) -> None:
    for kind in (STREAM, STREAM | CLOEXEC | NONBLOCK, STREAM | HIGH):
        for protocol in (0, 6, 6 | HIGH):
            assert verdict(machine, MANAGED, "socket", family, kind, protocol) == ALLOWED
        for protocol in (1, 17, 33, 132, 136, 255, 262):
            assert verdict(machine, MANAGED, "socket", family, kind, protocol) == REFUSED
    for kind in (DGRAM, RAW, SEQPACKET, 4, 6, 10, 0, 15):
        assert verdict(machine, MANAGED, "socket", family, kind, 0) == REFUSED


@pytest.mark.parametrize("family", [0, AF_UNIX, AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK, 0xFFFF])
def test_a_managed_network_has_no_sockets_of_another_family(machine: str, family: int) -> None:
    for kind in (STREAM, SEQPACKET, DGRAM, RAW):
        assert verdict(machine, MANAGED, "socket", family | HIGH, kind) == REFUSED
        pair = ALLOWED if family == AF_UNIX and kind in (STREAM, SEQPACKET) else REFUSED
        assert verdict(machine, MANAGED, "socketpair", family, kind) == pair


@pytest.mark.parametrize("name", SOCKETS)
def test_a_managed_network_is_used_as_any_other(machine: str, name: str) -> None:
    assert verdict(machine, MANAGED, name) == ALLOWED
    assert verdict(machine, MANAGED, "sendto", 3, 0x1000, 1, 0, 0x1000, 16) == REFUSED


PROXIES_REFUSED = ("execve", "execveat", "ptrace", *MOUNTS, *IO_URING, *KEYS_AND_BPF, "pidfd_getfd")


@pytest.mark.parametrize("name", PROXIES_REFUSED)
def test_a_network_proxy_runs_no_program_and_reaches_no_process(machine: str, name: str) -> None:
    program = seccomp.for_proxies(machine)
    assert bpf.run(program, number(machine, name), AUDIT[machine], (12345, 12345)) == REFUSED


def test_a_network_proxy_starts_threads_and_uses_any_socket(machine: str) -> None:
    program = seccomp.for_proxies(machine)
    for name, *arguments in (
        ("clone", 0x3D0F00),
        ("socket", AF_INET, DGRAM),
        ("socket", AF_UNIX, STREAM),
        ("connect", 3),
        ("accept4", 3),
        ("sendmsg", 3),
    ):
        assert bpf.run(program, number(machine, name), AUDIT[machine], arguments) == ALLOWED
    assert bpf.run(program, number(machine, "clone3"), AUDIT[machine]) == NOT_IMPLEMENTED
    with pytest.raises(seccomp.UnknownArchitectureError):
        seccomp.for_proxies("riscv64")


@pytest.mark.parametrize("name", MOUNTS)
def test_mounts_and_roots_are_refused_where_nothing_else_does(machine: str, name: str) -> None:
    assert verdict(machine, OFFLINE_ALONE, name) == REFUSED
    assert verdict(machine, ONLINE_ALONE, name) == REFUSED
    assert verdict(machine, OFFLINE, name) == ALLOWED
    assert verdict(machine, ONLINE, name) == ALLOWED


@pytest.mark.parametrize("flag", CLONE_NEW.values(), ids=CLONE_NEW.keys())
@pytest.mark.parametrize("call", ["clone", "unshare"])
def test_new_namespaces_are_refused_where_nothing_else_does(machine: str, call: str, flag: int) -> None:
    for flags in (flag, flag | 17, flag | 0x200, flag | HIGH):
        assert verdict(machine, OFFLINE_ALONE, call, flags) == REFUSED
        assert verdict(machine, ONLINE_ALONE, call, flags) == REFUSED
        assert verdict(machine, OFFLINE, call, flags) == ALLOWED


def test_time_namespaces_and_unknown_flags_cannot_be_unshared(machine: str) -> None:
    for flags in (0x80, 0x100000, 0x1000, 0x80000000):
        assert verdict(machine, OFFLINE_ALONE, "unshare", flags) == REFUSED


def test_threads_forks_and_own_copies_are_made_as_ever(machine: str) -> None:
    pthread, posix_spawn, fork = 0x3D0F00, 0x4111, 0x1200011
    for flags in (pthread, posix_spawn, fork):
        assert verdict(machine, OFFLINE_ALONE, "clone", flags) == ALLOWED
    for flags in (0, 0x200, 0x400, 0x40000, 0x600):
        assert verdict(machine, OFFLINE_ALONE, "unshare", flags) == ALLOWED


@pytest.mark.parametrize("which", FILTERS)
@pytest.mark.parametrize("name", PAIRS)
def test_calls_for_the_ends_of_a_pair_are_always_allowed(machine: str, which: Filter, name: str) -> None:
    assert verdict(machine, which, name, 3, 0x1000, 1, 0, 0x1000, 16) == ALLOWED


@pytest.mark.parametrize("address", [1, 0x1000, 1 << 31, 1 << 32, 0x7FFF_0000_0000, HIGH])
def test_without_the_network_nothing_is_sent_to_an_address(machine: str, address: int) -> None:
    for length in (0, 16):
        for which in OFFLINES:
            assert verdict(machine, which, "sendto", 3, 0x1000, 1, 0, address, length) == REFUSED
        for which in ONLINES:
            assert verdict(machine, which, "sendto", 3, 0x1000, 1, 0, address, length) == ALLOWED


@pytest.mark.parametrize("which", FILTERS)
def test_a_call_of_send_has_no_address_and_is_allowed(machine: str, which: Filter) -> None:
    for length in (0, 16, HIGH):
        assert verdict(machine, which, "sendto", 3, 0x7FFF_0000_1000, 1, 0x4000, 0, length) == ALLOWED


def test_clone3_is_said_not_to_exist_so_that_clone_is_used(machine: str) -> None:
    assert verdict(machine, OFFLINE_ALONE, "clone3") == NOT_IMPLEMENTED
    assert verdict(machine, OFFLINE, "clone3") == ALLOWED


@pytest.mark.parametrize("which", FILTERS)
def test_calls_through_another_architectures_gate_end_the_process(machine: str, which: Filter) -> None:
    program = seccomp.program(**which._asdict(), architecture=machine)
    others = {AUDIT_I386, AUDIT_ARM, 0, *AUDIT.values()} - {AUDIT[machine]}
    for audit in others:
        assert bpf.run(program, number(machine, "read"), audit) == KILLED


def test_the_x32_gate_ends_the_process_on_x86_64_only() -> None:
    x32_getpid = 0x40000000 | 39
    for which in FILTERS:
        intel = seccomp.program(**which._asdict(), architecture="x86_64")
        assert bpf.run(intel, x32_getpid, AUDIT["x86_64"]) == KILLED
        assert bpf.run(intel, 0x40000000 | number("x86_64", "socket"), AUDIT["x86_64"]) == KILLED
        assert bpf.run(intel, 0xC0000000, AUDIT["x86_64"]) == KILLED
        arm = seccomp.program(**which._asdict(), architecture="aarch64")
        assert bpf.run(arm, x32_getpid, AUDIT["aarch64"]) == ALLOWED


def test_a_call_that_a_debugger_skipped_does_not_end_the_process(machine: str) -> None:
    program = seccomp.program(**ONLINE._asdict(), architecture=machine)
    assert bpf.run(program, -1, AUDIT[machine]) == ALLOWED


@pytest.mark.parametrize("machine", ["riscv64", "i686", ""])
def test_an_unknown_machine_is_a_clear_error(machine: str) -> None:
    with pytest.raises(seccomp.UnknownArchitectureError, match=f"'{machine}'.*x86_64 and aarch64"):
        seccomp.program(network=False, files_limited=True, architecture=machine)


def test_a_policy_that_limits_nothing_has_no_filter() -> None:
    with pytest.raises(ValueError, match="limits neither files nor the network"):
        seccomp.program(network=True, files_limited=False)
