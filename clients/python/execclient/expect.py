"""pexpect over a terminal at the daemon. Needs the extra: `pip install "execclient[expect]"`.

    from execclient.expect import RemoteSpawn

    with RemoteSpawn(["python3", "-q"], url="ws://build-host:8080", encoding="utf-8") as python:
        python.expect(">>> ")
        python.sendline("6 * 7")
        python.expect(r"(\\d+)\\r\\n>>> ")
        print(python.match[1])

A `RemoteSpawn` is a `pexpect.spawnbase.SpawnBase` with the methods of `pexpect.spawn`. The differences:

- `argv` is a list; `env` is added to the daemon's environment and does not replace it.
- There is no descriptor: `fileno` raises, and `ptyproc`, `use_poll`, `ignore_sighup` and `preexec_fn` do not
  exist.
- `getecho`, `setecho` and `waitnoecho` run `stty` at the daemon. With `echo=False` a shell switches the
  echo off and then executes the program; a missing program is then an exit status of 127.
- `delaybeforesend` is None by default, and `delayafterread` has no effect: the races that they avoid do not
  exist here.
- An incomplete character at the end of the output is not dropped: `codec_errors` says how to decode it.
- Errors of the connection and the session (`execclient.errors`) are raised by the call that meets them; among
  them `OutputGap`, if the daemon or the client had to drop output.
- Sync calls block their thread, and so must not be made in a coroutine; use `await
  spawn.expect(…, async_=True)` there. It works with any asyncio loop, and may be mixed with sync calls.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

try:
    from pexpect.exceptions import EOF, TIMEOUT, ExceptionPexpect
    from pexpect.expect import Expecter, searcher_re, searcher_string
    from pexpect.spawnbase import SpawnBase
except ImportError as error:
    raise ImportError('execclient.expect needs pexpect: pip install "execclient[expect]"') from error

from execclient.arguments import AnyPath, Network, Sandbox
from execclient.errors import ExecServerError, Unsupported, WaitTimeout
from execclient.remote_echo import RemoteEcho, without_echo
from execclient.run import IfExists
from execclient.sync import Executor, OutputQueue, Process, connect

if TYPE_CHECKING:

    class _SpawnBase(SpawnBase[Any]):
        """The class with its protected members, which its stubs leave out, and not generic."""

        buffer_type: Callable[[], Any]  # type: ignore[assignment]
        _buffer: Any
        _decoder: Any
        _encoder: Any

        def _log(self, s: Any, direction: str) -> None: ...
        def _coerce_expect_string(self, s: Any) -> Any: ...
        def _coerce_send_string(self, s: Any) -> Any: ...
        def _pattern_type_err(self, pattern: object) -> NoReturn: ...
else:
    _SpawnBase = SpawnBase

__all__ = ["RemoteSpawn"]

MAX_READ = 1 << 16
"""With pexpect's own 2,000, a large output is searched again for every 2,000 bytes."""

INTERRUPT, END_OF_FILE = b"\x03", b"\x04"
"""The default VINTR and VEOF of a terminal."""

CONTROL_PUNCTUATION = {
    **dict.fromkeys("@`", 0),
    **dict.fromkeys("[{", 27),
    **dict.fromkeys("\\|", 28),
    **dict.fromkeys("]}", 29),
    **dict.fromkeys("^~", 30),
    "_": 31,
    "?": 127,
}

Filter = Callable[[bytes], bytes]


