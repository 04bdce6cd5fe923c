"""Starting processes: what is refused, what the child sees, what its events are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.wire import Client, Json, path_uri


@pytest.mark.everywhere
@pytest.mark.statement("P1", "O1", "O2", "O3")
def test_silent_process_exits_and_closes(client: Client) -> None:
    process = client.start("/bin/true", processId="p")
    assert process.started == {"processId": "p", "sandboxType": "none"}
    assert process.wait_closed().log.events == [
        ("process/exited", {"processId": "p", "seq": 1, "exitCode": 0, "sandboxDenied": False}),
        ("process/closed", {"processId": "p", "seq": 2}),
    ]


@pytest.mark.statement("P1")
def test_nulls_are_as_good_as_nothing(client: Client) -> None:
    nulls = dict.fromkeys(
        (
            "arg0",
            "envPolicy",
            "sandbox",
            "managedNetwork",
            "networkProxy",
            "shellSnapshot",
            "metadata",
        )
    )
    assert client.start("/bin/true", **nulls).wait_closed().exit_code == 0


@pytest.mark.statement("P2")
@pytest.mark.parametrize("name", ["", "x" * 5000, "ü/ \n\0", "1"])
def test_any_string_is_a_process_id(client: Client, name: str) -> None:
    process = client.start("/bin/true", processId=name)
    assert process.started["processId"] == name
    assert process.wait_closed().read()["closed"]


@pytest.mark.everywhere
@pytest.mark.statement("P4")
def test_taken_id_is_refused_running_and_closed(client: Client) -> None:
    process = client.start("/bin/cat", processId="mine", pipeStdin=True)
    again = client.start_params(["/bin/true"], processId="mine")
    failure = client.refused("process/start", again)
    assert (failure.code, failure.message) == (-32600, "process mine already exists")
    process.terminate()
    process.wait_closed()
    failure = client.refused("process/start", again)
    assert (failure.code, failure.message) == (-32600, "process mine already exists")
    assert process.log.kinds == ["exited", "closed"]


@pytest.mark.statement("P5", "I1", "I5")
@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("program", ["/no/such/program", "./nothing"])
def test_missing_program(client: Client, program: str, tty: bool) -> None:
    failure = client.refused("process/start", client.start_params([program], tty=tty))
    assert (failure.code, failure.message) == (-32603, "No such file or directory (os error 2)")


@pytest.mark.statement("P5", "P9")
def test_missing_bare_name(client: Client) -> None:
    failure = client.refused("process/start", client.start_params(["no-such-program"]))
    assert (failure.code, failure.message) == (-32603, "No such file or directory (os error 2)")
    assert client.refused("process/start", client.start_params(["no-such-program"], tty=True)).code == -32603


@pytest.mark.statement("P5", "I5")
def test_program_that_may_not_be_executed(client: Client, here: Path) -> None:
    (here / "plain").write_text("#!/bin/sh\n")
    for program in (here / "plain", here):
        failure = client.refused("process/start", client.start_params([str(program)]))
        assert (failure.code, failure.message) == (-32603, "Permission denied (os error 13)")


@pytest.mark.statement("P5", "I5")
def test_program_in_no_known_format(client: Client, here: Path) -> None:
    program = here / "garbage"
    program.write_bytes(b"\x7fnothing known")
    program.chmod(0o755)
    assert client.refused("process/start", client.start_params([str(program)])).code == -32603


@pytest.mark.statement("P6", "I5", "Y6")
@pytest.mark.parametrize("tty", [False, True])
def test_cwd_must_be_a_folder(client: Client, here: Path, tty: bool) -> None:
    (here / "file").touch()
    for name, text in (
        ("missing", "No such file or directory (os error 2)"),
        ("file", "Not a directory (os error 20)"),
    ):
        params = client.start_params(["/bin/true"], cwd=path_uri(here / name), tty=tty)
        failure = client.refused("process/start", params)
        assert (failure.code, failure.message) == (-32603, text)


@pytest.mark.statement("P7")
@pytest.mark.parametrize(
    "members",
    [
        {"argv": [""]},
        {"argv": ["/bin/echo", "a\0b"]},
        {"argv": ["/bin/\0echo"]},
        {"argv": ["/bin/true"], "env": {"A": "\0"}},
        {"argv": ["/bin/true"], "env": {"A\0": "1"}},
        {"argv": ["/bin/true"], "arg0": "\0"},
    ],
)
def test_what_no_program_can_be_given(client: Client, members: dict[str, Json]) -> None:
    assert client.refused("process/start", client.start_params(["x"], **members)).code == -32603


@pytest.mark.everywhere
@pytest.mark.statement("P8")
def test_failed_start_leaves_nothing(client: Client) -> None:
    client.refused("process/start", client.start_params(["/no/such/program"], processId="p"))
    assert client.refused("process/read", {"processId": "p"}).message == "unknown process id p"
    process = client.start("/bin/true", processId="p").wait_closed()
    assert process.log.kinds == ["exited", "closed"]
    assert process.log.seqs == [1, 2]


@pytest.mark.statement("P9")
def test_name_is_looked_up_in_the_childs_path(client: Client, here: Path) -> None:
    program = here / "bin" / "special"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    found = client.start("special", env={"PATH": f"/nowhere:{program.parent}:/usr/bin:/bin"})
    assert found.wait_closed().output == b"found\n"
    assert client.refused("process/start", client.start_params(["special"])).code == -32603
    relative = client.start("bin/special", cwd=path_uri(here))
    assert relative.wait_closed().output == b"found\n"


@pytest.mark.statement("P9")
def test_name_without_any_path_is_looked_up_in_the_systems(client: Client) -> None:
    assert client.start("true", env={}).wait_closed().exit_code == 0


@pytest.mark.statement("P10")
def test_child_leads_its_session_and_group(client: Client) -> None:
    script = "read -r pid name state parent group session rest < /proc/self/stat; echo $pid $group $session"
    process = client.start("/bin/bash", "-c", script).wait_closed()
    pid, group, session = process.output.split()
    assert pid == group == session


@pytest.mark.statement("P11")
def test_stdin_is_at_end_of_file(client: Client) -> None:
    process = client.start("/bin/cat").wait_closed()
    assert (process.exit_code, process.output) == (0, b"")


@pytest.mark.statement("P12")
def test_arg0_is_only_a_name(client: Client) -> None:
    named = client.start("/bin/sh", "-c", "echo $0", arg0="another").wait_closed()
    plain = client.start("/bin/sh", "-c", "echo $0").wait_closed()
    assert (named.output, plain.output) == (b"another\n", b"/bin/sh\n")


@pytest.mark.statement("P13")
@pytest.mark.transports("unix")
def test_three_hundred_processes_at_once(client: Client) -> None:
    processes = [client.start("/bin/cat", pipeStdin=True) for _ in range(300)]
    assert [process.read()["exited"] for process in processes] == [False] * 300
    for process in processes:
        assert process.terminate() == {"running": True}
    for process in processes:
        assert process.wait_closed().exit_code == 137


HTTP_VARIABLES = (
    "HTTP_PROXY", "HTTPS_PROXY", "WS_PROXY", "WSS_PROXY", "http_proxy", "https_proxy", "ws_proxy",
    "wss_proxy",
    "npm_config_proxy", "npm_config_http_proxy", "npm_config_https_proxy", "NPM_CONFIG_PROXY",
    "NPM_CONFIG_HTTP_PROXY", "NPM_CONFIG_HTTPS_PROXY", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY", "PIP_PROXY",
    "BUNDLE_HTTP_PROXY", "BUNDLE_HTTPS_PROXY", "DOCKER_HTTP_PROXY", "DOCKER_HTTPS_PROXY",
)  # fmt: skip
WITHOUT_VARIABLES = ("NO_PROXY", "no_proxy", "npm_config_noproxy", "NPM_CONFIG_NOPROXY", "BUNDLE_NO_PROXY")

PROXY: dict[str, Json] = {
    "enabled": True,
    "enableSocks5": True,
    "enableSocks5Udp": False,
    "allowUpstreamProxy": False,
    "dangerouslyAllowAllUnixSockets": False,
    "mode": "full",
    "domains": None,
    "unixSockets": None,
    "allowLocalBinding": False,
}


@pytest.mark.statement("P14")
def test_a_network_proxy_is_named_to_every_program_by_variables(client: Client) -> None:
    for socks, local in ((True, False), (False, True)):
        settings = {**PROXY, "enableSocks5": socks, "allowLocalBinding": local}
        process = client.start("/usr/bin/env", networkProxy={"proxy": settings}, env={}).wait_closed()
        variables = dict(line.split("=", 1) for line in process.output.decode().splitlines())
        http, other = variables["HTTP_PROXY"], variables["ALL_PROXY"]
        assert http.startswith("http://127.0.0.1:")
        assert other.startswith("socks5h://127.0.0.1:") if socks else other == http
        without = "localhost,127.0.0.1,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16" if local else ""
        assert variables == {
            **dict.fromkeys(HTTP_VARIABLES, http),
            **dict.fromkeys(("ALL_PROXY", "all_proxy", "FTP_PROXY", "ftp_proxy"), other),
            **dict.fromkeys(WITHOUT_VARIABLES, without),
            "CODEX_NETWORK_PROXY_ACTIVE": "1",
            "CODEX_NETWORK_ALLOW_LOCAL_BINDING": "1" if local else "0",
            "NODE_USE_ENV_PROXY": "1",
            "ELECTRON_GET_USE_PROXY": "true",
        }


@pytest.mark.statement("P14")
def test_a_network_proxy_replaces_the_one_that_the_request_names(client: Client) -> None:
    env = {"HTTP_PROXY": "http://elsewhere", "NO_PROXY": "*", "NODE_OPTIONS": "--kept"}
    script = 'echo "${HTTP_PROXY%:*} [$NO_PROXY] $NODE_OPTIONS"'
    process = client.shell(script, networkProxy={"proxy": PROXY}, env=env).wait_closed()
    assert process.output == b"http://127.0.0.1 [] --kept\n"


@pytest.mark.statement("P14")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"policyDecisionTimeoutMs": 0}, "network policy decision callback timeout must be nonzero"),
        (
            {"proxy": {**PROXY, "enabled": False}},
            "invalid network proxy config: executor-local network proxy launch requires an enabled proxy",
        ),
        (
            {"proxy": {**PROXY, "domains": {"*": "deny"}}},
            (
                "invalid network proxy config: invalid value for network.denied_domains: * "
                "(allowed exact hosts or scoped wildcards like *.example.com or **.example.com)"
            ),
        ),
    ],
)
def test_a_network_proxy_with_wrong_settings_is_refused(
    client: Client, changed: dict[str, Json], message: str
) -> None:
    params = client.start_params(["/bin/true"], networkProxy={"proxy": PROXY, **changed})
    failure = client.refused("process/start", params)
    assert (failure.code, failure.message) == (-32602, message)


@pytest.mark.statement("P14")
@pytest.mark.parametrize("name", ["", "x" * 257, "ü" * 129])
def test_a_process_whose_proxy_asks_has_a_short_name(client: Client, name: str) -> None:
    proxy: dict[str, Json] = {"proxy": PROXY, "policyDecisionTimeoutMs": 1000}
    params = client.start_params(["/bin/true"], networkProxy=proxy, processId=name)
    failure = client.refused("process/start", params)
    assert failure.code == -32602
    assert failure.message == "callback-enabled process ID must be non-empty and at most 256 bytes"
    proxy["policyDecisionTimeoutMs"] = None
    assert client.start("/bin/true", networkProxy=proxy, processId=name).wait_closed().exit_code == 0


@pytest.mark.statement("P15")
def test_the_scope_of_a_shell_snapshot_is_checked(client: Client) -> None:
    def snapshot(scope: str) -> dict[str, Json]:
        return {"shellSnapshot": {"scopeId": scope, "shell": {"name": "bash", "path": "/bin/bash"}}}

    for scope in ("", "x" * 257, "ü" * 129):
        failure = client.refused("process/start", client.start_params(["/bin/true"], **snapshot(scope)))
        assert failure.code == -32602
        assert failure.message == "shell snapshot scope must be non-empty and at most 256 bytes"
    for argv in (["/bin/sh", "-c", "echo plain"], ["/bin/bash", "-lc", "echo plain"]):
        for _ in range(2):
            assert (
                client.start(*argv, env={"HOME": "/nowhere"}, **snapshot("x" * 256)).wait_closed().output
                == b"plain\n"
            )


@pytest.mark.statement("P16")
@pytest.mark.parametrize("tty", [False, True])
def test_child_inherits_no_descriptor(client: Client, tty: bool) -> None:
    # The listing itself opens one more.
    process = client.start("/bin/ls", "/proc/self/fd", tty=tty).wait_closed()
    assert process.output.split() == [b"0", b"1", b"2", b"3"]


@pytest.mark.statement("P16")
def test_child_has_default_signals(client: Client) -> None:
    process = client.start("/bin/grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status").wait_closed()
    blocked, ignored = (int(line.split()[1], 16) for line in process.output.splitlines())
    # glibc's posix_spawn leaves its own two real-time signals, which no program can set, ignored.
    reserved_by_glibc = 1 << 31 | 1 << 32
    assert (blocked, ignored & ~reserved_by_glibc) == (0, 0)


@pytest.mark.statement("P16")
def test_writer_to_a_closed_pipe_dies(client: Client) -> None:
    process = client.start("/bin/bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}").wait_closed()
    assert process.output == b"y\n141\n"


@pytest.mark.statement("U1", "U2")
def test_spellings_of_cwd(client: Client, here: Path) -> None:
    folder = here / "a b"
    folder.mkdir()
    uri = path_uri(folder)
    for spelling in (
        uri,
        uri.replace("file://", "file://localhost"),
        uri.replace("file://", "FILE://"),
        uri.replace("file://", "file:"),
        uri.replace("%20", " "),
        uri + "/../a%20b/.",
        uri + "/",
    ):
        process = client.start("/bin/pwd", "-P", cwd=spelling).wait_closed()
        assert process.output == os.fsencode(folder) + b"\n", spelling


@pytest.mark.statement("U3", "U7")
def test_cwd_that_is_no_path_here(client: Client) -> None:
    assert client.refused("process/start", client.start_params(["/bin/true"], cwd="/tmp")).code == -32602
    for foreign in ("file://elsewhere/tmp", "file:///C:/x"):
        failure = client.refused("process/start", client.start_params(["/bin/true"], cwd=foreign))
        assert failure.code == -32602
        assert failure.message.startswith(f"cwd URI `{foreign}` is not valid on this exec-server host")
