"""Records what the stock binary does on the relay's encrypted channel, as vectors for the unit tests.

`python -m tests.interop.record_noise CODEX_BINARY [FOLDER]` plays a registry and a rendezvous on loopback,
one after the other with three stock peers, and writes a file for each:

- `stock_executor.json`: the stock executor answers our initiator;
- `stock_executor_rejected.json`: the same, but the registry does not know the harness;
- `stock_harness.json`: the stock agent is answered by our responder.

A fourth, `own_halves.json`, holds our two halves with each other. Our keys, also the ephemeral ones, and
what we encapsulated are in the file, so `tests/unit/protocol/relay/test_noise_vectors.py` replays our part
without the binary. The keys are made for the recording and protect nothing; `tests/data/relay/README.md` has
the layout. RECORD_NOISE_VERBOSE=1 lets the binary's errors through.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from execprotocol.relay import frames
from execprotocol.relay.keys import SUITE, KeyPair, PublicKeys, encapsulate
from execprotocol.relay.noise import REJECTION, Binding, Initiator, NoiseTransport, Responder

FOLDER = Path(__file__).parents[1] / "data" / "relay"
ENVIRONMENT = "recorded"
REGISTRATION = "registration-of-the-recording"
BEARER = "bearer-of-the-recording"
AUTHORIZATION = "authorization-of-the-recording"
PROFILE = "noise_hybrid_ik_v1"
PATIENCE = 30

Json = dict[str, Any]
Rendezvous = Callable[[web.WebSocketResponse], Awaitable[None]]


def text_of(data: bytes | memoryview) -> str:
    """How bytes stand in a file."""
    return base64.b64encode(data).decode()


class Half:
    """Our part of a handshake: its keys, and what it encapsulated."""

    def __init__(self) -> None:
        self.own = KeyPair.generate()
        self.ephemeral = KeyPair.generate()
        self.encapsulations: list[Json] = []

    def encapsulate(self, mlkem768: bytes) -> tuple[bytes, bytes]:
        """A secret and its ciphertext, which are filed."""
        secret, ciphertext = encapsulate(mlkem768)
        self.encapsulations.append({"secret": text_of(secret), "ciphertext": text_of(ciphertext)})
        return secret, ciphertext

    def to_json(self) -> Json:
        """As a vector holds it."""
        return {
            "seed": text_of(self.own.seed),
            "ephemeral_seed": text_of(self.ephemeral.seed),
            "encapsulations": self.encapsulations,
        }


class Vector:
    """One channel: both handshake messages, and records in the order in which they went."""

    def __init__(self, about: str) -> None:
        self.binding = Binding(ENVIRONMENT, REGISTRATION, str(uuid.uuid4()))
        self._members: Json = {"about": about, "binding": self.binding._asdict()}
        self.up: list[Json] = []
        self.down: list[Json] = []

    def note(self, **members: bytes | str | Json) -> None:
        """Add members."""
        for name, value in members.items():
            self._members[name] = text_of(value) if isinstance(value, bytes) else value

    def write(self, path: Path) -> None:
        """Into a file, whole."""
        text = json.dumps({**self._members, "up": self.up, "down": self.down}, indent=1)
        path.write_text(text + "\n")


def entry(record: bytes, ciphertext: bytes | memoryview) -> Json:
    """A record as a vector holds it."""
    return {"record": text_of(record), "ciphertext": text_of(ciphertext)}


def framed(message: Json) -> bytes:
    """A JSON-RPC message as it stands in the byte stream of a channel."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


async def frame_of(socket: web.WebSocketResponse, kind: str) -> frames.Frame:
    """The next frame; it must be of this kind."""
    message = await socket.receive(PATIENCE)
    if message.type is not WSMsgType.BINARY:
        raise RuntimeError(f"the peer sent {message.type.name} where a {kind} frame was due")
    frame = frames.decode(message.data)
    if frame.kind != kind:
        raise RuntimeError(f"the peer sent {frame.kind} {frame.reason} where a {kind} frame was due")
    return frame


# -- the stock executor


