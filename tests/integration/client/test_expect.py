"""Interactive programs, scripted with pexpect at a daemon."""

from __future__ import annotations

import asyncio
import io
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pexpect
import psutil
import pytest
from pexpect import replwrap
from pexpect.spawnbase import SpawnBase

from execclient import ExecutorClosed, ReadOnly, SystemFailure
from execclient.expect import RemoteSpawn
from execclient.remote_echo import RemoteEcho
from execclient.sync import Executor, connect
from tests.integration.client.conftest import EVERY_TRANSPORT
from tests.support.threads import settled
from tests.support.wire import wait_gone

PATIENCE = 10.0
PROMPT = "expect-prompt> "
SHELL_ENV = {"PS1": PROMPT, "TERM": "dumb"}

Spawn = Callable[..., RemoteSpawn]


def group(child: RemoteSpawn, number: int) -> Any:
    """What a group of the last match took."""
    assert isinstance(child.match, re.Match)
    return child.match[number]


@pytest.fixture
def connected(url: str) -> Iterator[Executor]:
    """A session for the spawns of this test."""
    with connect(url) as executor:
        yield executor


@pytest.fixture
def spawn(connected: Executor) -> Spawn:
    """Makes spawns of text, whose limits a test does not wait for."""

    def make(*argv: str, **options: Any) -> RemoteSpawn:
        return RemoteSpawn(argv, executor=connected, **{"encoding": "utf-8", "timeout": PATIENCE, **options})

    return make


@pytest.fixture
def bash(spawn: Spawn) -> RemoteSpawn:
    """A shell at its prompt."""
    shell = spawn("bash", "--norc", "--noediting", env=SHELL_ENV)
    shell.expect_exact(PROMPT)
    return shell


# -- real programs


@EVERY_TRANSPORT
def test_a_python_prompt_is_scripted(spawn: Spawn) -> None:
    with spawn(sys.executable, "-q", env={"TERM": "dumb", "PYTHON_BASIC_REPL": "1"}) as python:
        python.expect(">>> ")
        python.sendline("6 * 7")
        python.expect(r"(\d+)\r\n>>> ")
        assert (python.before, group(python, 1)) == ("6 * 7\r\n", "42")
        python.sendline("input('name? ')")
        python.expect_exact("name? ")
        python.sendline("Zoë")
        python.expect_exact("'Zoë'\r\n>>> ")
        python.sendline("exit(3)")
        python.expect(pexpect.EOF)

        assert python.wait() == 3
        assert (python.exitstatus, python.signalstatus, python.isalive()) == (3, None, False)


# -- as pexpect.replwrap does it

REPLS = {
    "python": ([sys.executable, "-q"], ">>> ", "import sys; sys.ps1={0!r}; sys.ps2={1!r}"),
    "bash": (["bash", "--norc"], r"\$ |# ", "PS1='{0}' PS2='{1}' PROMPT_COMMAND=''"),
    "sh": (["sh", "-i"], r"\$ |# ", "PS1='{0}' PS2='{1}'"),
}
REPL_ENV = {"TERM": "dumb", "PYTHON_BASIC_REPL": "1", "PS1": "$ ", "ENV": ""}


def interrupted_while_it_waits(child: RemoteSpawn) -> None:
    """Have `child.kill` wait until the program sleeps, as a person's key would come.

    A line editor writes its prompt before it waits for input. A SIGINT between the two is noted and not
    acted on before the next key: local programs have this race as well.
    """
    kill = child.kill

    def kill_when_it_sleeps(sig: int) -> None:
        assert child.pid is not None
        program = psutil.Process(child.pid)
        seen = -1
        while (switches := program.num_ctx_switches().voluntary) != seen or program.status() != "sleeping":
            seen = switches
            time.sleep(0.05)
        kill(sig)

    child.kill = kill_when_it_sleeps  # type: ignore[method-assign]


class Patient(replwrap.REPLWrapper):
    """After a SIGINT, pexpect's own waits a second for the prompt."""

    def _expect_prompt(self, timeout: float | None = -1, async_: bool = False) -> Any:
        return self.child.expect_exact([self.prompt, self.continuation_prompt], async_=async_)