class _Terminal(_SpawnBase):
    """The private part of a `RemoteSpawn`: its output, and its connection with the user's terminal."""

    STDIN_FILENO = 0
    STDOUT_FILENO = 1
    STDERR_FILENO = 2

    _process: Process
    _output: OutputQueue

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def _is_running(self) -> bool:
        """Whether the command runs; if not, sets its exit status."""
        code = self._process.exit_code
        if code is None:
            return not self.closed
        if code > 128 and self._process.cause not in (None, "normal"):
            self.signalstatus = self.status = code - 128
        else:
            self.exitstatus = code
            self.status = code << 8
        self.terminated = True
        return False

    # -- output

    def _read(self, size: int) -> Any:
        """The available output, at least one byte."""
        data = self._output.read(size)
        text = self._decoder.decode(data, final=False) if data else self._rest()
        self._log(text, "read")
        return text

    def _rest(self) -> Any:
        """At the end of the output: the rest of an incomplete character, then EOF."""
        self.flag_eof = True
        self._is_running()
        text = b"" if self.encoding is None else self._decoder.decode(b"", final=True)
        if not text:
            raise EOF("End Of File (EOF).")
        return text

    def _exact_pattern(self, pattern: Any) -> Any:
        if pattern in (TIMEOUT, EOF):
            return pattern
        if not isinstance(pattern, self.allowed_string_types):
            self._pattern_type_err(pattern)
        return self._coerce_expect_string(pattern)

    async def _expect_async(self, searcher: Any, limit: float | None, searchwindowsize: int | None) -> int:
        # pexpect itself would read a descriptor on the loop, and close the spawn at its end.
        expecter = Expecter(self, searcher, searchwindowsize)
        try:
            async with asyncio.timeout(self.timeout if limit == -1 else limit):
                index: int | None = expecter.existing_data()
                while index is None:
                    index = expecter.new_data(await self._incoming())
                return index
        except EOF as error:
            return int(expecter.eof(error))
        except TimeoutError as error:
            if isinstance(error, ExecServerError):  # of a call, and not of the expectation
                expecter.errored()
                raise
            return int(expecter.timeout(TIMEOUT("Timeout exceeded.")))
        except BaseException:
            expecter.errored()
            raise

    async def _incoming(self) -> Any:
        self._check_open()
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(news.set)

        with self._output.listening(notify):
            while not self._output.poll():
                await news.wait()
                news.clear()
        return self._read(self.maxread)

    # -- input and interaction

    def _send_control(self, data: bytes) -> int:
        self._type(data)
        self._log(data if self.encoding is None else data.decode("latin-1"), "send")
        return len(data)

    def _type(self, data: bytes, *, whole_lines: bool = True) -> None:
        self._check_open()
        self._process.write(data, whole_lines=whole_lines)

    def _interact(
        self, escape: bytes | None, input_filter: Filter | None, output_filter: Filter | None
    ) -> None:
        self.write_to_stdout(self.buffer)
        self.stdout.flush()
        self._buffer = self.buffer_type()
        poll = select.poll()  # select(2) takes no descriptor above 1023
        poll.register(self.STDIN_FILENO, select.POLLIN)
        with _raw(self.STDIN_FILENO), _wake_pipe() as (woken, wake), self._output.listening(wake):
            poll.register(woken, select.POLLIN)
            while True:
                available = self._output.poll()
                ready = dict(poll.poll(0 if available else None))
                if woken in ready:
                    os.read(woken, 4096)
                if available and not self._show(output_filter):
                    return
                if self.STDIN_FILENO in ready and not self._forward(escape, input_filter):
                    return

    def _show(self, output_filter: Filter | None) -> bool:
        """Write output to the user's terminal; whether there was any."""
        data = self._output.read(MAX_READ)
        if not data:
            self.flag_eof = True
            self._is_running()
            return False
        self._log(self._decoder.decode(data, final=False), "read")
        shown = memoryview(output_filter(data) if output_filter else data)
        while shown:
            shown = shown[os.write(self.STDOUT_FILENO, shown) :]
        return True

    def _forward(self, escape: bytes | None, input_filter: Filter | None) -> bool:
        """Send the user's input; whether to continue."""
        data = os.read(self.STDIN_FILENO, 1000)
        continues = bool(data)
        if input_filter:
            data = input_filter(data)
        if escape is not None and escape in data:
            data = data[: data.rfind(escape)]
            continues = False
        if data:
            self._log(data if self.encoding is None else data.decode(self.encoding, "replace"), "send")
            self._type(data, whole_lines=False)
        return continues


