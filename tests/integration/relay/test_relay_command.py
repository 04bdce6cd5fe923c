"""`execserver relay …` on the command line: output, refusals and error texts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from execprotocol.relay import frames
from execprotocol.relay.keys import KeyPair
from tests.support.relay_peers import RawClient, RawExecutor, ask, registration
from tests.support.relay_service import RelayService, command
from tests.support.servers import free_ports, open_files


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayService]:
    with RelayService(
        tmp_path_factory.mktemp("relay") / "state",
        "--metrics-listen",
        "http://127.0.0.1:0",
        listen="http://127.0.0.1:0/deep/er/",
    ) as relay:
        yield relay
        assert relay.stop() == 0


# ------------------------------------------------------------------ tokens


def test_create_prints_the_token_alone_and_keeps_only_its_hash(tmp_path: Path) -> None:
    state = tmp_path / "state"

    made = command(
        "token", "create", "--state-dir", str(state), "--role", "executor", "--environment", "box",
        "--environment", "box-2", "--note", "the laptop",
    )  # fmt: skip

    assert (made.returncode, made.stderr) == (0, "")
    assert re.fullmatch(r"xrt_[A-Za-z0-9_-]{43}\n", made.stdout)
    assert made.stdout.strip() not in (state / "tokens.json").read_text()
    assert state.stat().st_mode & 0o777 == 0o700
    (row,) = json.loads(command("token", "list", "--state-dir", str(state), "--json").stdout)
    assert row == row | {
        "role": "executor",
        "environments": ["box", "box-2"],
        "expires": None,
        "note": "the laptop",
    }
    shown = command("token", "list", "--state-dir", str(state)).stdout.splitlines()
    assert shown[0].split() == ["ID", "ROLE", "ENVIRONMENTS", "POOLS", "CREATED", "EXPIRES", "NOTE"]
    assert shown[1].startswith(row["id"])
    assert "box,box-2" in shown[1]


def test_a_revoked_token_is_gone_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    where = ("--state-dir", str(tmp_path / "state"))
    command("token", "create", *where, "--role", "client", "--environment", "box", "--expires-in", "60")
    (row,) = json.loads(command("token", "list", *where, "--json").stdout)
    assert 59 <= row["expires"] - row["created"] <= 61

    revoked = command("token", "revoke", row["id"], *where)
    again = command("token", "revoke", row["id"], *where)

    assert (revoked.returncode, revoked.stdout) == (0, "")
    assert json.loads(command("token", "list", *where, "--json").stdout) == []
    assert again.returncode == 1
    assert row["id"] in again.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (("--role", "admin", "--environment", "box"), 2, "--role"),
        (("--role", "client"), 2, "--environment"),
        (("--role", "client", "--environment", "a/b"), 1, "environment"),
        (("--role", "client", "--environment", "box--0123456789abcdef"), 1, "name its pool instead"),
        (("--role", "client", "--pool", "a/b"), 1, "pool"),
        (("--role", "client", "--pool", "a--0123456789abcdef"), 1, "pool"),
        (("--role", "client", "--environment", "box", "--expires-in", "0"), 2, "--expires-in"),
        (("--role", "client", "--environment", "box", "--expires-in", "soon"), 2, "--expires-in"),
        (("--role", "client", "--environment", "box", "--note", "two\nlines"), 1, "note"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], status: int, named: str
) -> None:
    made = command("token", "create", "--state-dir", str(tmp_path / "state"), *arguments)

    assert (made.returncode, made.stdout) == (status, "")
    assert named in made.stderr
    assert "Traceback" not in made.stderr


def test_tokens_of_a_folder_that_is_not_there_are_not_none(tmp_path: Path) -> None:
    listed = command("token", "list", "--state-dir", str(tmp_path / "typo"))

    assert (listed.returncode, listed.stdout) == (1, "")
    assert "typo" in listed.stderr
    assert not (tmp_path / "typo").exists()


# ------------------------------------------------------------------ who is online


def test_environments_lists_who_is_online(relay: RelayService) -> None:
    executor_token, client_token = relay.token("executor", "box", "idle"), relay.token("client", "box")
    with (
        RawExecutor(relay, "box", executor_token) as executor,
        RawClient(relay, "box", client_token) as client,
    ):
        for stream in ("one", "two"):
            client.send(frames.resume(stream))
            assert executor.receive() == frames.resume(stream)

        (row,) = relay.environments()
        shown = relay.command("environments").stdout.splitlines()

    assert (row["environment"], row["streams"], row["clients"]) == ("box", 2, 1)
    assert row["key"] == executor.keys.public.fingerprint
    assert 0 <= row["seconds"] < 20
    heads, cells = shown[0].split(), shown[1].split()
    assert heads == [
        *("ENVIRONMENT", "ONLINE", "STREAMS", "CLIENTS", "POOL", "LOAD", "STATE", "VERSION", "NODE", "KEY")
    ]
    assert cells[0] == "box"
    assert cells[2:8] == ["2", "1", "-", "-", "online", "-"]
    assert cells[8:] == [row["node"], row["key"]]


def test_without_a_relay_environments_says_so(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with RelayService(state) as relay:
        relay.kill()  # which leaves its socket behind

    for folder in (state, tmp_path / "nothing"):
        asked = command("environments", "--state-dir", str(folder), "--json")

        assert (asked.returncode, asked.stdout) == (1, "")
        assert f"no relay runs with --state-dir {folder}" in asked.stderr


def test_a_state_folder_may_have_a_long_name(tmp_path: Path) -> None:
    with RelayService(tmp_path / ("x" * 120) / "state") as relay:
        assert relay.environments() == []
        relay.stop()
        assert not (relay.state / "control.sock").exists()


# ------------------------------------------------------------------ keys


def test_key_makes_a_file_once_and_prints_its_fingerprint_alone(tmp_path: Path) -> None:
    file = tmp_path / "client.key"

    first, second = command("key", str(file)), command("key", str(file))

    assert re.fullmatch(r"[0-9a-f]{64}\n", first.stdout)
    assert second.stdout == first.stdout
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    refused = command("key", str(file))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert str(file) in refused.stderr


# ------------------------------------------------------------------ serving


def test_the_base_url_is_printed_with_its_path(relay: RelayService) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9][0-9]*/deep/er", relay.url)
    assert ask(relay.url, "/healthz").status == 200
    assert ask(relay.url.removesuffix("/deep/er"), "/healthz").status == 404
    token = relay.token("executor", "below")
    with RawExecutor(relay, "below", token) as executor:
        assert executor.url.startswith(
            f"ws{relay.url.removeprefix('http')}/cloud/environment/below/executor?"
        )


@pytest.mark.statement("R9")
def test_the_public_url_is_what_is_printed_and_handed_out(tmp_path: Path) -> None:
    [port] = free_ports(1)
    public = "https://relay.example/base"
    with RelayService(
        tmp_path / "state", "--public-url", f"{public}/", listen=f"http://127.0.0.1:{port}"
    ) as relay:
        assert relay.url == public
        token = relay.token("executor", "box")
        relay.url = f"http://127.0.0.1:{port}"  # as the proxy before it reaches it
        path = "/cloud/environment/box/register"

        answer = ask(relay.url, path, "POST", token=token, body=registration(KeyPair.generate()))

    assert answer.json["url"].startswith("wss://relay.example/base/cloud/environment/box/executor?ticket=")


def test_metrics_are_shown_where_it_was_told_and_nothing_else_is(relay: RelayService) -> None:
    ports = set(listening_ports(relay.pid)) - {int(relay.url.split(":")[2].split("/")[0])}
    (port,) = ports
    base = f"http://127.0.0.1:{port}"

    page = ask(base, "/metrics")

    assert b"execserver_relay_streams 0.0" in page.content
    assert page.headers["content-type"].startswith("text/plain")
    assert ask(base, "/environments").status == 404
    assert ask(base, "/cloud/environment/box/register", "POST").status == 404
    assert ask(relay.url, "/metrics").status == 404


def listening_ports(pid: int) -> list[int]:
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in open_files(pid)}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


@pytest.mark.parametrize(
    ("flags", "status", "named"),
    [
        ((), 2, "--listen"),
        (("--listen", "http://0.0.0.0:0"), 1, "--tls-cert"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_refused_with_the_way_out(
    tmp_path: Path, flags: tuple[str, ...], status: int, named: str
) -> None:
    state = tmp_path / "state"

    ended = command("serve", *flags, "--state-dir", str(state))

    assert (ended.returncode, ended.stdout) == (status, "")
    assert named in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not state.exists()


def test_an_address_in_use_is_refused(relay: RelayService, tmp_path: Path) -> None:
    ended = command("serve", "--listen", relay.url, "--state-dir", str(tmp_path / "state"))

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "execserver: --listen" in ended.stderr
    assert "in use" in ended.stderr
    assert not (tmp_path / "state" / "control.sock").exists()


def test_a_state_folder_serves_one_relay_at_a_time(relay: RelayService) -> None:
    ended = command("serve", "--listen", "http://127.0.0.1:0", "--state-dir", str(relay.state))

    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"in use by the relay with process id {relay.pid}" in ended.stderr
    assert ask(relay.url, "/readyz").status == 200
    assert relay.metrics()["execserver_relay_draining"] == 0  # its control socket is still there


def test_a_state_folder_that_others_may_read_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    ended = command("serve", "--listen", "http://127.0.0.1:0", "--state-dir", str(tmp_path))

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "chmod it to 0700" in ended.stderr


def test_a_token_file_that_cannot_be_understood_ends_the_start_and_never_a_running_relay(
    tmp_path: Path,
) -> None:
    with RelayService(tmp_path / "state") as relay:
        token = relay.token("executor", "box")
        file = relay.state / "tokens.json"
        content = file.read_text()
        with RawExecutor(relay, "box", token):
            file.write_text(content[:-20])
            while not relay.log_lines("tokens cannot be read, those of before stay"):
                assert ask(relay.url, "/readyz").status == 200
            assert len(relay.environments()) == 1
        relay.stop()
        with pytest.raises(RuntimeError, match=r"tokens\.json"):
            relay.start()


# ------------------------------------------------------------------ around it


def test_help_names_the_commands() -> None:
    shown = command("--help").stdout

    assert [name for name in ("serve", "token", "environments", "key") if name not in shown] == []
    top = subprocess.run(
        [sys.executable, "-m", "execserver", "--help"], capture_output=True, text=True, check=True
    )
    assert "\n    relay " in top.stdout
    assert command().returncode == 2


def test_a_missing_package_is_named_with_the_way_out(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['aiohttp'] = None; from execserver.relay.service.command import main; "
        f"sys.exit(main(['serve', '--listen', 'http://127.0.0.1:0', '--state-dir', {str(tmp_path / 's')!r}]))"
    )

    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert "aiohttp is missing: `pip install execserver[relay]`" in ended.stderr


def test_asking_who_is_online_and_helping_load_no_server() -> None:
    script = (
        "import sys, execserver.relay.service.control_socket; "
        "import execserver.relay.service.command as c; c.relay_parser(); "
        "print([n for n in ('aiohttp', 'cryptography', 'pydantic', 'uvloop') if n in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_serving_loads_nothing_of_the_daemon() -> None:
    script = (
        "import sys, execserver.relay.service.server; print([n for n in ('pydantic', 'picows', "
        "'httpcore', 'execserver.server', 'execserver.configuration') if n in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
