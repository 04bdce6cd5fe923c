"""`fs/watchMissing`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.support.wire import Client, Json, path_uri


def watch(client: Client, number: int, *missing: Path, present: Path | None = None) -> bool:
    params: dict[str, Json] = {"watchId": number, "missing": [path_uri(path) for path in missing]}
    if present is not None:
        params["present"] = path_uri(present)
    result = client.call("fs/watchMissing", params)
    assert set(result) == {"watching"}
    assert isinstance(result["watching"], bool)
    return bool(result["watching"])


def fired(client: Client) -> list[int]:
    return [
        note["params"]["watchId"] for note in client.notifications if note["method"] == "fs/missingChanged"
    ]


def wait_fired(client: Client, *numbers: int) -> None:
    client.wait_until(lambda: len(fired(client)) >= len(numbers), what="fs/missingChanged")
    assert fired(client) == list(numbers)


def later(client: Client, folder: Path, number: int) -> None:
    """Go through one whole watch that does fire: what should have fired before has, by then."""
    assert watch(client, number, folder / f"sentinel{number}")
    (folder / f"sentinel{number}").touch()
    client.wait_until(lambda: number in fired(client), what="the sentinel")


@pytest.mark.everywhere
@pytest.mark.statement("M1")
def test_fires_once(client: Client, here: Path) -> None:
    assert watch(client, 1, here / "a", here / "b")
    (here / "b").touch()
    wait_fired(client, 1)
    (here / "a").touch()
    (here / "b").unlink()
    later(client, here, 2)
    assert fired(client) == [1, 2]
    notes = [note for note in client.notifications if note["method"] == "fs/missingChanged"]
    assert notes[0] == {"method": "fs/missingChanged", "params": {"watchId": 1}}


@pytest.mark.statement("M1")
@pytest.mark.parametrize("how", ["mkdir", "touch", "symlink", "rename"])
def test_however_it_appears(client: Client, here: Path, how: str) -> None:
    (here / "source").touch()
    assert watch(client, 1, here / "a")
    match how:
        case "mkdir":
            (here / "a").mkdir()
        case "touch":
            (here / "a").touch()
        case "symlink":
            (here / "a").symlink_to("nowhere")
        case _:
            (here / "source").rename(here / "a")
    wait_fired(client, 1)


@pytest.mark.statement("M1")
def test_missing_ancestor_appears(client: Client, here: Path) -> None:
    assert watch(client, 1, here / "not" / "yet" / "there")
    (here / "not").mkdir()
    wait_fired(client, 1)


@pytest.mark.statement("M1", "M2")
def test_present_path_disappears(client: Client, here: Path) -> None:
    (here / "d").mkdir()
    assert not watch(client, 1, here / "n", present=here / "gone")
    assert watch(client, 2, here / "n", present=here / "d")
    (here / "d").rmdir()
    wait_fired(client, 2)


@pytest.mark.statement("M1")
def test_other_names_in_the_folder_do_not_fire(client: Client, here: Path) -> None:
    assert watch(client, 1, here / "a")
    for number in range(50):
        (here / f"other{number}").touch()
    assert fired(client) == []
    (here / "a").touch()
    wait_fired(client, 1)


@pytest.mark.everywhere
@pytest.mark.statement("M2")
def test_refused(client: Client, here: Path) -> None:
    (here / "a").touch()
    (here / "dangling").symlink_to("nowhere")
    assert not watch(client, 1, here / "a")
    assert not watch(client, 2, here / "n", here / "a")
    assert not watch(client, 3, here / "dangling")
    assert not watch(client, 4)
    many = [here / f"m{number}" for number in range(65)]
    assert not watch(client, 5, *many)
    assert watch(client, 6, *many[:64])


@pytest.mark.statement("M2")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may look everywhere")
def test_path_that_cannot_be_looked_at(client: Client, here: Path) -> None:
    (here / "locked").mkdir(0)
    assert not watch(client, 1, here / "locked" / "x")


@pytest.mark.statement("M3")
def test_newer_watch_replaces_the_older(client: Client, here: Path) -> None:
    assert watch(client, 1, here / "a")
    assert watch(client, 2, here / "b")
    (here / "a").touch()
    (here / "b").touch()
    wait_fired(client, 2)
    later(client, here, 3)
    assert fired(client) == [2, 3]


@pytest.mark.statement("M3")
def test_refused_newer_watch_ends_the_older(client: Client, here: Path) -> None:
    (here / "exists").touch()
    assert watch(client, 1, here / "a")
    assert not watch(client, 2, here / "exists")
    (here / "a").touch()
    later(client, here, 3)
    assert fired(client) == [3]


@pytest.mark.statement("M4")
def test_number_that_is_not_greater_changes_nothing(client: Client, here: Path) -> None:
    assert not watch(client, 0, here / "a")
    assert watch(client, 5, here / "a")
    for number in (5, 4, 0):
        assert not watch(client, number, here / "b")
    (here / "b").touch()
    (here / "a").touch()
    wait_fired(client, 5)


@pytest.mark.statement("M3", "H28")
def test_watches_belong_to_their_connection(endpoint: Endpoint, here: Path) -> None:
    one, two = endpoint.connect(), endpoint.connect()
    assert watch(one, 1, here / "a")
    assert watch(two, 1, here / "b")
    (here / "b").touch()
    wait_fired(two, 1)
    (here / "a").touch()
    wait_fired(one, 1)


@pytest.mark.statement("E11", "B2", "U3")
def test_parameters(client: Client) -> None:
    wrong: list[dict[str, Json]] = [
        {"watchId": 1},
        {"missing": []},
        {"watchId": -1, "missing": []},
        {"watchId": 1, "missing": ["/abs"]},
        {"watchId": 1, "missing": "file:///a"},
        {"watchId": 1, "missing": [], "present": "/abs"},
    ]
    for params in wrong:
        assert client.refused("fs/watchMissing", params).code == -32602
