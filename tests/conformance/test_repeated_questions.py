"""What is asked again and again, word for word: the answer is that of the first time, or of now."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.support.wire import Client, Json, WebSocketTransport, encode, path_uri

METADATA = "fs/getMetadata"


def asked(number: int, method: str, params: Json = None) -> bytes:
    """A request as the stock agent writes it: no blanks, the id first."""
    message = {"id": number, "method": method} | ({} if params is None else {"params": params})
    return json.dumps(message, separators=(",", ":")).encode()


def send(client: Client, *messages: bytes) -> None:
    """All of them in one write."""
    if isinstance(client.transport, WebSocketTransport):
        frame = client.transport.frame
        data = b"".join(frame(WebSocketTransport.TEXT, message) for message in messages)
    else:
        data = b"".join(message + b"\n" for message in messages)
    client.transport.send_bytes(data)


def path_of(path: Path) -> dict[str, Json]:
    return {"path": path_uri(path)}


@pytest.mark.everywhere
def test_every_time_the_answer_is_that_of_the_first_time(client: Client, here: Path) -> None:
    (here / "file").write_bytes(b"content")
    (here / "link").symlink_to("file")
    (here / "dangling").symlink_to("nowhere")
    questions: list[tuple[str, Json]] = [
        (METADATA, path_of(here / "file")),
        (METADATA, path_of(here)),
        (METADATA, path_of(here / "link")),
        (METADATA, path_of(here / "dangling")),
        (METADATA, path_of(here / "missing")),
        (METADATA, path_of(Path("/proc/self/status"))),
        (METADATA, path_of(here / "file") | {"sandbox": None}),
        (METADATA, {"path": f"file://{here}/nul%00"}),
        (METADATA, {"path": f"file://{here}/%ff"}),
        ("environment/info", None),
        ("environment/status", None),
        ("fs/canonicalize", path_of(here / "link")),
        ("fs/readDirectory", path_of(here)),
    ]
    for begin, question in enumerate(questions):
        numbers = range(100 + 10 * begin, 107 + 10 * begin)
        replies = []
        for number in numbers[:4]:  # one by one, then three at once
            send(client, asked(number, *question))
            replies.append(client.reply(number))
        send(client, *(asked(number, *question) for number in numbers[4:]))
        replies += [client.reply(number) for number in numbers[4:]]
        told = [{name: value for name, value in reply.items() if name != "id"} for reply in replies]
        assert told == [told[0]] * 7, question


@pytest.mark.everywhere
def test_a_question_sees_what_was_done_before_it_in_the_same_write(client: Client, here: Path) -> None:
    path = here / "file"
    path.write_bytes(b"")
    question = path_of(path)
    for number in range(3):
        send(client, asked(number + 100, METADATA, question))
        client.reply(number + 100)

    for size in range(1, 30):
        begin = 1000 * size
        write = asked(begin + 2, "fs/writeFile", question | {"dataBase64": encode(b"x" * size)})
        look = [asked(begin + number, METADATA, question) for number in (0, 1, 3, 4)]
        send(client, look[0], look[1], write, look[2], look[3])
        sizes = [client.result(begin + number)["size"] for number in (0, 1, 3, 4)]
        assert sizes == [size - 1, size - 1, size, size]


def test_what_is_said_of_a_file_is_what_it_is_now(client: Client, here: Path) -> None:
    path = here / "file"
    question = path_of(path)

    def look(number: int) -> Json:
        send(client, asked(number, METADATA, question))
        return client.reply(number)

    path.write_bytes(b"1")
    assert [look(number)["result"]["size"] for number in range(100, 104)] == [1] * 4
    path.write_bytes(b"22")
    assert look(104)["result"]["size"] == 2
    os.utime(path, (5, 5))
    assert look(105)["result"]["modifiedAtMs"] == 5000
    path.unlink()
    assert look(106)["error"]["code"] == -32004
    path.mkdir()
    assert look(107)["result"]["isDirectory"]
    path.rmdir()
    path.symlink_to(here)  # another test looks at what this one leaves
    assert look(108)["result"] | {"modifiedAtMs": 0, "size": 0} == {
        "isDirectory": True,
        "isFile": False,
        "isSymlink": True,
        "size": 0,
        "createdAtMs": 0,
        "modifiedAtMs": 0,
    }


@pytest.mark.everywhere
def test_many_questions_at_once_are_all_answered_in_order(client: Client, here: Path) -> None:
    question = path_of(here)
    numbers = range(1000, 6000)

    send(client, *(asked(number, METADATA, question) for number in numbers))

    for number in numbers:
        assert client.result(number)["isDirectory"]
    assert client.reply_order()[-len(numbers) :] == list(numbers)


def test_info_has_the_members_that_the_connection_asked_for(endpoint: Endpoint) -> None:
    plain, extended = endpoint.connect(), endpoint.connect(handshake=False).handshake(extensions=True)
    for client in (plain, extended):
        for number in range(100, 105):
            send(client, asked(number, "environment/info"))
        infos = [client.result(number) for number in range(100, 105)]
        assert infos == [infos[0]] * 5
        assert infos[0] == client.call("environment/info")


def test_nothing_is_answered_behind_a_message_that_ends_the_connection(client: Client, here: Path) -> None:
    question = path_of(here)
    for number in range(100, 104):
        send(client, asked(number, METADATA, question))
        client.reply(number)

    send(client, asked(104, METADATA, question), b'{"method":"unexpected"}', asked(105, METADATA, question))

    client.wait_end()
    assert client.answered(104)
    assert not client.answered(105)


def test_nothing_is_answered_before_the_handshake(newcomer: Client, client: Client, here: Path) -> None:
    question = path_of(here)
    for number in range(100, 104):
        send(client, asked(number, METADATA, question))
        client.reply(number)

    send(newcomer, asked(1, METADATA, question), asked(2, METADATA, question))

    assert newcomer.failure(1).code == newcomer.failure(2).code == -32600
