"""Terminals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.wire import Client, Json, Process, encode, path_uri

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.mark.everywhere
@pytest.mark.statement("Y1", "Y2")
def test_size_and_stream(client: Client) -> None:
    script = "stty size; test -t 0 && test -t 1 && test -t 2 && echo all; echo err >&2"
    process = client.shell(script, tty=True).wait_closed()
    assert process.output == b"24 80\r\nall\r\nerr\r\n"
    assert set(process.log.streams) == {"pty"}


@pytest.mark.statement("Y1")
def test_terminal_controls_its_process(client: Client) -> None:
    process = client.shell("echo here > /dev/tty; ps -o tpgid=,pgid= -p $$ || true", tty=True).wait_closed()
    assert process.output.startswith(b"here\r\n")


@pytest.mark.everywhere
@pytest.mark.statement("Y2", "Y3")
def test_echo_and_input(client: Client) -> None:
    process = client.shell("echo ready; read -r x; echo got $x", tty=True)
    process.wait_output(b"ready")
    assert process.write("hi\n", "1") == "accepted"
    assert process.wait_closed().exit_code == 0
    assert process.output == b"ready\r\nhi\r\ngot hi\r\n"


@pytest.mark.statement("Y3")
def test_end_of_file_key(client: Client) -> None:
    process = client.shell("echo ready; exec cat", tty=True)
    process.wait_output(b"ready")
    process.write("a\n\x04", "1")
    assert process.wait_closed().exit_code == 0
    assert process.output == b"ready\r\na\r\na\r\n"


@pytest.mark.statement("Y3", "P34")
def test_interrupt_key(client: Client) -> None:
    process = client.shell("echo ready; exec sleep 300", tty=True)
    process.wait_output(b"ready")
    process.write("\x03", "1")
    assert process.wait_closed().exit_code == 130
    assert process.output == b"ready\r\n^C"


@pytest.mark.statement("Y3", "W2")
def test_write_ids_count_on_terminals_too(client: Client) -> None:
    process = client.shell("stty -echo; echo ready; exec cat", tty=True)
    process.wait_output(b"ready\r\n")
    for data, write_id in (("one\n", "1"), ("one\n", "1"), ("two\n", "2")):
        assert process.write(data, write_id) == "accepted"
    assert process.wait_output(b"two\r\n") == b"ready\r\none\r\ntwo\r\n"


@pytest.mark.statement("Y4")
def test_shell_variable_is_added(client: Client) -> None:
    def variables(**members: object) -> list[bytes]:
        return client.start("/usr/bin/env", tty=True, **members).wait_closed().output.split(b"\r\n")

    assert any(line.startswith(b"SHELL=/") for line in variables(env={"A": "1"}))
    assert b"SHELL=/mine" in variables(env={"SHELL": "/mine"})
    plain = client.start("/usr/bin/env", env={"A": "1"}).wait_closed()
    assert plain.output == b"A=1\n"


@pytest.mark.statement("Y5")
@pytest.mark.parametrize("pipe", [False, True])
def test_pipe_stdin_is_ignored(client: Client, pipe: bool) -> None:
    process = client.shell("test -t 0 && echo terminal; read -r x", tty=True, pipeStdin=pipe)
    process.wait_output(b"terminal")
    assert process.write("\n", "1") == "accepted"
    process.wait_closed()


@pytest.mark.statement("Y1", "P9")
def test_cwd_and_path_are_as_without(client: Client, here: Path) -> None:
    process = client.start("sh", "-c", "pwd -P", tty=True, cwd=path_uri(here), env={"PATH": SYSTEM_PATH})
    assert process.wait_closed().output == bytes(here) + b"\r\n"


@pytest.mark.statement("Y7", "P31")
def test_terminal_closes_with_its_leader(client: Client) -> None:
    process = client.shell("trap '' HUP; sleep 300 & echo started", tty=True)
    process.wait_closed()
    assert process.exit_code == 0
    assert process.output == b"started\r\n"
    process.terminate("tree")


@pytest.mark.statement("Y2", "O5")
def test_all_output_before_the_exit_arrives(client: Client) -> None:
    process = client.shell("stty -opost; seq 1 50000", tty=True).wait_closed()
    assert process.output == b"".join(b"%d\n" % i for i in range(1, 50_001))


@pytest.mark.statement("O1", "O3")
def test_numbers_have_no_gap(client: Client) -> None:
    process = client.shell("for i in $(seq 100); do echo line $i; done; exit 9", tty=True).wait_closed()
    assert process.log.seqs == list(range(1, len(process.log.seqs) + 1))
    assert process.log.kinds[-2:] == ["exited", "closed"]
    assert process.exit_code == 9


@pytest.mark.everywhere
@pytest.mark.statement("P23")
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (50, 132), (65535, 65535)])
def test_size_of_the_start(client: Client, rows: int, cols: int) -> None:
    process = client.shell("stty size", tty=True, size={"rows": rows, "cols": cols}).wait_closed()
    assert process.output == b"%d %d\r\n" % (rows, cols)


@pytest.mark.statement("P23", "Y1")
def test_null_is_the_usual_size(client: Client) -> None:
    assert client.shell("stty size", tty=True, size=None).wait_closed().output == b"24 80\r\n"


@pytest.mark.statement("P23")
@pytest.mark.parametrize(
    "size",
    [{}, {"rows": 1}, {"rows": 0, "cols": 1}, {"rows": 1, "cols": 65536}, {"rows": "1", "cols": 1}, [1, 1]],
)
def test_sizes_are_checked(client: Client, size: object) -> None:
    params = client.start_params(["/bin/true"], tty=True, size=size)
    assert client.refused("process/start", params).code == -32602
    assert client.refused("process/resize", {"processId": "nobody", "size": size}).code == -32602


@pytest.mark.statement("P23")
def test_size_needs_a_terminal(client: Client) -> None:
    params = client.start_params(["/bin/true"], size={"rows": 24, "cols": 80}, processId="p")
    failure = client.refused("process/start", params)
    assert failure.code == -32602
    assert "size" in failure.message
    client.shell("exit 0", processId="p").wait_closed()


@pytest.mark.statement("P23", "P20", "P22")
def test_start_that_attaches_asks_for_the_same_size(client: Client) -> None:
    params = client.start_params(["/bin/cat"], tty=True, ifExists="attach", processId="p")
    client.call("process/start", {**params, "size": {"rows": 24, "cols": 80}})
    for size in (None, {"cols": 80, "rows": 24}):
        client.call("process/start", {**params, "size": size})
    failure = client.refused("process/start", {**params, "size": {"rows": 24, "cols": 81}})
    assert "`size`" in failure.message
    client.process("p").terminate()


def resize(process: Process, rows: int, cols: int) -> Json:
    params = {"processId": process.id, "size": {"rows": rows, "cols": cols}}
    return process.client.call("process/resize", params)


@pytest.mark.everywhere
@pytest.mark.statement("Y8")
def test_resized_terminal_tells_its_foreground(client: Client) -> None:
    process = client.shell("trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done", tty=True)
    process.wait_output(b"ready")
    for rows, cols in ((10, 20), (65535, 1), (10, 20)):
        wanted = process.output + b"%d %d\r\n" % (rows, cols)
        assert resize(process, rows, cols) == {"running": True}
        process.wait_output(wanted)
    process.terminate()
    process.wait_closed()
    assert resize(process, 1, 1) == {"running": False}


@pytest.mark.everywhere
@pytest.mark.statement("Y9")
def test_only_terminals_have_a_size(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    params = {"processId": process.id, "size": {"rows": 1, "cols": 1}}
    for _ in range(2):
        failure = client.refused("process/resize", params)
        assert failure.code == -32600
        assert "tty" in failure.message
        process.terminate()
        process.wait_closed()
    failure = client.refused("process/resize", {**params, "processId": "nobody"})
    assert (failure.code, failure.message) == (-32600, "unknown process id nobody")


# -- long lines

MOST = 4095


def ready(client: Client, settings: str, program: str = "exec cat") -> Process:
    """A program that reads a terminal with these settings."""
    process = client.shell(f"stty -echo {settings}; printf up; {program}", tty=True)
    process.wait_output(b"up")
    return process


def write(process: Process, data: bytes, write_id: str, **members: Json) -> Json:
    """The result of a write, or its error."""
    params = {"processId": process.id, "chunk": encode(data), "writeId": write_id, **members}
    reply = process.client.reply(process.client.request("process/write", params))
    return reply.get("result") or reply["error"]


@pytest.mark.everywhere
@pytest.mark.statement("W13")
def test_a_line_that_a_terminal_would_cut_is_refused_where_that_is_asked_for(client: Client) -> None:
    process = ready(client, "")
    accepted = {"status": "accepted"}
    assert write(process, b"a\n" + b"x" * (MOST + 1) + b"\n", "1", wholeLines=True)["code"] == -32600
    assert write(process, b"x" * MOST + b"\n", "1", wholeLines=True) == accepted
    assert write(process, b"y" * (MOST + 5) + b"\nz\n", "2") == accepted
    process.wait_output(b"up" + b"x" * MOST + b"\r\n" + b"y" * MOST + b"\r\nz\r\n")


@pytest.mark.statement("W13")
def test_a_line_in_several_writes_counts_as_a_whole(client: Client) -> None:
    process = ready(client, "")
    accepted = {"status": "accepted"}
    assert write(process, b"x" * 4000, "1", wholeLines=True) == accepted
    refused = write(process, b"x" * 96, "2", wholeLines=True)
    assert "a line of 4096 bytes" in refused["message"]
    assert write(process, b"x" * 95, "2", wholeLines=True) == accepted
    assert write(process, b"\n", "3", wholeLines=True) == accepted
    process.wait_output(b"up" + b"x" * MOST + b"\r\n")


@pytest.mark.statement("W13")
@pytest.mark.parametrize(
    "special", [b"\x15", b"\x03", b"\x04", b"\x7f"], ids=["kill", "interrupt", "end", "erase"]
)
def test_no_line_counts_as_longer_than_it_may_be(client: Client, special: bytes) -> None:
    process = ready(client, "", "trap : INT; while :; do cat; done")
    assert write(process, b"x" * 4000, "1", wholeLines=True) == {"status": "accepted"}
    assert write(process, special + b"x" * 4000 + b"\n", "2", wholeLines=True) == {"status": "accepted"}


@pytest.mark.statement("W13")
def test_a_program_that_reads_raw_gets_lines_of_any_length(client: Client) -> None:
    process = ready(client, "raw", "exec head -c 100000")
    assert write(process, b"x" * 100_000, "1", wholeLines=True) == {"status": "accepted"}
    assert process.wait_closed().output == b"up" + b"x" * 100_000


@pytest.mark.statement("W13")
def test_a_pipe_takes_lines_of_any_length(client: Client) -> None:
    process = client.start("/usr/bin/head", "-c", "5000", pipeStdin=True)
    assert write(process, b"x" * 5000, "1", wholeLines=True) == {"status": "accepted"}
    assert process.wait_closed().output == b"x" * 5000
    assert write(process, b"", "2", wholeLines="yes")["code"] == -32602