async def record_executor(codex: Path, vector: Vector, *, rejected: bool) -> None:
    """Register it, be the harness on its socket."""
    half = Half()
    executor: list[PublicKeys] = []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def register(request: web.Request) -> web.Response:
        body = await request.json()
        executor.append(PublicKeys.from_json(body["executor_public_key"], "executor_public_key"))
        return introduction(request)

    async def validate(request: web.Request) -> web.Response:
        body = await request.json()
        expected = {
            "executor_registration_id": REGISTRATION,
            "harness_public_key": half.own.public.to_json(),
            "harness_key_authorization": AUTHORIZATION,
        }
        if body != expected or request.headers["authorization"] != f"Bearer {BEARER}":
            raise web.HTTPBadRequest
        if rejected:
            return web.json_response({"error": {"code": "unauthorized", "message": ""}}, status=401)
        return web.json_response({"valid": True})

    async def meet(socket: web.WebSocketResponse) -> None:
        stream = vector.binding.stream_id
        initiator = Initiator(
            half.own, executor[0], vector.binding, ephemeral=half.ephemeral, encapsulate=half.encapsulate
        )
        first = initiator.write_first(AUTHORIZATION.encode())
        await socket.send_bytes(frames.resume(stream))
        await socket.send_bytes(frames.handshake(stream, first))
        second = bytes((await frame_of(socket, "handshake")).payload)
        payload, transport = initiator.read_second(second)
        vector.note(
            authorization=AUTHORIZATION,
            initiator=half.to_json(),
            responder={"public": executor[0].to_json()},
            message_1=first,
            message_2=second,
            payload_2=payload,
        )
        if payload != (REJECTION if rejected else b""):
            raise RuntimeError(f"message 2 held {payload!r}")
        if not rejected:
            await talk(socket, transport)

    async def talk(socket: web.WebSocketResponse, transport: NoiseTransport) -> None:
        # Requests before an initialize: the refusals tell nothing of the machine that records.
        messages: list[Json] = [{"id": number, "method": "process/list"} for number in range(3)]
        for seq, message in enumerate(messages):
            record = framed(message)
            ciphertext = transport.seal(record)
            vector.up.append(entry(record, ciphertext))
            await socket.send_bytes(frames.data(vector.binding.stream_id, seq, ciphertext))
            answer = await frame_of(socket, "data")
            vector.down.append(entry(transport.open(answer.payload), answer.payload))

    async with serving(meet, done, register=register, validate=validate) as base:
        options = ("--remote", base, "--environment-id", ENVIRONMENT, "--registration-bearer-stdin")
        async with stock(codex, "exec-server", *options, line=BEARER):
            await asyncio.wait_for(done, PATIENCE)


# -- the stock harness


CONFIG = """\
model = "gpt-5.5"
model_provider = "none"
check_for_update_on_startup = false
[analytics]
enabled = false
[features]
plugins = false
apps = false
[model_providers.none]
name = "none"
base_url = "http://127.0.0.1:9/v1"
wire_api = "responses"
requires_openai_auth = false
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
"""
"""Of an agent whose model cannot be reached: it connects to its environment before it asks a model."""


async def record_harness(codex: Path, vector: Vector) -> None:
    """Introduce it to an executor that is us."""
    half = Half()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(request: web.Request) -> web.Response:
        more: dict[str, str | Json] = {
            "executor_public_key": half.own.public.to_json(),
            "harness_key_authorization": AUTHORIZATION,
        }
        return introduction(request, **more)

    async def meet(socket: web.WebSocketResponse) -> None:
        claim = await frame_of(socket, "resume")
        vector.binding = vector.binding._replace(stream_id=claim.stream_id)
        vector.note(binding=vector.binding._asdict())
        first = bytes((await frame_of(socket, "handshake")).payload)
        responder = Responder(
            half.own, vector.binding, ephemeral=half.ephemeral, encapsulate=half.encapsulate
        )
        harness, authorization = responder.read_first(first)
        second, transport = responder.write_second()
        vector.note(
            authorization=authorization.decode(),
            initiator={"public": harness.to_json()},
            responder=half.to_json(),
            message_1=first,
            message_2=second,
            payload_2=b"",
        )
        await socket.send_bytes(frames.handshake(claim.stream_id, second))
        request = await heard(socket, transport)
        answer = framed({"id": request["id"], "result": {"sessionId": str(uuid.uuid4())}})
        ciphertext = transport.seal(answer)
        vector.down.append(entry(answer, ciphertext))
        await socket.send_bytes(frames.data(claim.stream_id, 0, ciphertext))
        await heard(socket, transport)

    async def heard(socket: web.WebSocketResponse, transport: NoiseTransport) -> Json:
        frame = await frame_of(socket, "data")
        record = transport.open(frame.payload)
        vector.up.append(entry(record, frame.payload))
        message: Json = json.loads(record[4:])
        return message

    async with serving(meet, done, connect=connect) as base:
        variables = {
            "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL": base,
            "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID": ENVIRONMENT,
            "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": BEARER,
        }
        command = ("exec", "--skip-git-repo-check", "--json", "nothing")
        async with stock(codex, *command, **variables):
            await asyncio.wait_for(done, PATIENCE)


