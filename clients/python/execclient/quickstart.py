"""A tour of a daemon for new users: `make run`.

Starts a daemon on a private Unix socket and takes five steps, which print their calls and results. Then, at a
terminal, the daemon serves until Ctrl-C; otherwise it is stopped. The exit status is 0 if every step
succeeded.

    python -m execclient.quickstart              start a daemon
    python -m execclient.quickstart --url URL    use a running daemon
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from execclient import ExecServerError, Executor, TextStream, connect

START_SECONDS = 20.0
STOP_SECONDS = 10.0
STEP_SECONDS = 20.0
"""Limits far above the needs of a loaded machine, so that a tour that hangs ends with a message."""

INTERRUPTED = 130


class TourFailed(Exception):
    """A step failed; the message says why."""


# -- the five steps: your own code would look like these functions


async def stream(executor: Executor) -> None:
    """Run a command, and see its output as it comes"""
    say('process = await executor.start(["sh", "-c", "for n in 1 2 3; do echo line $n; sleep 0.1; done"])')
    say("async for stream, data in process: ...")
    begin = time.monotonic()
    lines = []
    process = await executor.start(["sh", "-c", "for n in 1 2 3; do echo line $n; sleep 0.1; done"])
    async for stream_name, data in process:
        show(f"after {time.monotonic() - begin:.2f} s, {stream_name}: {data!r}")
        lines.append(data)
    check("the output", b"".join(lines), b"line 1\nline 2\nline 3\n")

    say('await executor.run(["sh", "-c", "echo to stderr >&2; exit 3"])')
    result = await executor.run(["sh", "-c", "echo to stderr >&2; exit 3"])
    show(f"exit code {result.exit_code}, stderr {result.stderr_text!r}")
    check("the exit code", result.exit_code, 3)


async def terminal(executor: Executor) -> None:
    """Talk to a shell at a terminal"""
    say('shell = await executor.start(["sh"], tty=True)')
    shell = await executor.start(["sh"], tty=True, env={"PS1": "$ ", "TERM": "dumb"})
    screen = shell.text()
    seen = await text_until(screen, "$ ")
    say(r'await shell.write("stty size; echo $((6 * 7)) is the answer\n")')
    await shell.write("stty size; echo $((6 * 7)) is the answer\n")
    seen += await text_until(screen, "42 is the answer\r\n$ ")
    say(r'await shell.write("exit 5\n")')
    await shell.write("exit 5\n")
    async for _, text in screen:
        seen += text
    for line in seen.splitlines():
        show(line)
    check("the shell's exit code", await shell.wait(), 5)


async def files(executor: Executor) -> None:
    """Write a file, and read it"""
    folder = (await executor.run(["mktemp", "-d"])).text.strip()
    say('await executor.fs.write_text(f"{folder}/notes.txt", "fünf\\n")')
    await executor.fs.write_text(f"{folder}/notes.txt", "fünf\n")
    say("await executor.fs.iterdir(folder)")
    entries = await executor.fs.iterdir(folder)
    show(str(entries))
    say('await executor.fs.read_text(f"{folder}/notes.txt")')
    text = await executor.fs.read_text(f"{folder}/notes.txt")
    show(repr(text))
    say("await executor.fs.remove(folder, recursive=True)")
    await executor.fs.remove(folder, recursive=True)
    check("the names", [entry.name for entry in entries], ["notes.txt"])
    check("the text", text, "fünf\n")


async def long_poll(executor: Executor) -> None:
    """Wait for output with one request, without asking again and again"""
    say('process = await executor.start(["sh", "-c", "sleep 0.3; echo at last"])')
    process = await executor.start(["sh", "-c", "sleep 0.3; echo at last"])
    say("page = await process.read(after_seq=0, wait=10)")
    begin = time.monotonic()
    page = await process.read(after_seq=0, wait=10)
    show(
        f"after {time.monotonic() - begin:.2f} s: {page.data!r}, to go on with after_seq={page.next_seq - 1}"
    )
    check("the output", page.data, b"at last\n")
    await process.wait_closed()


async def cut_and_resume(executor: Executor) -> None:
    """Cut the connection while a command counts, and miss nothing"""
    script = "i=0; while [ $i -lt 30 ]; do i=$((i + 1)); echo $i; sleep 0.02; done"
    say('process = await executor.start(["sh", "-c", "... count to 30 ..."])')
    process = await executor.start(["sh", "-c", script])
    before = executor.recoveries
    output = b""
    async for _, data in process:
        output += data
        if executor.recoveries == before and output.count(b"\n") == 10:
            say("executor.drop_connection()   # after 10 numbers")
            executor.drop_connection()
    numbers = [int(number) for number in output.split()]
    show(f"connections replaced: {executor.recoveries - before}, session {executor.session_id}")
    show(f"numbers that came: {numbers[0]} to {numbers[-1]}, {len(numbers)} in all")
    check("the numbers", numbers, list(range(1, 31)))
    check("the connection was replaced", executor.recoveries > before, True)


STEPS = (stream, terminal, files, long_poll, cut_and_resume)


# -- helpers of the steps


def say(call: str) -> None:
    """Print a call."""
    print(f"   >>> {call}", flush=True)


def show(result: str) -> None:
    """Print a result."""
    print(f"   {result}", flush=True)


def check(what: str, got: object, wanted: object) -> None:
    """Fail unless both are equal."""
    if got != wanted:
        raise TourFailed(f"{what}: expected {wanted!r}, got {got!r}")


async def text_until(screen: TextStream, wanted: str) -> str:
    """The output of a terminal, up to a text."""
    seen = ""
    async for _, text in screen:
        seen += text
        if wanted in seen:
            return seen
    raise TourFailed(f"the output ended without {wanted!r}: {seen!r}")


async def tour(url: str) -> None:
    """Take all steps. Raises `TourFailed` with the number of the step that failed."""
    async with connect(url) as executor:
        for number, step in enumerate(STEPS, start=1):
            print(f"\n{number}. {step.__doc__}", flush=True)
            begin = time.monotonic()
            try:
                async with asyncio.timeout(STEP_SECONDS):
                    await step(executor)
            except (TourFailed, ExecServerError) as error:
                raise TourFailed(f"step {number}: {error}") from error
            except TimeoutError:
                raise TourFailed(f"step {number}: not done within {STEP_SECONDS:g} s") from None
            print(f"   ok, {time.monotonic() - begin:.2f} s", flush=True)


# -- the daemon


class TourDaemon:
    """A daemon for this tour, in a private folder."""

    def __init__(self, folder: Path) -> None:
        self.url = f"unix://{folder}/execserver.sock"
        self.log = folder / "daemon.log"
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        """Start the daemon, and wait until it prints its URL."""
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "execserver", "serve", "--listen", self.url),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C ends the tour, which then stops the daemon
            )
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise TourFailed(f"the daemon was not ready within {START_SECONDS:g} s") from None
        if not line:
            raise TourFailed(f"the daemon ended with status {await self.process.wait()} before it was ready")
        check("where the daemon listens", line.decode().strip(), self.url)

    async def stop(self) -> None:
        """Stop the daemon with SIGTERM, as a service manager does."""
        if self.process.returncode is not None:
            return  # by itself, which was reported already
        self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                status = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise TourFailed(f"the daemon did not stop within {STOP_SECONDS:g} s") from None
        check("the daemon's exit status", status, 0)


@asynccontextmanager
async def own_daemon() -> AsyncIterator[TourDaemon]:
    """A daemon that ends with the block. After a failure its folder is kept, for the log."""
    folder = Path(tempfile.mkdtemp(prefix="execserver-"))
    daemon = TourDaemon(folder)
    try:
        try:
            await daemon.start()
            yield daemon
        finally:
            if hasattr(daemon, "process"):
                await daemon.stop()
    except Exception:
        print(f"\nThe daemon's log: {daemon.log}", file=sys.stderr)
        raise
    except asyncio.CancelledError:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


async def serve(daemon: TourDaemon) -> None:
    """Keep the daemon running, and print how to connect to it."""
    print(
        f"\nAll steps are done. The daemon goes on serving at {daemon.url}\n"
        f"To use it from another terminal:  EXECSERVER_URL={daemon.url} {sys.executable} -m asyncio\n"
        "    from execclient import connect\n"
        '    async with connect() as executor: print((await executor.run(["date"])).text)\n'
        "Ctrl-C ends it.",
        flush=True,
    )
    status = await daemon.process.wait()
    raise TourFailed(f"the daemon ended by itself, with status {status}")


async def run(url: str | None) -> int:
    """Run the tour; the exit status."""
    task = asyncio.current_task()
    assert task is not None
    serving = interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted:  # a second Ctrl-C must not keep the daemon from being stopped
            interrupted = True
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    try:
        if url is not None:
            await tour(url)
            return 0
        async with own_daemon() as daemon:
            print(f"A daemon runs as process {daemon.process.pid} and listens on {daemon.url}", flush=True)
            await tour(daemon.url)
            if sys.stdin is not None and sys.stdin.isatty():
                serving = True
                await serve(daemon)
        print("\nAll steps are done, and the daemon is stopped.", flush=True)
        return 0
    except asyncio.CancelledError:
        print("\nStopped." if url is not None else "\nThe daemon is stopped.", flush=True)
        return 0 if serving else INTERRUPTED
    except (TourFailed, ExecServerError) as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1


def main() -> int:
    """Parse the command line, and run the tour."""
    parser = argparse.ArgumentParser(
        prog="python -m execclient.quickstart", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--url", help="use the daemon that listens there, instead of starting one")
    return asyncio.run(run(parser.parse_args().url))


if __name__ == "__main__":
    sys.exit(main())