class RemoteSpawn(_Terminal):
    """A command in a terminal at the daemon, with the interface of pexpect.

    Args:
        argv: program and arguments; no shell is involved.
        url: of the daemon, as for `execclient.connect`; the connection is for this command only, and `close`
            ends it.
        executor: an `execclient.sync.Executor` to use instead; it stays open.
        timeout: seconds that `expect` and other methods wait, None for ever.
        maxread: bytes that are searched at a time.
        searchwindowsize: as in pexpect.
        logfile: gets all data that is read or sent; `logfile_read` and `logfile_send` as in pexpect.
        encoding: None for bytes; else `before`, `after` and so on are text.
        codec_errors: how to decode invalid bytes.
        dimensions: rows and columns of the terminal, 24 × 80 by default.
        env: variables added to the daemon's.
        cwd: the working directory; the daemon's by default.
        echo: whether the terminal echoes its input, at first.
        sandbox: of the command, as for `Executor.start`, like the next three.
        network: the hosts that it may reach.
        id: the name of the process in its session.
        if_exists: with `attach`, a command of this `id`, started alike, is taken over, its whole output, too.

    Raises:
        ExecServerError: the command could not be started, or the daemon not be reached.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        url: str | None = None,
        executor: Executor | None = None,
        timeout: float | None = 30,
        maxread: int = MAX_READ,
        searchwindowsize: int | None = None,
        logfile: Any = None,
        encoding: str | None = None,
        codec_errors: str = "strict",
        dimensions: tuple[int, int] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: AnyPath | None = None,
        echo: bool = True,
        sandbox: Sandbox | None = None,
        network: Network | None = None,
        id: str | None = None,  # noqa: A002 - as for `Executor.start`
        if_exists: IfExists = "fail",
    ) -> None:
        if url is not None and executor is not None:
            raise TypeError("either url or executor, not both")
        super().__init__(timeout, maxread, searchwindowsize, logfile, encoding, codec_errors)
        self.delaybeforesend = None
        self.delayafterread = None
        self.argv = self.args = list(argv)
        self.command = self.argv[0] if self.argv else None
        self.env, self.cwd = env, cwd
        self.echo = echo
        self.name = f"<{' '.join(argv)}>"
        self._size = dimensions or (24, 80)
        self._owns_executor = executor is None
        self._executor = connect(url) if executor is None else executor
        try:
            started = argv if echo else without_echo(argv)
            self._process = self._executor.start(
                started,
                id=id,
                tty=True,
                size=dimensions,
                env=env,
                cwd=cwd,
                sandbox=sandbox,
                network=network,
                if_exists=if_exists,
            )
        except BaseException:
            self._end_connection()
            raise
        self._output = self._process.output
        self.pid = self._process.pid
        self._echo = RemoteEcho(self._executor, self.name, self.pid)
        self.terminated = False
        self.closed = False
        self.flag_eof = False

    def __str__(self) -> str:
        # pexpect includes this in the text of its TIMEOUT and EOF.
        lines = {
            "argv": self.argv,
            "url": self._executor.url,
            "process": self._process.id,
            "pid": self.pid,
            "buffer (its end)": self.buffer[-100:],
            "before (its end)": self.before[-100:] if self.before else self.before,
            "after": self.after,
            "exitstatus": self.exitstatus,
            "signalstatus": self.signalstatus,
            "flag_eof": self.flag_eof,
            "closed": self.closed,
            "timeout": self.timeout,
        }
        return "\n".join([repr(self), *(f"{name}: {value!r}" for name, value in lines.items())])

    # -- reading

    def read_nonblocking(self, size: int = 1, timeout: float | None = -1) -> Any:
        """At most `size` bytes of output, decoded. Waits for the first byte.

        Args:
            size: bytes.
            timeout: seconds; 0 does not wait, -1 stands for `self.timeout`, None for ever.

        Raises:
            pexpect.TIMEOUT: no output in time.
            pexpect.EOF: the output has ended.
            ExecServerError: the output cannot be read; `OutputGap`: a part of it was lost.
        """
        self._check_open()
        if not self._output.wait(self.timeout if timeout == -1 else timeout):
            raise TIMEOUT("Timeout exceeded.")
        return self._read(size)

    def eof(self) -> bool:
        """Whether EOF was raised."""
        return self.flag_eof

    def isatty(self) -> bool:
        """Always True."""
        return True

    def fileno(self) -> int:
        """Not available.

        Raises:
            OSError: always.
        """
        raise OSError(f"{self.name} runs at a daemon: it has no descriptor here")

    # -- expecting

    def expect_list(
        self,
        pattern_list: Any,
        timeout: float | None = -1,
        searchwindowsize: int | None = -1,
        async_: bool = False,
        **kw: Any,
    ) -> Any:
        """As in pexpect; `expect` calls it, too."""
        if not kw.pop("async", async_):
            return super().expect_list(pattern_list, timeout, searchwindowsize, **kw)
        _refuse(kw)
        return self._expect_async(searcher_re(pattern_list), timeout, searchwindowsize)

    def expect_exact(
        self,
        pattern_list: Any,
        timeout: float | None = -1,
        searchwindowsize: int | None = -1,
        async_: bool = False,
        **kw: Any,
    ) -> Any:
        """As in pexpect."""
        if not kw.pop("async", async_):
            return super().expect_exact(pattern_list, timeout, searchwindowsize, **kw)
        _refuse(kw)
        if isinstance(pattern_list, self.allowed_string_types) or pattern_list in (TIMEOUT, EOF):
            pattern_list = [pattern_list]
        patterns = [self._exact_pattern(pattern) for pattern in pattern_list]
        return self._expect_async(searcher_string(patterns), timeout, searchwindowsize)

    # -- sending

    def send(self, s: str | bytes) -> int:
        """Type text; returns the number of bytes.

        Raises:
            LineTooLong: a line has more than 4,095 bytes, and the terminal is in canonical mode and would
                drop the rest. Nothing was typed.
        """
        if self.delaybeforesend is not None:
            time.sleep(self.delaybeforesend)
        text = self._coerce_send_string(s)
        self._log(text, "send")
        data = self._encoder.encode(text, final=False)
        self._type(data)
        return len(data)

    def sendline(self, s: str | bytes = "") -> int:
        """Type a line; returns the number of bytes."""
        return self.send(self._coerce_send_string(s) + self.linesep)

    def write(self, s: str | bytes) -> None:
        """As `send`, but returns None."""
        self.send(s)

    def writelines(self, sequence: Iterable[str | bytes]) -> None:
        """Send each string; no line ends are added."""
        for s in sequence:
            self.send(s)

    def sendcontrol(self, char: str) -> int:
        """Type a control character, such as `sendcontrol("g")` for Ctrl-G; returns the number of bytes.

        A character without a control character is not sent, and returns 0.
        """
        code = _control_code(char)
        return 0 if code is None else self._send_control(bytes([code]))

    def sendintr(self) -> None:
        """Type Ctrl-C."""
        self._send_control(INTERRUPT)

    def sendeof(self) -> None:
        """Type Ctrl-D, which means end of file at the beginning of a line only."""
        self._send_control(END_OF_FILE)

    # -- the terminal

    def getwinsize(self) -> tuple[int, int]:
        """Rows and columns, as last set by this object."""
        return self._size

    def setwinsize(self, rows: int, cols: int) -> None:
        """Set the size of the terminal; the command gets SIGWINCH."""
        self._check_open()
        self._process.resize(rows, cols)
        self._size = rows, cols

    def getecho(self) -> bool:
        """Whether the terminal echoes its input; programs that ask for a password switch the echo off.

        Raises:
            pexpect.ExceptionPexpect: the terminal is not accessible; the message says why.
        """
        self._check_open()
        return self._echo.get()

    def setecho(self, state: bool) -> None:
        """Switch the echo of the terminal on or off.

        A line editor such as readline restores at each line the state that it found at its start: for a
        program with a line editor, use `echo=False`.

        Raises:
            pexpect.ExceptionPexpect: as for `getecho`.
        """
        self._check_open()
        self._echo.set(state)
        self.echo = state

    def waitnoecho(self, timeout: float | None = -1) -> bool:
        """Wait until the echo of the terminal is off; returns whether it is.

        Args:
            timeout: seconds; -1 stands for `self.timeout`, None for ever.

        Raises:
            pexpect.ExceptionPexpect: as for `getecho`.
        """
        self._check_open()
        return self._echo.wait_off(self.timeout if timeout == -1 else timeout)

    def interact(
        self,
        escape_character: str | None = chr(29),
        input_filter: Filter | None = None,
        output_filter: Filter | None = None,
    ) -> None:
        """Connect the user's terminal to the command, until the escape character or the end.

        Args:
            escape_character: ends the connection, and is not sent; Ctrl-] by default, None for none.
            input_filter: applied to the input, before the search for the escape character.
            output_filter: applied to the output.
        """
        escape = None if escape_character is None else escape_character.encode("latin-1")
        self._check_open()
        self._interact(escape, input_filter, output_filter)

    # -- the end

    def isalive(self) -> bool:
        """Whether the command runs; if not, `exitstatus` or `signalstatus` is set."""
        return self._is_running()

    def wait(self) -> int | None:
        """Wait until the command has exited; its exit status, None if it died by a signal.

        Unlike in pexpect, the output need not be read.
        """
        self._process.wait()
        self.isalive()
        return self.exitstatus

    def kill(self, sig: int) -> None:
        """Send a signal to the command itself, if it runs."""
        if self.isalive():
            self._process.signal(sig, "leader")

    def terminate(self, force: bool = False) -> bool:
        """End the command by SIGHUP, SIGCONT and SIGINT, with a pause of `delayafterterminate` after each.

        Args:
            force: kill the command and its descendants if that is not enough.

        Returns:
            Whether the command has ended.
        """
        for sig in (signal.SIGHUP, signal.SIGCONT, signal.SIGINT):
            if not self.isalive():
                return True
            with suppress(Unsupported):  # a server without signals other than SIGKILL
                self.kill(sig)
                self._wait(self.delayafterterminate)
        if force and self.isalive():
            self._process.kill()
            self._process.wait()
        return not self.isalive()

    def _wait(self, seconds: float) -> None:
        with suppress(WaitTimeout):
            self._process.wait(seconds)

    def close(self, force: bool = True) -> None:
        """End the command, and its own connection if it has one. A second call does nothing.

        Args:
            force: kill the command if it does not end otherwise.

        Raises:
            pexpect.ExceptionPexpect: the command runs on, and this object stays open; only without `force`.
        """
        if self.closed:
            return
        self.flush()
        try:
            if not self.terminate(force):
                raise ExceptionPexpect("Could not terminate the child.")
        except ExecServerError:
            self._close()
            raise
        self._close()

    def _close(self) -> None:
        self.closed = True
        self._end_connection()

    def _end_connection(self) -> None:
        if self._owns_executor:
            self._executor.close()


def _refuse(unknown: Mapping[str, Any]) -> None:
    if unknown:
        raise TypeError(f"Unknown keyword arguments: {dict(unknown)}")


def _control_code(char: str) -> int | None:
    letter = char.lower()
    if "a" <= letter <= "z":
        return ord(letter) - ord("a") + 1
    return CONTROL_PUNCTUATION.get(letter)


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    mode = termios.tcgetattr(terminal)
    tty.setraw(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, mode)


@contextmanager
def _wake_pipe() -> Iterator[tuple[int, Callable[[], object]]]:
    """A descriptor to select on, and a function that makes it readable, from any thread."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    lock = threading.Lock()  # or a late call could write to a reused descriptor
    closed = False

    def wake() -> None:
        with lock, suppress(BlockingIOError):  # it is readable already
            if not closed:
                os.write(writer, b"x")

    try:
        yield reader, wake
    finally:
        with lock:
            closed = True
            os.close(reader)
            os.close(writer)