# -- registry, rendezvous, processes


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def introduction(request: web.Request, **more: str | Json) -> web.Response:
    """What both peers are told by a registry."""
    return web.json_response(
        {
            "environment_id": ENVIRONMENT,
            "url": f"ws://{request.host}/rendezvous",
            "security_profile": PROFILE,
            "executor_registration_id": REGISTRATION,
            **more,
        }
    )


@contextlib.asynccontextmanager
async def serving(meet: Rendezvous, done: asyncio.Future[None], **actions: Handler) -> AsyncIterator[str]:
    """A registry with these actions, whose rendezvous hands its first socket to `meet`; its address."""

    async def rendezvous(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False, max_msg_size=frames.MAX_FRAME_BYTES)
        await socket.prepare(request)
        try:
            await meet(socket)
        except Exception as error:
            if not done.done():
                done.set_exception(error)
        if not done.done():
            done.set_result(None)
        await socket.close()
        return socket

    app = web.Application()
    for action, handler in actions.items():
        app.router.add_post(f"/cloud/environment/{ENVIRONMENT}/{action}", handler)
    app.router.add_get("/rendezvous", rendezvous)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def stock(codex: Path, *arguments: str, line: str = "", **variables: str) -> AsyncIterator[None]:
    """A run of the binary in a home of its own, with no way out but loopback."""
    with tempfile.TemporaryDirectory(prefix="record-noise-") as name:
        (Path(name) / "config.toml").write_text(CONFIG)
        environment = {
            **{key: value for key, value in os.environ.items() if key in {"PATH", "LANG"}},
            **{f"{scheme}_PROXY": "http://127.0.0.1:9" for scheme in ("HTTP", "HTTPS", "ALL")},
            "NO_PROXY": "127.0.0.1",
            "HOME": name,
            "CODEX_HOME": name,
            **variables,
        }
        process = await asyncio.create_subprocess_exec(
            codex,
            *arguments,
            cwd=name,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=None if os.environ.get("RECORD_NOISE_VERBOSE") else asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(f"{line}\n".encode())
        process.stdin.close()
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


# -- our halves with each other


def record_own(vector: Vector) -> None:
    """A handshake and three records in each direction, with nobody else."""
    ours, theirs = Half(), Half()
    initiator = Initiator(
        ours.own, theirs.own.public, vector.binding, ephemeral=ours.ephemeral, encapsulate=ours.encapsulate
    )
    responder = Responder(
        theirs.own, vector.binding, ephemeral=theirs.ephemeral, encapsulate=theirs.encapsulate
    )
    first = initiator.write_first(AUTHORIZATION.encode())
    responder.read_first(first)
    second, down = responder.write_second()
    _, up = initiator.read_second(second)
    for record in (b"", b"one", bytes(1000)):
        vector.up.append(entry(record, up.seal(record)))
        vector.down.append(entry(record, down.seal(record)))
    vector.note(
        authorization=AUTHORIZATION,
        initiator=ours.to_json(),
        responder=theirs.to_json(),
        message_1=first,
        message_2=second,
        payload_2=b"",
    )


async def record_all(codex: Path, folder: Path) -> None:
    """All four."""
    folder.mkdir(parents=True, exist_ok=True)
    process = await asyncio.create_subprocess_exec(codex, "--version", stdout=asyncio.subprocess.PIPE)
    version = (await process.communicate())[0].decode().strip()
    vector = Vector(f"our initiator, the executor of {version}")
    await record_executor(codex, vector, rejected=False)
    vector.write(folder / "stock_executor.json")
    vector = Vector(f"our initiator, refused by the executor of {version}")
    await record_executor(codex, vector, rejected=True)
    vector.write(folder / "stock_executor_rejected.json")
    vector = Vector(f"our responder, the agent of {version}")
    await record_harness(codex, vector)
    vector.write(folder / "stock_harness.json")
    vector = Vector("our initiator, our responder")
    record_own(vector)
    vector.write(folder / "own_halves.json")


def main(arguments: list[str]) -> int:
    """Record all."""
    if not arguments or not Path(arguments[0]).is_file():
        sys.stderr.write(
            "name the codex binary: python -m tests.interop.record_noise CODEX_BINARY [FOLDER]\n"
        )
        return 2
    folder = Path(arguments[1]) if len(arguments) > 1 else FOLDER
    asyncio.run(record_all(Path(arguments[0]), folder))
    sys.stdout.write(f"{SUITE}: four vectors in {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
