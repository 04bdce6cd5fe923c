"""The web server of a console: who is admitted, what is refused, and what a page gets."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from execclient import Executor, Process, connect
from execclient.console import Console, ConsoleNotBuilt
from execclient.console import connection as page_connection
from execclient.console.pages import Pages
from execclient.console.server import MAX_UNOPENED
from execclient.govern.approvals import ApprovalRequest, Review
from execclient.govern.queue_approver import QueueApprover
from tests.conftest import StartServer
from tests.console.client import Page, RefusedError, address_of, page_at, token_of
from tests.console.conftest import EXECSERVER, Start, console_process, kill_server
from tests.support.wire import PATIENCE, Server, at_most


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[Console]:
    """One without a daemon: who is admitted does not depend on it."""
    async with Console(f"unix://{tmp_path}/none") as opened:
        yield opened


@pytest.fixture
async def executor(server: Server) -> AsyncIterator[Executor]:
    async with connect(server.url) as opened:
        yield opened


@pytest.fixture
async def page(server: Server) -> AsyncIterator[Page]:
    async with Console(server.url) as console, page_at(console.url) as opened:
        yield opened


async def get(link: str, path: str, **headers: str) -> http.client.HTTPResponse:
    """The response to a GET request, with `Host` and others as given."""

    def ask() -> http.client.HTTPResponse:
        with closing(http.client.HTTPConnection(address_of(link), timeout=PATIENCE)) as connection:
            connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
            for name, value in ({"Host": address_of(link)} | headers).items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            response.read()
            return response

    return await asyncio.to_thread(ask)


def reference(process: Process) -> dict[str, str]:
    return {"sessionId": process.session_id, "processId": process.id}


async def output_of(page: Page, process: Process, **params: Any) -> bytes:
    """All output of a process, page by page."""
    found, after = b"", 0
    while True:
        read = await page.request("read", **reference(process), afterSeq=after, waitMs=5000, **params)
        found += b"".join(base64.b64decode(each["chunk"]) for each in read["chunks"])
        if read["closed"] and read["nextSeq"] - 1 == after:
            return found
        after = read["nextSeq"] - 1


# -- the files of the page


@pytest.mark.parametrize(
    "path", ["/", "/index.html", "/console.js", "/console.css", "/licenses.txt", "/none"]
)
async def test_every_response_has_the_headers_that_protect_the_page(console: Console, path: str) -> None:
    response = await get(console.url, path)

    assert response.status == (404 if path == "/none" else 200)
    policy = dict(each.split(" ", 1) for each in str(response.headers["Content-Security-Policy"]).split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["connect-src"] == f"ws://{address_of(console.url)}/api"
    assert policy["require-trusted-types-for"] == "'script'"
    assert response.headers["X-Frame-Options"] == "DENY"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Set-Cookie" not in response.headers


@pytest.mark.parametrize("path", ["/../server.py", "/..%2fserver.py", "//etc/passwd", "/static/index.html"])
async def test_only_the_files_of_the_page_are_served(console: Console, path: str) -> None:
    assert (await get(console.url, path)).status == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:PORT", "127.0.0.1", "127.0.0.1:1", "[::1]:PORT", ""]
)
@pytest.mark.parametrize("path", ["/", "/api"])
async def test_a_name_that_was_made_to_resolve_to_this_machine_is_refused(
    console: Console, host: str, path: str
) -> None:
    port = address_of(console.url).partition(":")[2]

    assert (await get(console.url, path, Host=host.replace("PORT", port))).status == 403


async def test_the_name_localhost_is_admitted_with_its_own_origin(console: Console) -> None:
    port = address_of(console.url).partition(":")[2]

    response = await get(console.url, "/", Host=f"localhost:{port}")

    assert f"connect-src ws://localhost:{port}/api;" in str(response.headers["Content-Security-Policy"])


async def test_the_server_listens_on_loopback_only(console: Console) -> None:
    port = int(address_of(console.url).partition(":")[2])
    listening = await asyncio.to_thread(Path("/proc/self/net/tcp").read_text)

    assert f"0100007F:{port:04X} 00000000:0000 0A" in listening
    assert f"00000000:{port:04X} 00000000:0000 0A" not in listening


def test_without_the_built_page_the_error_has_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConsoleNotBuilt, match="make console"):
        Pages(tmp_path)


# -- who is admitted


@pytest.mark.parametrize(
    "origin",
    [None, "null", "http://evil.example", "http://127.0.0.1:1", "https://ADDRESS", "http://localhost:PORT"],
)
async def test_a_page_of_another_origin_is_refused_even_with_a_valid_token(
    console: Console, origin: str | None
) -> None:
    address = address_of(console.url)
    if origin is not None:
        origin = origin.replace("ADDRESS", address).replace("PORT", address.partition(":")[2])
    with pytest.raises(InvalidStatus, match="403"):
        async with connect_websocket(f"ws://{address}/api", origin=origin):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("secret", [{"token": "wrong"}, {"key": "wrong"}, {"token": ""}, {"token": "ü"}, {}])
async def test_a_wrong_token_closes_the_connection_and_is_not_logged(
    console: Console, secret: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConnectionClosed, match="1008"):
        async with page_at(console.url, **(secret or {"other": "x"})):
            pass
    assert [record.levelno for record in caplog.records if record.name == "execclient.console"] == [
        logging.WARNING
    ]
    assert "wrong" not in caplog.text
    assert token_of(console.url) not in caplog.text


async def test_a_link_counts_once_and_its_key_opens_the_page_again(console: Console) -> None:
    used = console.url
    async with page_at(used) as page:
        key = page.events["opened"]["key"]
        assert await console.next_url(used) == console.url != used
        with pytest.raises(ConnectionClosed, match="1008"):
            async with page_at(used):
                pass
    async with page_at(used, key=key) as again:
        assert again.events["opened"]["key"] == key
    async with page_at(console.url) as other:
        assert other.events["opened"]["key"] != key


@pytest.mark.parametrize(
    "message",
    [
        '{"id":1,"method":"read","params":{}}',
        "[]",
        "{",
        b"\x00",
        '{"id":1,"method":"open","params":{"token":"' + "x" * 5000 + '"}}',
    ],
    ids=["another request", "no request", "no JSON", "bytes", "long"],
)
async def test_before_the_token_nothing_else_is_answered(console: Console, message: str | bytes) -> None:
    address = address_of(console.url)
    async with connect_websocket(f"ws://{address}/api", origin=f"http://{address}") as socket:  # type: ignore[arg-type]
        await socket.send(message)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)


async def test_connections_that_present_no_token_are_closed_and_limited(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_connection, "OPEN_SECONDS", 3.0)
    address = address_of(console.url)
    async with AsyncExitStack() as stack:
        silent = [
            await stack.enter_async_context(
                connect_websocket(f"ws://{address}/api", origin=f"http://{address}")  # type: ignore[arg-type]
            )
            for _ in range(MAX_UNOPENED)
        ]
        with pytest.raises(InvalidStatus, match="503"):
            await stack.enter_async_context(
                connect_websocket(f"ws://{address}/api", origin=f"http://{address}")  # type: ignore[arg-type]
            )
        for each in silent:
            with pytest.raises(ConnectionClosed, match="no token was presented"):
                await asyncio.wait_for(each.recv(), PATIENCE)
    async with page_at(console.url) as page:
        assert page.events["opened"]["write"] is False


async def test_an_upgrade_that_fails_takes_no_place(console: Console) -> None:
    address = address_of(console.url)
    for _ in range(MAX_UNOPENED + 1):
        assert (await get(console.url, "/api", Origin=f"http://{address}")).status == 400
    async with page_at(console.url):
        pass


# -- what a page gets


async def test_a_page_lists_processes_of_all_sessions_and_reads_their_output(
    page: Page, executor: Executor
) -> None:
    process = await executor.start(["sh", "-c", "echo one; echo two >&2; exit 3"])

    assert await output_of(page, process) in (b"one\ntwo\n", b"two\none\n")
    ended = await page.until(
        "processes", lambda each: any(entry["exitCode"] == 3 for entry in each["processes"])
    )
    assert ended["state"] == "connected"
    assert (await page.process(process.id))["argv"] == ["sh", "-c", "echo one; echo two >&2; exit 3"]


async def test_an_answer_has_at_most_the_bytes_that_a_page_draws(page: Page, executor: Executor) -> None:
    process = await executor.start(["head", "-c", "3000000", "/dev/zero"])
    await process.wait_closed()

    first = await page.request("read", **reference(process), afterSeq=0)
    assert 0 < sum(len(base64.b64decode(each["chunk"])) for each in first["chunks"]) <= 256 << 10
    with pytest.raises(RefusedError, match="maxBytes"):
        await page.request("read", **reference(process), afterSeq=0, maxBytes=1 << 20)
    assert await output_of(page, process) == b"\0" * 3_000_000


async def test_reading_goes_on_when_the_server_is_killed(
    page: Page, executor: Executor, server: Server
) -> None:
    process = await executor.start(["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.3; done"])
    reading = asyncio.create_task(output_of(page, process))
    await asyncio.sleep(0.7)
    kill_server(server)

    assert await reading == b"".join(b"%d\n" % number for number in range(1, 9))


async def test_a_page_goes_on_at_a_daemon_that_was_started_again(tmp_path: Path) -> None:
    with Server(f"unix://{tmp_path}/other") as first:
        async with Console(first.url) as other, page_at(other.url) as page:
            await page.until("processes", lambda each: each["state"] == "connected")
            await asyncio.to_thread(first.stop)
            await page.until("processes", lambda each: each["state"] == "reconnecting")
            with Server(first.url):
                async with connect(first.url) as executor:
                    process = await executor.start(["echo", "back"])
                    assert await output_of(page, process) == b"back\n"
                await page.until("processes", lambda each: each["state"] == "connected")


async def test_requests_that_were_given_up_hold_up_no_others(page: Page, executor: Executor) -> None:
    process = await executor.start(["sleep", "60"])
    await page.process(process.id)
    params = {**reference(process), "afterSeq": 0, "waitMs": 20_000}
    for first in range(10_000, 10_300, 50):
        numbers = range(first, first + 50)
        for number in numbers:
            await page.socket.send(json.dumps({"id": number, "method": "read", "params": params}))
        await asyncio.sleep(0.05)  # most of them have reached the daemon
        for number in numbers:
            await page.socket.send(json.dumps({"id": 0, "method": "cancel", "params": {"id": number}}))
    with at_most(5):
        await page.request("read", **reference(process), afterSeq=0)
        await page.process((await executor.start(["true"])).id)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("input", {"data": "exit\n"}),
        ("closeInput", {}),
        ("resize", {"rows": 10, "cols": 10}),
        ("signal", {"signal": "SIGKILL"}),
        ("kill", {}),
    ],
)
async def test_without_write_the_server_refuses_every_act(
    page: Page, executor: Executor, method: str, params: dict[str, Any]
) -> None:
    process = await executor.start(["cat"], stdin=True)

    with pytest.raises(RefusedError, match="start it with --write"):
        await page.request(method, **reference(process), **params)
    assert process.exit_code is None


@pytest.mark.parametrize("method", ["session/end", "process/start", "fs/writeFile", "open", "__init__"])
async def test_a_page_reaches_no_other_methods(page: Page, method: str) -> None:
    with pytest.raises(RefusedError, match="there is no method"):
        await page.request(method)


async def test_with_write_what_is_typed_arrives_in_order(executor: Executor, server: Server) -> None:
    async with Console(server.url, write=True) as console, page_at(console.url) as page:
        process = await executor.start(["cat"], stdin=True)
        await page.process(process.id)
        texts = [f"{number}\n" for number in range(50)]
        await asyncio.gather(*(page.request("input", **reference(process), data=text) for text in texts))
        await page.request("closeInput", **reference(process))
        assert await output_of(page, process) == "".join(texts).encode()


async def test_with_write_a_terminal_is_resized_and_killed(executor: Executor, server: Server) -> None:
    async with Console(server.url, write=True) as console, page_at(console.url) as page:
        process = await executor.start(["sh", "-c", "read line; stty size; sleep 60"], tty=True)
        await page.process(process.id)
        await page.request("resize", **reference(process), rows=11, cols=33)
        await page.request("input", **reference(process), data="go\r")
        async with asyncio.timeout(PATIENCE):
            while b"11 33" not in (output := b"".join([each.data for each in (await process.read()).chunks])):
                await asyncio.sleep(0.02)
        await page.request("signal", **reference(process), signal="SIGTERM")
        assert await process.wait(PATIENCE) == 128 + signal.SIGTERM, output


async def test_a_page_that_leaves_ends_no_process(executor: Executor, server: Server) -> None:
    process = await executor.start(["cat"], stdin=True)
    async with Console(server.url, write=True) as console:
        async with page_at(console.url) as page:
            await page.process(process.id)
            await page.request("input", **reference(process), data="typed\n")
        async with page_at(console.url) as page:
            await page.process(process.id)
    await process.close_stdin()
    assert b"".join([data async for _, data in process]) == b"typed\n"


# -- files


@pytest.fixture(params=["sandbox", "no sandbox"])
def confining(request: pytest.FixtureRequest, start_server: StartServer, tmp_path: Path) -> Server:
    flags = [] if request.param == "sandbox" else ["--bubblewrap", "/bin/false"]
    return start_server(f"unix://{tmp_path}/files", *flags)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "sub").mkdir(parents=True)
    (root / "text").write_text("a text\n")
    (root / "sub" / "deep").write_text("deep\n")
    (root / "inside").symlink_to("text")
    (root / "binary").write_bytes(b"\xff\0\1")
    (root / "large").write_bytes(b"x" * ((1 << 20) + 1))
    os.mkfifo(root / "pipe")
    (tmp_path / "secret").write_text("secret\n")
    (root / "outside").symlink_to(tmp_path / "secret")
    (root / "above").symlink_to(tmp_path)
    return root


async def test_files_below_the_folder_of_a_process_are_shown_and_no_others(
    confining: Server, folder: Path
) -> None:
    async with (
        connect(confining.url) as executor,
        Console(confining.url) as console,
        page_at(console.url) as page,
    ):
        process = await executor.start(["sleep", "60"], cwd=folder)
        await page.process(process.id)

        async def read(path: str) -> Any:
            return await page.request("readFile", **reference(process), path=path)

        listed = await page.request("listFiles", **reference(process), path="")
        kinds = {each["name"]: each["kind"] for each in listed["entries"]}
        assert {"sub": "folder", "text": "file", "inside": "file", "pipe": "other"}.items() <= kinds.items()
        assert await page.request("listFiles", **reference(process), path="sub") == {
            "entries": [{"name": "deep", "kind": "file"}],
            "total": 1,
        }
        assert await read("text") == {"kind": "text", "size": 7, "text": "a text\n"}
        assert (await read("inside"))["text"] == "a text\n"
        assert (await read("sub/../sub/deep"))["text"] == "deep\n"
        assert await read("binary") == {"kind": "binary", "size": 3}
        assert await read("large") == {"kind": "large", "size": (1 << 20) + 1}
        for path in (
            "outside",
            "above/secret",
            "../secret",
            str(folder.parent / "secret"),
            "sub/../../secret",
        ):
            with pytest.raises(RefusedError):
                await read(path)
        for path in ("above", "..", "/"):
            with pytest.raises(RefusedError):
                await page.request("listFiles", **reference(process), path=path)


# -- approvals

QUESTION = ApprovalRequest(
    call_id="call_1",
    kind="command",
    command="git push",
    argv=("git", "push"),
    cwd="/srv/work",
    reason="the branch is ready",
    amendment=("git", "push"),
    permits=("run without a sandbox",),
    retry=False,
    tool="exec_command",
)


async def test_the_first_answer_of_two_pages_counts(server: Server) -> None:
    approver = QueueApprover()
    async with (
        Console(server.url, approver=approver) as console,
        page_at(console.url) as one,
        page_at(console.url) as other,
    ):
        asked = asyncio.create_task(approver.review(QUESTION))
        for page in (one, other):
            (shown,) = await page.until("approvals", len)
            assert (shown["command"], shown["cwd"], shown["reason"]) == (
                "git push",
                "/srv/work",
                "the branch is ready",
            )
            assert shown["decisions"] == [*QUESTION.available_decisions, "acceptForSession", "decline"]
        amendment = {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["rm"]}}
        with pytest.raises(RefusedError, match="not offered"):
            await one.request("answer", id=shown["id"], decision=amendment)
        assert await one.request("answer", id=shown["id"], decision="decline", reason="no") == {
            "counts": True
        }
        assert await other.request("answer", id=shown["id"], decision="accept") == {"counts": False}
        assert await asked == Review("denied", "no")
        for page in (one, other):
            await page.until("approvals", lambda shown: not shown)


async def test_a_question_that_is_withdrawn_disappears(server: Server) -> None:
    approver = QueueApprover()
    async with Console(server.url, approver=approver) as console, page_at(console.url) as page:
        asked = asyncio.create_task(approver.review(QUESTION))
        await page.until("approvals", len)
        asked.cancel()
        await page.until("approvals", lambda shown: not shown)


# -- a daemon that shows only the sessions of the client, as an executor behind a relay does


async def test_recorded_sessions_are_shown_and_held_no_longer_than_a_page_is_open(
    start_server: StartServer, tmp_path: Path
) -> None:
    daemon = await asyncio.to_thread(start_server, "ws://127.0.0.1:0")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "EXECSERVER_URL": daemon.url}

    async def execserver(*arguments: str) -> tuple[int | None, str]:
        running = await asyncio.create_subprocess_exec(
            *(*EXECSERVER, *arguments), env=environment, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
        )
        output, _ = await running.communicate()
        return running.returncode, output.decode().strip()

    def detach(*argv: str) -> Any:
        return execserver("run", "--detach", "--ttl", "5m", *argv)

    with console_process(daemon.url, folder=tmp_path) as console:
        _, first = await detach("sh", "-c", "echo one; sleep 60")
        async with page_at(console.link) as page:
            entry = await page.process(first)
            shown = {name: entry[name] for name in ("sessionId", "processId")}
            read = await page.request("read", **shown, afterSeq=0, waitMs=5000)
            assert base64.b64decode(read["chunks"][0]["chunk"]) == b"one\n"
            _, second = await detach("sleep", "60")
            assert (await page.process(second))["sessionId"] != entry["sessionId"]
        assert await execserver("logs", first) == (0, "one")


# -- the command


async def test_the_command_prints_a_link_and_a_fresh_one_once_it_was_used(start_console: Start) -> None:
    console = await asyncio.to_thread(start_console)
    async with page_at(console.link) as page:
        fresh = await asyncio.to_thread(console.next_link)
        assert address_of(fresh) == address_of(console.link)
        assert fresh != console.link
        async with page_at(fresh):
            pass
        assert await asyncio.to_thread(console.stop) == 0
        with pytest.raises(ConnectionClosed, match="the console has ended"):
            await page.socket.recv()
