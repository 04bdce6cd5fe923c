"""`execserver run --network-allow`, `--network-deny` and `--network-ask`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest

from execserver.__main__ import main
from tests.integration.commands.conftest import EXECSERVER, CommandLine, until
from tests.support.fs_workers import bubblewrap_works
from tests.support.hosts import web_host

pytestmark = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap and user namespaces")

CONFINED = ("run", "--sandbox", "read-only")
CURL = ("curl", "-sS", "--max-time", "10")


@pytest.fixture
def port() -> Iterator[int]:
    with web_host() as one:
        yield one


def test_a_listed_host_is_reached_and_no_other(execserver: CommandLine, port: int) -> None:
    listed, other = f"http://127.0.0.1:{port}/", f"http://127.0.0.2:{port}/"

    allowed = execserver(*CONFINED, "--network-allow", "127.0.0.1", "--", *CURL, listed)
    assert (allowed.returncode, allowed.stdout, allowed.stderr) == (0, b"reached", b"")

    denied = execserver(*CONFINED, "--network-allow", "127.0.0.1", "--", *CURL, "--fail", other)
    assert denied.returncode == 22
    assert b"reached" not in denied.stdout
    assert denied.stderr.decode().splitlines()[-1] == (
        f"execserver: denied by the network proxy: 127.0.0.2:{port} (http): it is a private or local "
        "address, which has to be allowed itself; --network-allow 127.0.0.2 allows it"
    )


def test_the_variables_alone_do_not_let_a_command_out(execserver: CommandLine, port: int) -> None:
    around = (*CURL, "--noproxy", "*", f"http://127.0.0.1:{port}/")

    confined = execserver(*CONFINED, "--network-allow", "127.0.0.1", "--", *around)
    assert (confined.returncode, confined.stdout) == (7, b"")
    assert execserver("run", "--", *around).stdout == b"reached"


def test_a_denied_host_is_denied_however_it_is_allowed(execserver: CommandLine, port: int) -> None:
    options = ("--network-allow", "127.0.0.1", "--network-deny", f"127.0.0.1:{port}")

    denied = execserver(*CONFINED, *options, "--", *CURL, "--fail", f"http://127.0.0.1:{port}/")

    assert denied.returncode == 22
    assert b"127.0.0.1:%d (http): the settings or the rules deny it\n" % port in denied.stderr


def test_no_option_is_named_for_a_listed_name_without_a_public_address(execserver: CommandLine) -> None:
    options = ("--network-allow", "**.invalid")

    denied = execserver(*CONFINED, *options, "--", *CURL, "--fail", "http://a.invalid/")

    assert denied.stderr.decode().splitlines()[-1] == (
        "execserver: denied by the network proxy: a.invalid:80 (http): it has no address, or a private or "
        "local one"
    )


def test_without_a_terminal_a_question_denies_and_the_option_is_named(execserver: CommandLine) -> None:
    asking = [*EXECSERVER, *CONFINED, "--json", "--network-ask", "--", *CURL, "https://a.example"]
    done = subprocess.run(
        asking,
        env=execserver.environment,
        cwd=execserver.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,  # away from the terminal of the tests
        timeout=40,
    )

    assert done.stderr.decode() == (
        "execserver: denied by the network proxy: a.example:443 (https): no rule and no setting allows it; "
        "--network-allow a.example allows it\n"
    )
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["exitCode"] == 56
    assert last["networkDenied"] == [
        {"host": "a.example", "port": 443, "protocol": "https", "reason": "not_allowed"}
    ]


class Terminal:
    """`execserver run` with a terminal of its own."""

    def __init__(self, execserver: CommandLine, *arguments: str) -> None:
        self.text = ""
        self._descriptor, slave = pty.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *EXECSERVER, *arguments],
            env=execserver.environment,
            cwd=execserver.folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        os.set_blocking(self._descriptor, False)

    def shows(self, text: str) -> None:
        """Wait until it shows a text."""

        def found() -> bool:
            self._read()
            return text in self.text

        until(found)

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def status(self) -> int:
        """Wait for the end; the exit status."""

        def over() -> bool:
            self._read()
            return self._process.poll() is not None

        until(over)
        self._read()
        os.close(self._descriptor)
        return int(self._process.returncode)

    def _read(self) -> None:
        try:
            while data := os.read(self._descriptor, 65536):
                self.text += data.decode().replace("\r\n", "\n")
        except OSError:  # nothing more now, or at all
            return


def test_at_a_terminal_the_user_decides_once_about_each_host(execserver: CommandLine) -> None:
    # Literal addresses, which nothing has to look up. The connection may fail.
    script = (
        "for n in 1 2; do curl -sS -m 1 http://1.0.0.1:9/ http://1.1.1.1:9/ -w '%{http_code}\n'; done; cat"
    )
    terminal = Terminal(execserver, *CONFINED, "--network-ask", "--", "sh", "-c", script)

    terminal.shows("> ")
    assert "  host:     1.0.0.1\n  port:     9\n  protocol: http\n  | $ sh -c 'for n in 1 2;" in terminal.text
    terminal.type("perhaps\n")
    terminal.type("n\n")
    terminal.shows("  host:     1.1.1.1\n")
    terminal.type("y\n")

    assert terminal.status() == 0, terminal.text
    assert terminal.text.count("The command asks for a host") == 2
    assert terminal.text.count("1.0.0.1:9 (http): the user refused") == 1
    assert "1.1.1.1:9 (http)" not in terminal.text, "it was allowed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--network-allow", "a.example"), "--network-allow needs --sandbox read-only or workspace-write"),
        (("--network-ask",), "--network-ask needs --sandbox read-only or workspace-write"),
        (
            ("--sandbox", "danger-full-access", "--network-allow", "a.example"),
            "--network-allow needs --sandbox read-only or workspace-write: nothing else enforces it",
        ),
        (
            ("--sandbox", "read-only", "--network", "--network-allow", "a.example"),
            "--network-allow does not go with --network, which allows every host",
        ),
        (
            ("--sandbox", "read-only", "--network-deny", "a.example"),
            "--network-deny needs --network-allow or --network-ask",
        ),
        (
            ("--sandbox", "read-only", "--network-allow", "https://a.example"),
            "--network-allow: 'https://a.example': it has to be a host, without scheme and path",
        ),
        (("--sandbox", "read-only", "--network-ask", "-t"), "--network-ask does not go with --tty"),
        (("--sandbox", "read-only", "--network-ask", "-d"), "--network-ask does not go with --detach"),
    ],
)
def test_options_that_would_promise_too_much_are_refused(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["execserver", "run", *options, "--", "true"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
