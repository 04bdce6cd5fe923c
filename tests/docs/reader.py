"""A reader who follows a page, in a folder and a home of its own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from execprotocol.errors import RpcError
from tests.docs.commands import Command, commands_of, matches
from tests.docs.conversation import Conversation, check_message, same, values_of
from tests.docs.pages import PICTURES, ROOT, SHOWN, Block
from tests.docs.terminal import Terminal
from tests.sandbox_user import remove_tree
from tests.support.servers import free_ports

SECONDS = 30.0
"""For one command; pages have a limit of their own."""

THEIR_HOME, THEIR_RUNTIME = "/home/you", "/run/user/1000"
THEIR_PORTS = ("8765", "8470", "8471", "8472", "4222")
"""Names in the pages that are replaced here, the ports of daemons, relays and NATS among them."""


class BlockFailed(AssertionError):
    """A block does not do what its page says; the message begins with the place."""


@dataclass
class Reader:
    """Follows one page. `environment` holds what its commands see."""

    home: Path
    environment: dict[str, str]
    terminal: Terminal
    seconds: float = SECONDS
    words: dict[str, str] = field(default_factory=dict)
    """Text of pages → what stands for it here."""
    python: Path = Path(sys.executable)
    """Runs the blocks of Python."""

    _printed: str | None = None
    _conversation: Conversation | None = None

    def follow(self, blocks: list[Block]) -> None:
        """Do all of them in order."""
        for block in blocks:
            try:
                self._do(block)
            except (AssertionError, RpcError, ValueError, OSError, subprocess.SubprocessError) as error:
                raise BlockFailed(f"{block.where}: {error}") from error
        self._hang_up()
        assert set(self.terminal.stop_daemons()) <= {0}, "a daemon did not end well"

    def close(self) -> None:
        """End what is left, however it went."""
        if self._conversation is not None:
            self._conversation.kill()

    def _do(self, block: Block) -> None:
        if block.output:
            self._compare(block)
            return
        if block.language in PICTURES:
            return
        if block.title is not None:
            self._save(block)
        if block.place is not None or block.language in SHOWN:
            _read_only(block)
        elif block.language == "console":
            self._type(block)
        elif block.language == "json":
            self._exchange(block)
        elif block.language == "toml":
            self._check_settings(block)
        elif block.title is None:
            program = [str(self.python), "-"] if block.language == "python" else ["bash", "-eu"]
            self._printed = self._run_program(program, block)

    def _compare(self, block: Block) -> None:
        assert self._printed is not None, "nothing printed anything before this block"
        if block.language == "json":
            equal = same(list(values_of(block.text)), list(values_of(self._printed)))
        else:
            equal = matches(block.text, self._printed)
        assert equal, f"the page shows\n{block.text}\nit printed\n{self._printed}"

    def _save(self, block: Block) -> None:
        file = self.terminal.folder / str(block.title)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self._here(block.text))

    def _type(self, block: Block) -> None:
        self._hang_up()
        commands = commands_of(self._here(block.text))
        for command in commands:
            wanted = block.status if command is commands[-1] else 0
            if command.is_conversation:
                self._conversation = Conversation(command.text, self.terminal.folder, self.environment)
            elif command.background and not wanted:
                self.terminal.start(command)
            else:
                self._run(command, wanted)

    def _run(self, command: Command, wanted: int) -> None:
        status, printed = self.terminal.run(command, self.seconds)
        self._printed = self._there(printed)
        assert status == wanted, f"{command.text!r} ends with status {status}:\n{printed}"
        if command.expected:
            shown = self._there("\n".join(command.expected))
            assert matches(shown, self._printed), (
                f"the page shows\n{shown}\n{command.text!r} printed\n{self._printed}"
            )

    def _run_program(self, program: list[str], block: Block) -> str:
        done = subprocess.run(
            program,
            input=self._here(block.text),
            cwd=self.terminal.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=self.seconds,
            check=False,
        )
        assert done.returncode == block.status, f"ends with status {done.returncode}:\n{done.stderr}"
        return self._there(done.stdout)

    def _exchange(self, block: Block) -> None:
        for message in values_of(self._here(block.text)):
            check_message(message)
            if self._conversation is not None:
                self._conversation.exchange(message)

    def _check_settings(self, block: Block) -> None:
        file = self.terminal.folder / (block.title or "settings-of-the-page.toml")
        file.write_text(self._here(block.text))
        file.chmod(0o600)
        self._run(Command(f"execserver config show --config {file}"), block.status)

    def _hang_up(self) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            conversation.end()

    def _here(self, text: str) -> str:
        for theirs, ours in self.words.items():
            text = text.replace(theirs, ours)
        return text

    def _there(self, text: str) -> str:
        for theirs, ours in self.words.items():
            text = text.replace(ours, theirs)
        return text


def _read_only(block: Block) -> None:
    """What cannot run here is at least well formed."""
    if block.language == "json":
        for message in values_of(block.text):
            check_message(message)
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "python":
        compile(block.text, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    elif block.language in ("console", "sh"):
        text = block.text
        if block.language == "console":
            text = "\n".join(command.text for command in commands_of(text))
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


@contextmanager
def reader(
    *,
    programs: Path | None = ROOT / ".venv" / "bin",
    env: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> Iterator[Reader]:
    """A reader with an empty folder; nothing that they started is left behind.

    Args:
        programs: the folder of `execserver` and `python`; None: the page itself makes it.
        env: variables beside those that a fresh login has.
        seconds: limit of one command.
    """
    base = Path(tempfile.mkdtemp(prefix="reader-"))  # short: sockets have paths of 107 bytes
    home, runtime, folder, logs = (base / name for name in ("home", "run", "work", "logs"))
    for made in (home, runtime, folder, logs):
        made.mkdir(mode=0o700)
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    environment = {
        "HOME": str(home),
        "USER": "you",
        "LOGNAME": "you",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "PATH": path if programs is None else f"{programs}:{path}",
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
        **(env or {}),
    }
    if programs is not None:
        (folder / ".venv").symlink_to(programs.parent)
    words = {THEIR_HOME: str(home), THEIR_RUNTIME: str(runtime)}
    try:
        with _reading(home, folder, logs, environment, seconds, words) as one:
            yield one
    finally:
        remove_tree(base)


@contextmanager
def newcomer(env: Mapping[str, str], seconds: float) -> Iterator[Reader]:
    """A reader in the home folder of the user that runs the tests, who has just logged in.

    Args:
        env: all variables. Blocks of Python are run by the environment `.venv` that an earlier block makes.
        seconds: limit of one command.
    """
    home = Path(env["HOME"])
    logs = Path(tempfile.mkdtemp(prefix="reader-"))
    try:
        with _reading(home, home, logs, env, seconds, {}) as one:
            one.python = home / ".venv" / "bin" / "python"
            yield one
    finally:
        remove_tree(logs)


@contextmanager
def _reading(
    home: Path,
    folder: Path,
    logs: Path,
    environment: Mapping[str, str],
    seconds: float,
    words: dict[str, str],
) -> Iterator[Reader]:
    words |= dict(zip(THEIR_PORTS, map(str, free_ports(len(THEIR_PORTS))), strict=True))
    try:
        with Terminal(folder, environment, logs) as terminal:
            one = Reader(home, dict(environment), terminal, seconds, words)
            try:
                yield one
            finally:
                one.close()
        left = _processes_of(home)
        assert not left, f"the page leaves behind {left}"
    finally:
        for process in _processes_of(home):
            process.kill()


def _processes_of(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid():  # a newcomer, who is at home
                continue
            if process.environ().get("HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