def repl(spawn: Spawn, name: str, **options: Any) -> replwrap.REPLWrapper:
    argv, prompt, change = REPLS[name]
    if name == "bash":
        # As pexpect's own: the marks are not in what is typed, so that an echo is no prompt.
        change = change.replace("{0}", "[PEXP\\[\\]ECT_PROMPT>").replace("{1}", "[PEXP\\[\\]ECT_PROMPT+")
    child = spawn(*argv, env=REPL_ENV, **options)
    interrupted_while_it_waits(child)
    return Patient(child, prompt, change)


@pytest.mark.parametrize(
    ("name", "echo"),
    [("python", False), ("bash", False), ("sh", False), ("sh", True)],  # the others have line editors
)
def test_a_prompt_is_wrapped(spawn: Spawn, name: str, echo: bool) -> None:
    wrapped = repl(spawn, name, echo=echo)
    command, several, unfinished = {
        "python": ("6 * 7", "if True:\n    print(42)\n", "("),
    }.get(name, ("echo 4''2", "if true\nthen echo 42\nfi", "("))

    assert wrapped.run_command(command).splitlines()[-1] == "42"
    assert wrapped.run_command(several).splitlines()[-1] == "42"
    with pytest.raises(ValueError, match="incomplete"):
        wrapped.run_command(unfinished)
    assert wrapped.run_command(command).splitlines()[-1] == "42"
    assert not wrapped.child.getecho()


@pytest.mark.parametrize("name", REPLS)
def test_a_wrapped_prompt_without_echo_gives_the_output_alone(spawn: Spawn, name: str) -> None:
    wrapped = repl(spawn, name, echo=False)
    command = "print('x', 'y')" if name == "python" else "echo x y"

    assert wrapped.run_command(command) == "x y\r\n"


async def test_a_prompt_is_wrapped_on_a_loop(url: str) -> None:
    def begin() -> tuple[Executor, replwrap.REPLWrapper]:
        executor = connect(url)
        child = RemoteSpawn(REPLS["python"][0], executor=executor, encoding="utf-8", env=REPL_ENV, echo=False)
        return executor, replwrap.REPLWrapper(child, *REPLS["python"][1:])

    executor, wrapped = await asyncio.to_thread(begin)

    assert await wrapped.run_command("6 * 7", async_=True) == "42\r\n"
    await asyncio.to_thread(executor.close)


def test_the_echo_is_switched_and_waited_for(spawn: Spawn) -> None:
    child = spawn("sh", "-c", "read a; stty -echo; read b; stty echo; echo end; read c")
    assert (child.echo, child.getecho()) == (True, True)
    assert not child.waitnoecho(0)
    threading.Timer(0.3, child.sendline).start()
    assert child.waitnoecho()
    child.sendline()
    child.expect_exact("end")
    assert child.getecho()
    child.setecho(False)
    assert (child.echo, child.getecho(), child.waitnoecho(None)) == (False, False, True)
    child.setecho(True)
    assert child.getecho()


def test_the_echo_of_a_command_with_another_input_is_that_of_its_terminal(spawn: Spawn) -> None:
    child = spawn("sh", "-c", "exec </dev/null; echo ready; sleep 100")
    child.expect_exact("ready")

    child.setecho(False)

    assert not child.getecho()


def test_the_echo_of_what_has_ended_is_a_clear_error(spawn: Spawn) -> None:
    child = spawn("true")
    child.expect(pexpect.EOF)
    child.wait()

    for ask in (child.getecho, child.waitnoecho, lambda: child.setecho(False)):
        with pytest.raises(pexpect.ExceptionPexpect, match=r"the echo of <true> is not accessible: "):
            ask()
    child.close()
    with pytest.raises(ValueError, match="closed"):
        child.getecho()


def test_the_echo_at_a_server_that_tells_no_process_id_is_a_clear_error(connected: Executor) -> None:
    with pytest.raises(pexpect.ExceptionPexpect, match="start it with echo=False, or run stty in it"):
        RemoteEcho(connected, "<sh>", None).get()


def test_a_missing_program_without_echo_is_a_status(spawn: Spawn) -> None:
    child = spawn("/no/such", echo=False)
    child.expect(pexpect.EOF)

    assert "/no/such" in str(child.before)
    assert child.wait() == 127


