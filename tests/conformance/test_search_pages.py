"""The pages of `fs/search` and `fs/glob`: their limits, their cursors, and what happens to them in faults."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conformance.endpoint import Endpoint
from tests.conformance.test_search import tree
from tests.conformance.test_sessions import resume
from tests.conformance.test_survive import kill_server
from tests.sandbox.profiles import READ_ONLY, context
from tests.support.noise import noise_watched
from tests.support.servers import searching
from tests.support.wire import PATIENCE, Client, Json, at_most, encode, path_uri, wait_gone

FILES, LINES = 60, 40


@pytest.fixture
def base(here: Path) -> Path:
    """Files with lines that all have `word`; a program that prints them fills its pipe."""
    (here / "tree").mkdir()
    for number in range(FILES):
        text = "".join(f"{number} {line} word {'x' * 300}\n" for line in range(LINES))
        (here / "tree" / f"{number}.txt").write_text(text)
    return here / "tree"


def request(base: Path, **params: Json) -> Json:
    return {"path": path_uri(base), "pattern": "word", **params}


def pages(client: Client, base: Path, **params: Json) -> Iterator[Json]:
    """All pages of a search."""
    cursor = None
    while True:
        page = client.call("fs/search", request(base, **params, cursor=cursor))
        yield page
        cursor = page["cursor"]
        assert (cursor is None) == (page["truncated"] is None)
        if cursor is None:
            return


ENDED = "the search was ended, because `fs/endSearch` was called"


def matches(page: Json) -> list[tuple[str, int]]:
    return [(file["path"], match["line"]) for file in page["files"] for match in file["matches"]]


def every_match(base: Path) -> list[tuple[str, int]]:
    return sorted((path_uri(path), line) for path in base.iterdir() for line in range(1, LINES + 1))


def wait_for_programs(server: int, count: int) -> list[psutil.Process]:
    """`programs`, once there are so many."""
    deadline = time.monotonic() + 10
    while len(found := searching(server)) != count:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


@pytest.mark.everywhere
@pytest.mark.statement("Z12")
@pytest.mark.parametrize("limits", [{"maxMatches": 70}, {"maxBytes": 5000}, {"maxBytes": 1}, {"timeMs": 1}])
def test_all_pages_together_are_the_search(client: Client, base: Path, limits: Json) -> None:
    if limits == {"maxBytes": 1}:
        base = tree(base / "small", *map(str, range(20)))
    found, limit = [], {"maxMatches": "matches", "maxBytes": "bytes", "timeMs": "time"}[next(iter(limits))]
    for page in pages(client, base, **limits):
        assert page["truncated"] in (limit, None)
        assert len(matches(page)) <= limits.get("maxMatches", 100_000)
        assert limit != "bytes" or len(matches(page)) <= 1 + limits["maxBytes"] // 300
        assert (page["searchedFiles"] is None) == (page["cursor"] is not None)
        found += matches(page)
    wanted = every_match(base) if base.name == "tree" else [(path_uri(path), 1) for path in base.iterdir()]
    assert sorted(found) == sorted(wanted)


@pytest.mark.statement("Z12")
def test_files_and_globs_have_pages_too(client: Client, base: Path) -> None:
    found = [
        file["path"] for page in pages(client, base, output="files", maxMatches=7) for file in page["files"]
    ]
    assert sorted(found) == sorted(map(path_uri, base.iterdir()))
    for limits in ({"maxFiles": 7}, {"maxBytes": 500}):
        cursor, names = None, []
        while True:
            page = client.call(
                "fs/glob", {"path": path_uri(base), "globs": ["*"], "cursor": cursor, **limits}
            )
            names += page["paths"]
            cursor = page["cursor"]
            if cursor is None:
                break
            assert page["truncated"] == ("files" if "maxFiles" in limits else "bytes")
        assert sorted(names) == sorted(map(path_uri, base.iterdir()))


@pytest.mark.statement("Z12")
def test_a_page_that_has_just_room_for_all_is_the_last(client: Client, here: Path) -> None:
    tree(here, "a", "b")
    # Its program may end too late for a page to know that it is the last.
    asked = (client.call("fs/search", request(here, maxMatches=2)) for _ in range(5))
    assert (None, None, 2) in ((page["truncated"], page["cursor"], page["searchedFiles"]) for page in asked)


@pytest.mark.statement("Z12")
@pytest.mark.parametrize(
    "limit", [{"maxMatches": 0}, {"maxMatches": 100_001}, {"maxBytes": (16 << 20) + 1}, {"timeMs": 600_001}]
)
def test_a_limit_beyond_its_maximum_is_refused(client: Client, base: Path, limit: Json) -> None:
    error = client.refused("fs/search", request(base, **limit))
    assert (error.code, next(iter(limit)) in error.message) == (-32602, True)


@pytest.mark.statement("Z13")
@pytest.mark.parametrize("sandbox", [None, context(READ_ONLY)])
def test_the_newest_page_can_be_requested_again(client: Client, base: Path, sandbox: Json) -> None:
    params = request(base, maxMatches=50, searchId="s", sandbox=sandbox)
    first = client.call("fs/search", params)
    assert client.call("fs/search", params | {"maxMatches": 5}) == first
    second = client.call("fs/search", params | {"cursor": first["cursor"]})
    assert client.call("fs/search", params | {"cursor": first["cursor"]}) == second
    third = client.call("fs/search", params | {"cursor": second["cursor"]})
    assert len({*matches(first), *matches(second), *matches(third)}) == 150
    for old in (None, first["cursor"]):
        assert client.refused("fs/search", params | {"cursor": old}).code == -32600
    for odd in ("", "x", f"{second['cursor']}0", third["cursor"].replace(":", ":-"), "é:1", ":"):
        assert client.refused("fs/search", params | {"cursor": odd}).code == -32600
    assert client.call("fs/search", params | {"cursor": second["cursor"]}) == third


@pytest.mark.statement("Z13")
def test_the_last_page_can_be_requested_again(client: Client, base: Path) -> None:
    params = request(base, maxMatches=FILES * LINES - 1)
    first = client.call("fs/search", params | {"maxBytes": 16 << 20})
    last = client.call("fs/search", params | {"cursor": first["cursor"]})
    assert (len(matches(last)), last["cursor"]) == (1, None)
    assert client.call("fs/search", params | {"cursor": first["cursor"]}) == last


@pytest.mark.statement("Z14")
def test_other_parameters_are_refused(client: Client, base: Path) -> None:
    params = request(base, maxMatches=5, searchId="s")
    cursor = client.call("fs/search", params)["cursor"]
    for other in ({"pattern": "wor"}, {"hidden": True}, {"globs": ["*"]}, {"sandbox": context(READ_ONLY)}):
        for mine in ({"cursor": cursor}, {"cursor": None}):
            error = client.refused("fs/search", params | mine | other)
            assert (error.code, next(iter(other)) in error.message) == (-32600, True)
    glob = {"path": path_uri(base), "globs": ["*"], "cursor": cursor}
    assert client.refused("fs/glob", glob).code == -32600
    assert client.call("fs/search", params | {"cursor": cursor, "maxMatches": 6, "timeMs": 5000})


@pytest.mark.transports("unix")
@pytest.mark.statement("Z15")
@pytest.mark.parametrize("sandbox", [None, context(READ_ONLY)])
def test_a_fifth_search_ends_the_oldest(endpoint: Endpoint, base: Path, sandbox: Json) -> None:
    private = endpoint.private()
    client = private.connect()
    params = request(base, maxMatches=1, sandbox=sandbox)
    cursors = [client.call("fs/search", params)["cursor"] for _ in range(4)]
    cursors[0] = client.call("fs/search", params | {"cursor": cursors[0]})["cursor"]
    assert client.call("fs/search", params)["cursor"] is not None
    wait_for_programs(private.server.pid, 4)
    assert client.refused("fs/search", params | {"cursor": cursors[1]}).code == -32600
    for cursor in (cursors[0], cursors[2], cursors[3]):
        assert client.call("fs/search", params | {"cursor": cursor})
    client.call("session/end")
    wait_for_programs(private.server.pid, 0)


@pytest.mark.transports("unix")
@pytest.mark.statement("Z15")
def test_a_search_that_waits_takes_no_time_of_a_processor(endpoint: Endpoint, base: Path) -> None:
    private = endpoint.private()
    client = private.connect()
    assert client.call("fs/search", request(base, maxMatches=1))["cursor"] is not None
    (program,) = wait_for_programs(private.server.pid, 1)
    deadline = time.monotonic() + PATIENCE
    used = 0.05
    while used >= 0.05:  # at first it fills its pipe
        assert time.monotonic() < deadline
        before = program.cpu_times()
        time.sleep(1)
        after = program.cpu_times()
        used = after.user + after.system - before.user - before.system


@pytest.mark.transports("unix")
@pytest.mark.statement("Z16")
def test_a_lost_connection_loses_and_doubles_nothing(endpoint: Endpoint, base: Path) -> None:
    private = endpoint.private()
    found, cursor, session = [], None, None
    while True:
        client = resume(private, session) if session else private.connect()
        session = client.session_id
        params = request(base, maxMatches=300, searchId="s", cursor=cursor)
        client.request("fs/search", params)  # the answer is lost, perhaps before the page is complete
        client.close()
        with resume(private, session) as again:
            page = again.call("fs/search", params)
        found += matches(page)
        cursor = page["cursor"]
        if cursor is None:
            break
    assert sorted(found) == every_match(base)


@pytest.fixture
def endless(here: Path) -> Path:
    """A folder that takes a minute to search, and has no match: 4000 names of a file of 20 MB."""
    folder = here / "endless"
    folder.mkdir()
    (folder / "0").write_bytes(b"some other text in a line\n" * 800_000)
    for number in range(1, 4000):
        (folder / str(number)).hardlink_to(folder / "0")
    return folder


@pytest.mark.transports("unix")
@pytest.mark.statement("Z16")
@pytest.mark.parametrize("sandbox", [None, context(READ_ONLY)])
def test_a_first_request_without_a_name_ends_with_its_connection(
    endpoint: Endpoint, endless: Path, sandbox: Json
) -> None:
    private = endpoint.private()
    client = private.connect()
    client.request("fs/search", request(endless, sandbox=sandbox))
    wait_for_programs(private.server.pid, 1)
    client.close()
    wait_for_programs(private.server.pid, 0)


@pytest.mark.transports("unix")
@pytest.mark.statement("Z16")
@pytest.mark.parametrize("sandbox", [None, context(READ_ONLY)])
def test_a_dead_server_leaves_no_program(endpoint: Endpoint, endless: Path, sandbox: Json) -> None:
    private = endpoint.private()
    client = private.connect()
    client.request("fs/search", request(endless, searchId="s", sandbox=sandbox))
    (program,) = wait_for_programs(private.server.pid, 1)
    kill_server(private)
    with resume(private, client.session_id) as again:
        assert wait_gone(program.pid)
        error = again.refused("fs/search", request(endless, cursor="0123:1"))
        assert (error.code, "search again" in error.message) == (-32600, True)


@pytest.mark.transports("unix")
@pytest.mark.statement("Z17")
@pytest.mark.parametrize("sandbox", [None, context(READ_ONLY)])
def test_a_search_is_ended_by_its_name(endpoint: Endpoint, endless: Path, sandbox: Json) -> None:
    private = endpoint.private("--concurrent-requests", "2")
    client = private.connect()
    number = client.request("fs/search", request(endless, searchId="s", sandbox=sandbox))
    other = client.request("fs/search", request(endless, searchId="t", sandbox=sandbox))
    wait_for_programs(private.server.pid, 2)
    with at_most(5):
        assert client.call("fs/endSearch", {"searchId": "s"}) == {}
        assert client.failure(number).code == -32600
        assert client.call("fs/endSearch", {"searchId": "s"}) == {}
        assert client.call("fs/endSearch", {"searchId": "none"}) == {}
    assert not client.answered(other)
    wait_for_programs(private.server.pid, 1)
    client.call("fs/endSearch", {"searchId": "t"})
    assert client.failure(other).code == -32600


@pytest.mark.transports("unix")
@pytest.mark.statement("Z17")
@pytest.mark.parametrize("sandbox", [None, context(READ_ONLY)])
def test_a_search_that_is_only_beginning_is_ended_by_its_name(
    endpoint: Endpoint, endless: Path, sandbox: Json
) -> None:
    private = endpoint.private()
    client = private.connect()
    search = ("fs/search", request(endless, searchId="s", sandbox=sandbox))
    behind = ("fs/writeFile", {"path": search[1]["path"] + "/new", "dataBase64": encode(bytes(3 << 20))})
    again = ("fs/search", request(endless, searchId="s", sandbox=sandbox, timeMs=100))
    end = ("fs/endSearch", {"searchId": "s"})
    first, _, last = client.pipeline(search, end, again)
    assert ENDED in client.failure(first).message
    assert client.result(last)["truncated"] == "time"
    client.call(*end)
    _, waiting, _ = client.pipeline(behind, search, end)
    assert ENDED in client.failure(waiting).message
    for milliseconds in range(20):
        number = client.request(*search)
        time.sleep(milliseconds / 1000)
        assert client.call(*end) == {}
        assert ENDED in client.failure(number).message
    wait_for_programs(private.server.pid, 0)


@pytest.mark.transports("unix")
@pytest.mark.statement("Z18")
@pytest.mark.parametrize("sandbox", [None, context(READ_ONLY)])
@pytest.mark.parametrize("method", ["fs/search", "fs/glob"])
def test_a_killed_program_is_an_error(
    endpoint: Endpoint, here: Path, base: Path, method: str, sandbox: Json
) -> None:
    private = endpoint.private()
    client = private.connect()
    for number in range(8000):
        (base / f"{'name' * 20}{number}").touch()
    params: Json = {"path": path_uri(base), "sandbox": sandbox}
    params |= (
        {"pattern": "word", "maxMatches": 1} if method == "fs/search" else {"globs": ["*"], "maxFiles": 1}
    )
    cursor = client.call(method, params)["cursor"]
    (program,) = wait_for_programs(private.server.pid, 1)
    program.kill()
    limit = "maxMatches" if method == "fs/search" else "maxFiles"
    error = client.refused(method, params | {"cursor": cursor, limit: 100_000, "maxBytes": 16 << 20})
    assert (error.code, "ended by signal 9" in error.message) == (-32603, True)
    assert client.refused(method, params | {"cursor": cursor}).code == -32600
    assert client.call(method, params)["cursor"] is not None


@pytest.mark.transports("unix")
@pytest.mark.statement("S16", "Z12")
def test_no_other_request_waits_for_a_large_page(endpoint: Endpoint, base: Path) -> None:
    client, other = endpoint.connect(), endpoint.connect()
    for number in range(300):
        (base / f"more{number}").write_text("word\n" * 300)
    done, times = threading.Event(), []

    def ask() -> None:
        while not done.is_set():
            began = time.monotonic()
            other.call("environment/status")
            times.append(time.monotonic() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        with noise_watched() as noise:
            page = client.call("fs/search", request(base, maxMatches=100_000, maxBytes=16 << 20), timeout=60)
    finally:
        done.set()
        thread.join()
    assert len(matches(page)) > 50_000
    assert sorted(times)[len(times) * 95 // 100] < 0.1 + noise.allowance


@pytest.mark.transports("unix")
@pytest.mark.statement("Z15")
def test_the_end_of_the_daemon_ends_searches(endpoint: Endpoint, endless: Path) -> None:
    private = endpoint.private()
    client = private.connect()
    client.request("fs/search", request(endless))
    (program,) = wait_for_programs(private.server.pid, 1)
    os.kill(private.server.pid, signal.SIGTERM)
    assert wait_gone(program.pid)
