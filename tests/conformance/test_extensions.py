"""Extension members: only where they were asked for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint, SharedServers
from tests.sandbox.profiles import DISABLED, READ_ONLY, WORKSPACE, context, unrestricted
from tests.support.wire import PATIENCE, Client, Json, ReplyError, alive, path_uri


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def extended(endpoint: Endpoint) -> Client:
    """A connection that asked for extension members."""
    return endpoint.connect(extensions=True)


@pytest.mark.everywhere
@pytest.mark.statement("X1")
def test_initialize_answers_extensions(extended: Client) -> None:
    assert set(extended.initialized) == {"sessionId", "environmentInfo", "extensions", "sessionTtlMs"}
    assert extended.initialized["extensions"] == {"execserver": 1}


@pytest.mark.statement("X1", "X4")
@pytest.mark.parametrize("extensions", [None, {}, {"other": 1}, {"execserver": None}])
def test_a_client_that_does_not_ask_hears_nothing(newcomer: Client, extensions: Json) -> None:
    result = newcomer.call("initialize", {"clientName": "x", "extensions": extensions})
    newcomer.notify("initialized")
    assert set(result) == {"sessionId", "environmentInfo"}
    process = newcomer.start("/bin/cat", pipeStdin=True)
    assert set(process.started) == {"processId", "sandboxType"}
    assert process.terminate("tree") == {"running": True}


@pytest.mark.statement("X1", "E11")
@pytest.mark.parametrize("extensions", [5, "x", [1, 2], {"execserver": "1"}])
def test_extensions_are_checked(newcomer: Client, extensions: Json) -> None:
    params = {"clientName": "x", "extensions": extensions}
    assert newcomer.refused("initialize", params).code == -32602


@pytest.mark.everywhere
@pytest.mark.statement("X2")
@pytest.mark.parametrize("tty", [False, True])
def test_start_answers_the_pid(extended: Client, tty: bool) -> None:
    process = extended.shell("echo $$; read -r x", tty=tty, pipeStdin=True)
    assert set(process.started) == {"processId", "sandboxType", "pid"}
    assert process.wait_output(b"\n").strip() == b"%d" % process.started["pid"]
    assert alive(process.started["pid"])
    assert os.getpgid(process.started["pid"]) == process.started["pid"]


@pytest.mark.everywhere
@pytest.mark.statement("X22")
def test_each_chunk_has_the_time_of_its_taking_in_events_and_pages(extended: Client) -> None:
    before = now_ms()
    process = extended.shell("echo 1; read -r x; echo 2", pipeStdin=True)
    process.wait_output(b"1\n")
    between = now_ms()
    process.write("\n", "w")
    process.wait_closed()
    after = now_ms()

    events = [params for method, params in process.log.events if method == "process/output"]
    first, second = (event["at"] for event in events)
    assert before <= first <= between <= second <= after
    assert [chunk["at"] for chunk in process.read()["chunks"]] == [first, second]


@pytest.mark.everywhere
@pytest.mark.statement("X23")
def test_a_read_has_the_sizes_of_the_terminal_if_it_asks(extended: Client) -> None:
    before = now_ms()
    process = extended.shell("echo 1; read -r x; echo 2; read -r x; echo 3", tty=True)
    process.wait_output(b"1\r\n")
    for rows, cols in ((30, 100), (30, 100), (40, 120)):
        size = {"rows": rows, "cols": cols}
        assert extended.call("process/resize", {"processId": process.id, "size": size}) == {"running": True}
    process.write(b"\n", "1")
    process.wait_output(b"2\r\n")

    def read(after: int) -> tuple[list[list[int]], list[int]]:
        params = {"processId": process.id, "afterSeq": after, "maxBytes": 1, "sizes": True}
        page = extended.call("process/read", params)
        sizes = page["sizes"]
        assert [size["at"] for size in sizes] == sorted(size["at"] for size in sizes)
        assert all(before <= size["at"] <= now_ms() for size in sizes)
        return [[size["seq"], size["rows"], size["cols"]] for size in sizes], [
            chunk["seq"] for chunk in page["chunks"]
        ]

    changed = [[1, 30, 100], [1, 40, 120]]
    assert read(0) == ([[0, 24, 80], *changed], [1])
    assert read(1) == ([[1, 40, 120]], [2])
    assert "sizes" not in process.read()
    process.write(b"\n", "2")
    process.wait_closed()
    assert extended.call("process/resize", {"processId": process.id, "size": size}) == {"running": False}
    assert read(2)[0] == [[1, 40, 120]]


@pytest.mark.everywhere
@pytest.mark.statement("X23")
def test_pipes_have_no_size(extended: Client) -> None:
    process = extended.shell("echo 1").wait_closed()
    assert "sizes" not in extended.call("process/read", {"processId": process.id, "sizes": True})
    assert extended.refused("process/read", {"processId": process.id, "sizes": 1}).code == -32602


@pytest.mark.statement("X24", "X4")
def test_a_start_answers_its_number_in_the_audit_folder(endpoint: Endpoint, tmp_path: Path) -> None:
    private = endpoint.private("--audit-dir", str(tmp_path / "audit"))
    assert "audit" not in private.connect().start("/bin/true").started
    client = private.connect(extensions=True)
    assert [client.start("/bin/true").started["audit"] for _ in range(2)] == [2, 3]


@pytest.mark.statement("X22", "O42")
def test_a_lost_number_has_no_time(endpoint: Endpoint) -> None:
    client = endpoint.private("--retained-output-bytes", "1000").connect(extensions=True)
    process = client.shell("while read -r x; do head -c 600 /dev/zero; done", pipeStdin=True)
    for number in range(1, 5):
        process.write("\n", str(number))
        process.wait_output(b"\0" * 600 * number)
    process.terminate()
    process.wait_closed()

    chunks = process.read()["chunks"]
    assert [("at" in chunk, bool(chunk["chunk"])) for chunk in chunks[:1]] == [(False, False)]
    assert ("at" in chunks[-1], bool(chunks[-1]["chunk"])) == (True, True)


@pytest.mark.everywhere
@pytest.mark.statement("X3", "P32")
def test_terminate_of_a_tree_answers_survivors(extended: Client) -> None:
    process = extended.shell("setsid sleep 300 & sleep 300")
    assert process.terminate("tree") == {"running": True, "survivors": []}
    process.wait_exited()
    assert process.terminate("tree") == {"running": False, "survivors": []}
    assert extended.start("/bin/cat", pipeStdin=True).terminate() == {"running": True}
    assert extended.process("nobody").terminate() == {"running": False}


@pytest.mark.statement("X4", "X8")
@pytest.mark.parametrize("extensions", [False, True])
def test_events_are_the_same_but_for_the_cause_and_the_time(endpoint: Endpoint, extensions: bool) -> None:
    client = endpoint.connect(extensions=extensions)
    process = client.shell("echo x", processId="p").wait_closed()
    more = {"cause": "normal"} if extensions else {}
    times = [params.pop("at") for _, params in process.log.events if "at" in params]
    assert len(times) == extensions
    assert process.log.events == [
        ("process/output", {"processId": "p", "seq": 1, "stream": "stdout", "chunk": "eAo="}),
        ("process/exited", {"processId": "p", "seq": 2, "exitCode": 0, "sandboxDenied": False, **more}),
        ("process/closed", {"processId": "p", "seq": 3}),
    ]


@pytest.mark.statement("X5")
@pytest.mark.parametrize("first", [False, True])
def test_extensions_are_of_the_connection(endpoint: Endpoint, first: bool) -> None:
    client = endpoint.connect(extensions=first)
    client.close()
    again = endpoint.connect(handshake=False)
    # The old connection may not be noticed as gone at once.
    params: dict[str, Json] = {"clientName": "x", "resumeSessionId": client.session_id}
    if not first:
        params["extensions"] = {"execserver": 1}
    for _ in range(1000):
        reply = again.reply(again.request("initialize", params))
        if "result" in reply:
            break
    again.notify("initialized")
    assert ("extensions" in reply["result"]) is not first
    assert ("pid" in again.start("/bin/true").started) is not first


@pytest.mark.everywhere
@pytest.mark.statement("X6")
def test_start_answers_what_enforces_the_sandbox(extended: Client) -> None:
    for permissions, backend in (
        (READ_ONLY, "bubblewrap"),
        (unrestricted("restricted"), "bubblewrap"),
        (DISABLED, "none"),
    ):
        process = extended.start("/bin/true", sandbox=context(permissions))
        assert process.started["sandboxType"] == "linuxSeccomp"
        assert process.started["sandboxBackend"] == backend
    assert "sandboxBackend" not in extended.start("/bin/true").started


@pytest.mark.statement("X6", "C3")
def test_without_bubblewrap_a_limit_of_the_network_needs_seccomp_only(endpoint: Endpoint) -> None:
    client = endpoint.private("--bubblewrap", "/nonexistent/bwrap").connect(extensions=True)
    process = client.start("/bin/true", sandbox=context(unrestricted("restricted")))
    assert process.started["sandboxType"] == "linuxSeccomp"
    assert process.started["sandboxBackend"] == "seccomp"
    assert process.wait_closed().exit_code == 0


@pytest.mark.statement("X6", "C3")
def test_landlock_stands_in_for_bubblewrap_where_it_is_allowed(endpoint: Endpoint, tmp_path: Path) -> None:
    flags = ("--bubblewrap", "/nonexistent/bwrap", "--allow-landlock")
    client = endpoint.private(*flags).connect(extensions=True)
    try:
        process = client.shell(f"echo x > {tmp_path}/made", sandbox=context(READ_ONLY))
    except ReplyError as error:
        if "Landlock" not in error.message:
            raise
        pytest.skip(f"this kernel has too little of Landlock: {error.message}")
    assert process.started["sandboxType"] == "linuxLandlock"
    assert process.started["sandboxBackend"] == "landlock"
    assert process.wait_closed().exit_code
    assert not (tmp_path / "made").exists()


@pytest.mark.everywhere
@pytest.mark.statement("X7")
def test_a_denial_has_its_evidence(extended: Client, tmp_path: Path) -> None:
    sandbox = context(READ_ONLY)
    process = extended.shell(f"echo x > {tmp_path}/made", sandbox=sandbox).wait_closed()
    denial = process.read()["denial"]
    assert denial["likely"] is True
    assert [(each["kind"], each["path"]) for each in denial["evidence"]] == [("file", f"{tmp_path}/made")]
    assert "Read-only file system" in denial["evidence"][0]["text"]
    assert process.log.events[-2][1]["denial"] == denial


@pytest.mark.statement("X7")
def test_a_denial_names_the_protected_name(extended: Client, tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    sandbox = context(WORKSPACE, cwd=tmp_path / "ws", roots=[tmp_path / "ws"])
    process = extended.shell("mkdir .codex", cwd=path_uri(tmp_path / "ws"), sandbox=sandbox).wait_closed()
    (one,) = process.read()["denial"]["evidence"]
    guarded = f"{tmp_path}/ws/.codex"
    assert (one["path"], one["reason"], one["protectedPath"]) == (guarded, "protectedName", guarded)
    assert not os.listdir(tmp_path / "ws")


@pytest.mark.statement("X18", "X4")
def test_an_exit_names_the_processes_that_ended_with_the_sandbox(
    client: Client, extended: Client, tmp_path: Path
) -> None:
    sandbox = context(WORKSPACE, cwd=tmp_path, roots=[tmp_path])
    script = """
        sleep 600 >/dev/null 2>&1 & sleep=$!
        setsid tail -f /dev/null >/dev/null 2>&1 & tail=$!
        until grep -q sleep /proc/$sleep/comm && grep -q tail /proc/$tail/comm; do :; done
    """
    process = extended.shell(script, sandbox=sandbox).wait_closed()
    ended = process.read()["endedWithSandbox"]
    assert (ended["count"], sorted(ended["names"])) == (2, ["sleep", "tail"])
    assert process.log.events[-2][1]["endedWithSandbox"] == ended
    for each, more in ((extended, {}), (client, {"sandbox": sandbox})):
        assert "endedWithSandbox" not in each.shell("sleep 0.1 &", **more).wait_closed().read()
    nothing = extended.shell("true", sandbox=sandbox).wait_closed()
    assert "endedWithSandbox" not in nothing.read()
    killed = extended.shell("sleep 600 & echo up; sleep 600", sandbox=sandbox)
    killed.wait_output(b"up", PATIENCE)
    killed.terminate()
    assert "endedWithSandbox" not in killed.wait_closed().read()


@pytest.mark.statement("X7")
def test_words_alone_are_no_evidence(extended: Client) -> None:
    script = "echo 'Permission denied (publickey)'; echo tests of the sandbox: 3 failed; exit 1"
    process = extended.shell(script, sandbox=context(READ_ONLY)).wait_closed()
    page = process.read()
    assert page["sandboxDenied"] is True
    assert page["denial"] == {"likely": False, "evidence": []}


@pytest.mark.statement("X4", "X7")
def test_denials_are_told_on_no_other_connections(client: Client, extended: Client) -> None:
    for each, sandbox in ((client, context(READ_ONLY)), (extended, None), (extended, context(DISABLED))):
        process = each.shell("echo Permission denied; exit 1", sandbox=sandbox).wait_closed()
        assert "denial" not in process.read()
        assert "denial" not in process.log.events[-2][1]


@pytest.mark.everywhere
@pytest.mark.statement("X10", "X4", "D3")
def test_capabilities_name_what_is_ours(client: Client, extended: Client) -> None:
    names = extended.call("environment/info")["capabilities"]["execserver"]
    assert names == extended.initialized["environmentInfo"]["capabilities"]["execserver"]
    assert names == sorted(set(names))
    assert {
        *("fs/applyEdits", "fs/digest", "fs/rename", "process/closeStdin", "process/resize", "server/health"),
        *(
            "process/start.size",
            "process/start.graceMs",
            "process/start.ifExists",
            "process/signal.scope",
            "process/terminate.scope",
        ),
    } <= set(names)
    assert not {"process/start", "process/signal", "fs/copy", "initialize.extensions"} & set(names)
    assert "execserver" not in client.call("environment/info")["capabilities"]
    assert "execserver" not in client.initialized["environmentInfo"]["capabilities"]


@pytest.mark.everywhere
@pytest.mark.statement("X12", "X4")
def test_initialize_tells_how_long_a_session_is_kept(
    endpoint: Endpoint, client: Client, extended: Client
) -> None:
    told = endpoint.name != "stdio" and bool(SharedServers.FLAGS)
    assert extended.initialized["sessionTtlMs"] == (10_000 if told else 80_000)
    assert "sessionTtlMs" not in client.initialized


@pytest.mark.everywhere
@pytest.mark.statement("X11", "X4")
@pytest.mark.parametrize("scope", ["group", "leader", "tree"])
def test_signal_answers_what_it_found(client: Client, extended: Client, scope: str) -> None:
    for each in (client, extended):
        process = each.start("/bin/sleep", "300")
        params = {"processId": process.id, "signal": "SIGTERM", "scope": scope}
        answers = [each.call("process/signal", params)]
        assert process.wait_closed().exit_code == 143
        for name in ("SIGTERM", "SIGKILL"):
            answers.append(each.call("process/signal", {**params, "signal": name}))
        answers.append(each.call("process/signal", {**params, "processId": "nobody"}))
        words = ("delivered", "alreadyExited", "alreadyExited", "unknownProcess")
        assert answers == [{} if each is client else {"status": word} for word in words]


@pytest.mark.everywhere
@pytest.mark.statement("X13", "X4")
def test_metadata_has_modes_and_exact_times(client: Client, extended: Client, here: Path) -> None:
    (here / "file").write_text("x")
    (here / "link").symlink_to("file")
    for number in range(3):  # what is asked again is answered on a shorter way
        (here / "file").chmod(0o4640)
        os.utime(here / "file", ns=(number, 1_700_000_000_123_456_789))
        for name in ("file", "link"):
            found = extended.call("fs/getMetadata", {"path": path_uri(here / name)})
            assert (found["permissions"], found["modifiedAtNs"]) == (0o4640, 1_700_000_000_123_456_789)
            assert found["accessedAtNs"] == number
            assert found["modifiedAtMs"] == 1_700_000_000_123
            plain = client.call("fs/getMetadata", {"path": path_uri(here / name)})
            assert set(found) - set(plain) == {"permissions", "modifiedAtNs", "accessedAtNs"}


@pytest.mark.everywhere
@pytest.mark.statement("X14", "X4")
def test_copies_tell_whether_they_were_written_in_place(client: Client, extended: Client, here: Path) -> None:
    (here / "s").write_text("x")
    params = {"sourcePath": path_uri(here / "s"), "destinationPath": path_uri(here / "t"), "recursive": False}
    for each, expected in ((extended, {"inPlace": False}), (client, {})):
        assert each.call("fs/copy", params) == expected
        move = {"sourcePath": path_uri(here / "t"), "destinationPath": path_uri(here / "u")}
        assert each.call("fs/install", move) == expected


@pytest.mark.everywhere
@pytest.mark.statement("X15", "X4", "P5", "P6")
@pytest.mark.parametrize("tty", [False, True])
def test_a_failed_start_says_what_is_missing(client: Client, extended: Client, here: Path, tty: bool) -> None:
    script = here / "script"
    script.write_text("#!/no/interpreter\n")
    script.chmod(0o755)
    cases: list[tuple[str, Path, str, Path]] = [
        ("/no/such", here, "argv", Path("/no/such")),
        (str(script), here, "argv", Path("/no/interpreter")),
        ("true", here / "gone", "cwd", here / "gone"),
    ]
    for program, cwd, field, path in cases:
        params = client.start_params([program], cwd=path_uri(cwd), tty=tty)
        plain, explained = (
            each.reply(each.request("process/start", params))["error"] for each in (client, extended)
        )

        data = explained.pop("data")
        assert plain == explained == {"code": -32603, "message": "No such file or directory (os error 2)"}
        assert (data.pop("code"), data.pop("field"), data.pop("path")) == ("spawn_failed", field, str(path))
        assert set(data) == {"reason"}
        assert f"{path} " in data["reason"]


@pytest.mark.everywhere
@pytest.mark.statement("X15")
def test_the_errors_of_a_search_have_their_names(extended: Client, here: Path) -> None:
    search = {"path": path_uri(here), "pattern": "x"}
    for params, name, field in (
        ({"pattern": "\0"}, "pattern_refused", "pattern"),
        ({"globs": [".."]}, "glob_refused", "globs"),
        ({"cursor": "unknown"}, "unknown_cursor", "cursor"),
    ):
        error = extended.reply(extended.request("fs/search", search | params))["error"]
        assert error["data"] == {"code": name, "field": field}


@pytest.mark.everywhere
@pytest.mark.statement("X15")
def test_other_errors_have_no_data(extended: Client) -> None:
    for method, params in (
        ("fs/readFile", {"path": "file:///no/such"}),
        ("process/start", {"processId": "p"}),
        ("process/read", {"processId": "p"}),
    ):
        assert set(extended.reply(extended.request(method, params))["error"]) == {"code", "message"}