def test_habits_of_pexpect_find_what_they_set(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn("cat", "-", cwd=tmp_path, env={"A": "b"})
    assert (child.command, child.args, child.cwd, child.env) == ("cat", ["cat", "-"], tmp_path, {"A": "b"})
    child.delaybeforesend = 0.2
    begin = time.monotonic()
    child.sendline("x")
    assert time.monotonic() - begin >= 0.2
    child.expect_exact("x\r\nx\r\n")
    with pytest.raises(OSError, match="no descriptor"):
        child.fileno()


def test_a_shell_is_scripted(bash: RemoteSpawn) -> None:
    bash.sendline("cat")
    bash.expect_exact("cat\r\n")
    bash.sendline("meow")
    bash.expect_exact(["never", "meow\r\nmeow\r\n"])
    assert bash.match_index == 1
    bash.sendeof()
    bash.expect_exact(PROMPT)
    bash.sendline("cat")
    bash.sendline("purr")
    bash.expect_exact("purr\r\npurr\r\n")  # a shell between two commands may swallow what comes now
    bash.sendintr()
    bash.expect_exact(PROMPT)
    bash.sendline("echo $?")
    bash.expect(r"\d+")
    assert bash.after == "130"
    bash.sendline("exit 4")
    bash.expect(pexpect.EOF)

    assert bash.wait() == 4


@pytest.mark.parametrize("phrases", [("correct horse", "wrong horse"), ("correct horse", "correct horse")])
def test_a_key_is_made(spawn: Spawn, tmp_path: Path, phrases: tuple[str, str]) -> None:
    key = tmp_path / "key"
    keygen = spawn("ssh-keygen", "-t", "ed25519", "-f", str(key), "-C", "a comment")
    for phrase in phrases:
        keygen.expect("passphrase.*: ")
        keygen.sendline(phrase)
    done = keygen.expect(["do not match", r"SHA256:\S+ a comment"])

    assert done == (phrases[0] == phrases[1])
    assert key.exists() == bool(done)
    keygen.close()


# -- what pexpect does


def test_a_confined_shell_is_taken_over_with_its_output(connected: Executor, tmp_path: Path) -> None:
    start = partial(
        RemoteSpawn,
        ["sh"],
        executor=connected,
        id="shell",
        if_exists="attach",
        sandbox=ReadOnly(),
        cwd=tmp_path,
        encoding="utf-8",
        timeout=PATIENCE,
    )
    first = start()
    first.sendline("touch file; echo $((6 * 7))")
    first.expect(r"Read-only file system.*42")

    second = start()
    second.expect(r"Read-only file system.*42")
    second.sendline("exit 3")
    assert second.wait() == 3
    first.expect(pexpect.EOF)
    first.close()
    second.close()
    assert first.exitstatus == 3


def test_it_is_one_of_pexpects_own(bash: RemoteSpawn) -> None:
    assert isinstance(bash, SpawnBase)
    assert bash.isatty()
    with pytest.raises(OSError, match="no descriptor"):
        bash.fileno()


def test_a_limit_that_runs_out_is_raised_or_matched_and_takes_nothing(bash: RemoteSpawn) -> None:
    bash.sendline("echo one; read x; echo t''wo")
    with pytest.raises(pexpect.TIMEOUT, match=r"argv: \['bash'"):
        bash.expect_exact("two\r\n", timeout=0.2)
    assert bash.expect(["never", pexpect.TIMEOUT], timeout=0.05) == 1
    assert bash.after is pexpect.TIMEOUT
    bash.sendline()
    bash.expect_exact("two\r\n")
    assert bash.before is not None
    assert "one\r\n" in bash.before


def test_what_has_come_already_is_read_without_waiting(bash: RemoteSpawn) -> None:
    bash.sendline("exit")
    bash._process.wait_closed()
    seen = [bash.read_nonblocking(3, timeout=0), bash.read_nonblocking(3, timeout=0)]
    assert seen == ["exi", "t\r\n"]


def test_the_end_is_raised_or_matched_again_and_again(spawn: Spawn) -> None:
    child = spawn("sh", "-c", "echo last words; exit 6")

    assert child.expect(["never", pexpect.EOF]) == 1
    assert child.before == "last words\r\n"
    assert child.eof()
    for _ in range(2):
        with pytest.raises(pexpect.EOF):
            child.expect("never")
    assert child.exitstatus == 6


def test_bytes_are_bytes(spawn: Spawn) -> None:
    script = r"""stty raw -echo; printf '\000\377\303\n'; read line; printf '%s.' "$line" """
    child = spawn("sh", "-c", script, encoding=None)
    child.expect_exact(b"\0\xff\xc3\n")
    child.sendline("text too")
    child.expect(rb"(t\w+) too\.")

    assert group(child, 1) == b"text"
    assert child.after == b"text too."


def test_characters_are_whole_however_they_arrive(bash: RemoteSpawn) -> None:
    bash.sendline(r"stty -echo; printf '\342'; read x; printf '\202'; read x; printf '\254uro\n'")
    bash.expect_exact(r"uro\n'" + "\r\n")
    for _ in range(2):
        assert bash.expect([pexpect.TIMEOUT, "€"], timeout=0.1) == 0
        bash.sendline()
    bash.expect_exact("€uro\r\n")


def test_half_a_character_at_the_end_is_not_dropped(spawn: Spawn) -> None:
    child = spawn("printf", r"half \303", codec_errors="replace")

    assert child.read() == "half \N{REPLACEMENT CHARACTER}"


def test_lines_are_read_and_iterated_over(spawn: Spawn) -> None:
    child = spawn("sh", "-c", "echo one; echo two; echo three")

    assert child.readline() == "one\r\n"
    assert list(child) == ["two\r\n", "three\r\n"]


def test_logs_get_what_is_read_and_what_is_sent(spawn: Spawn) -> None:
    everything, read, sent = io.StringIO(), io.StringIO(), io.StringIO()
    child = spawn("sh", "-c", "read a; stty -echo; read b; echo bye", logfile=everything)
    child.logfile_read, child.logfile_send = read, sent
    child.sendline("typed")
    child.expect_exact("typed\r\n")
    child.sendcontrol("m")
    child.expect(pexpect.EOF)

    assert sent.getvalue() == "typed\n\r"
    assert read.getvalue().startswith("typed\r\n")
    assert read.getvalue().endswith("bye\r\n")
    assert sorted(everything.getvalue()) == sorted(read.getvalue() + sent.getvalue())


@pytest.mark.parametrize(
    ("char", "code"),
    [("a", 1), ("Z", 26), ("@", 0), ("[", 27), ("\\", 28), ("]", 29), ("^", 30), ("_", 31), ("?", 127)],
)
def test_control_characters_are_typed(spawn: Spawn, char: str, code: int) -> None:
    child = spawn("sh", "-c", "stty raw -echo; echo ready; od -An -tu1 -N1", encoding="ascii")
    child.expect_exact("ready")

    assert child.sendcontrol(char) == 1
    child.expect(r" +(\d+)")
    assert int(group(child, 1)) == code


def test_a_control_character_that_does_not_exist_is_not_sent(bash: RemoteSpawn) -> None:
    assert bash.sendcontrol("5") == 0


@EVERY_TRANSPORT
def test_three_megabytes_come_before_a_match(spawn: Spawn) -> None:
    child = spawn("sh", "-c", "stty -opost; head -c 3000000 /dev/zero | tr '\\0' x; echo end", encoding=None)
    child.expect_exact(b"end")

    assert child.before == b"x" * 3_000_000


def test_the_terminal_has_the_size_that_it_is_given(spawn: Spawn) -> None:
    child = spawn("bash", "--norc", "--noediting", dimensions=(30, 100), env=SHELL_ENV)
    child.expect_exact(PROMPT)
    assert child.getwinsize() == (30, 100)
    child.sendline("stty size; trap 'echo changed to $(stty size)' WINCH")
    child.expect_exact("30 100\r\n")
    child.expect_exact(PROMPT)

    child.setwinsize(40, 120)

    assert child.getwinsize() == (40, 120)
    child.sendline()  # a shell that waits for a line runs its traps after it
    child.expect_exact("changed to 40 120\r\n")


def test_it_starts_where_it_is_told(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn("sh", "-c", "pwd; echo $GREETING", cwd=tmp_path, env={"GREETING": "hello"})

    assert child.read() == f"{tmp_path}\r\nhello\r\n"


# -- async


async def test_it_is_awaited(spawn: Spawn) -> None:
    child = await asyncio.to_thread(spawn, "bash", "--norc", "--noediting", env=SHELL_ENV)
    await child.expect_exact(PROMPT, async_=True)
    child.sendline("echo $((6 * 7))")
    assert await child.expect(["never", r"(\d\d)\r\n"], async_=True) == 1
    assert group(child, 1) == "42"

    child.expect_exact(PROMPT)  # mixed with a blocking one
    child.sendline("exit 5")
    assert await child.expect_list([pexpect.EOF], async_=True) == 0
    with pytest.raises(pexpect.EOF):
        await child.expect("never", async_=True)
    assert child.exitstatus == 5


async def test_an_awaited_limit_is_raised_or_matched(spawn: Spawn) -> None:
    child = spawn("cat")

    with pytest.raises(pexpect.TIMEOUT):
        await child.expect("never", timeout=0.05, async_=True)
    assert await child.expect(["never", pexpect.TIMEOUT], timeout=0.05, async_=True) == 1
    child.timeout = 0.05
    assert await child.expect_exact([pexpect.TIMEOUT], async_=True) == 0


async def test_a_cancelled_expect_loses_nothing(spawn: Spawn) -> None:
    child = spawn("sh", "-c", "stty -echo; echo one; read x; echo two; read x")
    waiting = asyncio.create_task(child.expect_exact("two\r\n", async_=True))
    await asyncio.sleep(0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    child.sendline()
    await child.expect_exact("one\r\ntwo\r\n", async_=True)


async def test_the_loop_runs_on_while_it_is_awaited(spawn: Spawn) -> None:
    cat, other = spawn("cat"), spawn("cat")

    async def reply() -> None:
        await cat.expect_exact("ping\r\n", async_=True)
        other.sendline("pong")

    replying = asyncio.create_task(reply())
    cat.sendline("ping")
    await other.expect_exact("pong\r\n", async_=True)
    await replying


@pytest.mark.parametrize("method", ["expect", "expect_exact", "expect_list"])
def test_unknown_arguments_are_refused(bash: RemoteSpawn, method: str) -> None:
    for async_ in (False, True):
        with pytest.raises(TypeError, match="nonsense"):
            getattr(bash, method)([pexpect.EOF], async_=async_, nonsense=1)


# -- the end


def test_a_signal_is_told_from_a_status(spawn: Spawn) -> None:
    killed, exited = spawn("sleep", "1000"), spawn("sh", "-c", "exit 143")
    killed.kill(signal.SIGTERM)

    assert (killed.wait(), killed.signalstatus, killed.status) == (None, signal.SIGTERM, signal.SIGTERM)
    assert (exited.wait(), exited.signalstatus, exited.status) == (143, None, 143 << 8)


def test_closing_ends_what_can_be_asked(spawn: Spawn) -> None:
    child = spawn("sleep", "1000")
    child.close()

    assert (child.closed, child.isalive(), child.signalstatus) == (True, False, signal.SIGHUP)
    child.close()
    with pytest.raises(ValueError, match="closed"):
        child.send("x")
    with pytest.raises(ValueError, match="closed"):
        child.read_nonblocking()


@EVERY_TRANSPORT
def test_closing_kills_what_does_not_listen(spawn: Spawn) -> None:
    child = spawn("sh", "-c", "trap '' HUP INT; sleep 1000 & echo $! ready; wait; wait")
    child.expect(r"(\d+) ready")
    descendant = int(group(child, 1))

    assert not child.terminate()
    with pytest.raises(pexpect.ExceptionPexpect, match="terminate"):
        child.close(force=False)
    assert not child.closed
    child.close()

    assert child.signalstatus == signal.SIGKILL
    assert wait_gone(descendant, 5)


def test_leaving_the_block_closes(spawn: Spawn) -> None:
    with spawn("sleep", "1000") as child:
        pid = child.pid
    assert pid is not None
    assert wait_gone(pid, 5)


@EVERY_TRANSPORT
def test_a_connection_of_its_own_ends_with_it(url: str) -> None:
    threads = set(threading.enumerate())
    with RemoteSpawn(["cat"], url=url, timeout=PATIENCE) as cat:
        cat.sendline("hello")
        cat.expect_exact("hello\r\nhello\r\n")
        with pytest.raises(pexpect.TIMEOUT):
            cat.expect("never", timeout=0.05)

    assert settled(threads) == threads


@EVERY_TRANSPORT
def test_a_start_that_fails_leaves_no_connection(url: str) -> None:
    threads = set(threading.enumerate())

    with pytest.raises(SystemFailure):
        RemoteSpawn(["/nowhere/at-all"], url=url)

    assert settled(threads) == threads


@EVERY_TRANSPORT
def test_an_executor_that_ends_under_it_is_told(url: str) -> None:
    with connect(url) as executor:
        child = RemoteSpawn(["cat"], executor=executor)

    with pytest.raises(ExecutorClosed):
        child.expect("never")
    child.close()
    assert (child.closed, child.signalstatus) == (True, signal.SIGKILL)


def test_it_outlasts_a_lost_connection(shared_url: str) -> None:
    with connect(shared_url) as executor, RemoteSpawn(["cat"], executor=executor, timeout=PATIENCE) as cat:
        executor.drop_connection()
        cat.sendline("still here")
        cat.expect_exact("still here\r\nstill here\r\n")


def test_a_url_and_an_executor_are_too_much(connected: Executor) -> None:
    with pytest.raises(TypeError, match="not both"):
        RemoteSpawn(["true"], url="unix:///x", executor=connected)


# -- interact, on a terminal of our own

INTERACT = """
import os, resource, sys
from execclient.expect import RemoteSpawn
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
descriptors = [os.dup(2) for _ in range(int(sys.argv[4]))]
child = RemoteSpawn(["bash", "--norc", "--noediting"], url=sys.argv[1], encoding=eval(sys.argv[2]),
                    env={"PS1": "remote> ", "TERM": "dumb"})
child.expect_exact("remote> ")
child.send("echo be")
child.expect_exact("echo b")
print("BEGIN", flush=True)
child.interact(**eval(sys.argv[3]))
print("END", child.isalive(), flush=True)
child.close()
"""


@pytest.fixture
def interact(url: str) -> Iterator[Callable[..., pexpect.spawn[str]]]:
    started: list[pexpect.spawn[str]] = []

    def start(encoding: str | None = None, options: str = "{}", descriptors: int = 0) -> pexpect.spawn[str]:
        arguments = ["-W", "error", "-c", INTERACT, url, repr(encoding), options, str(descriptors)]
        user = pexpect.spawn(sys.executable, arguments, encoding="utf-8", timeout=PATIENCE)
        started.append(user)
        user.expect_exact("BEGIN\r\n")
        # What is typed before is dropped.
        while user.isalive() and termios.tcgetattr(user.child_fd)[3] & termios.ICANON:
            time.sleep(0.01)
        return user

    yield start
    for user in started:
        user.close()


@pytest.mark.parametrize("encoding", [None, "utf-8"])
def test_a_user_takes_over_and_gives_back(
    interact: Callable[..., pexpect.spawn[str]], encoding: str | None
) -> None:
    user = interact(encoding)
    user.expect_exact("e")  # was not matched yet
    user.send("gin ü\r")
    user.expect_exact("begin ü\r\nremote> ")
    user.send("cat\r")
    user.expect_exact("cat\r\n")
    user.send("purr\r")
    user.expect_exact("purr\r\npurr\r\n")
    user.sendcontrol("c")  # for the remote command, and not for the program here
    user.expect_exact("remote> ")
    user.send("\x1d")
    user.expect_exact("END True\r\n")
    user.expect(pexpect.EOF)
    user.close()

    assert user.exitstatus == 0


def test_interact_ends_with_the_command(interact: Callable[..., pexpect.spawn[str]]) -> None:
    user = interact()
    user.send("\x15printf 'last words\\n'; exit\r")
    user.expect_exact("last words\r\n")
    user.expect_exact("END False\r\n")


def test_a_program_with_more_than_a_thousand_descriptors_may_interact(
    interact: Callable[..., pexpect.spawn[str]],
) -> None:
    user = interact(descriptors=1100)
    user.send("gin\r")
    user.expect_exact("begin\r\nremote> ")
    user.send("\x1d")
    user.expect_exact("END True\r\n")


def test_interact_filters_both_ways(interact: Callable[..., pexpect.spawn[str]]) -> None:
    upper, swap = "lambda data: data.upper()", "lambda data: data.replace(b'!', b'\\x15echo x$((1+1))\\r')"
    user = interact(options=f"dict(output_filter={upper}, input_filter={swap}, escape_character='q')")
    user.send("!")
    user.expect_exact("X2\r\nREMOTE> ")
    user.send("q")
    user.expect_exact("END True\r\n")


def test_without_pexpect_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['pexpect'] = None; import execclient.expect"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert re.search(r'ImportError: .*pip install "execclient\[expect\]"', failed.stderr)
