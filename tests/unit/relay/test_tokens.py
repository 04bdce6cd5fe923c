"""The token file: what it holds, who it lets in, and what cannot damage it."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.relay.service.token_file import TokenFileError, TokenStore
from execserver.relay.service.tokens import Role, TokenError, TokenRefused


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> TokenStore:
    return TokenStore(tmp_path / "state", create=True, clock=clock)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tokens.json"


def refusal(
    store: TokenStore, presented: str | None, role: Role = "client", environment: str = "build-1"
) -> tuple[int, str]:
    with pytest.raises(TokenRefused) as refused:
        store.check(presented, role, environment)
    return refused.value.status, str(refused.value)


def test_a_token_is_shown_once_and_only_its_hash_is_kept(store: TokenStore, path: Path) -> None:
    token, secret = store.create("executor", ["build-1", "build-2", "build-1"], note="the farm")

    assert re.fullmatch(r"xrt_[A-Za-z0-9_-]{43}", secret)
    assert re.fullmatch(r"[0-9a-f]{8}", token.id)
    assert token.environments == ("build-1", "build-2")
    assert secret not in path.read_text()
    assert secret[4:20] not in repr(store.tokens)
    assert json.loads(path.read_text())["tokens"][0]["note"] == "the farm"


def test_folder_and_file_are_for_their_user_alone_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        TokenStore(tmp_path / "state", create=True).create("client", ["a"])
    finally:
        os.umask(before)

    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "state").iterdir()}
    assert modes == {"tokens.json": 0o600, "tokens.lock": 0o600}
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


@pytest.mark.statement("R3")
def test_a_token_opens_its_role_in_its_environments_and_nothing_else(store: TokenStore) -> None:
    token, secret = store.create("client", ["build-1"])
    store.create("executor", ["build-2"])

    assert store.check(secret, "client", "build-1") == token
    assert refusal(store, secret, "executor")[0] == 403
    assert refusal(store, secret, "client", "build-2")[0] == 403
    assert refusal(store, None)[0] == 401
    assert refusal(store, "")[0] == 401
    assert refusal(store, secret[:-1])[0] == 401
    assert refusal(store, token.id)[0] == 401
    assert refusal(store, token.sha256)[0] == 401
    assert refusal(store, "xrt_\udcff")[0] == 401
    assert secret not in refusal(store, secret, "executor")[1]


@pytest.mark.statement("R3")
def test_a_token_expires(store: TokenStore, clock: Clock) -> None:
    token, secret = store.create("client", ["build-1"], expires_in=60)
    lasting, _ = store.create("client", ["build-1"])

    clock.now += 59
    assert store.check(secret, "client", "build-1") == token
    assert store.ended([token.id, lasting.id]) == set()
    clock.now += 1
    assert refusal(store, secret) == (401, "the token has expired")
    assert store.ended([token.id, lasting.id]) == {token.id}
    assert (store.is_valid(token.id), store.is_valid(lasting.id)) == (False, True)


def test_a_running_relay_sees_creations_and_revocations_at_once(
    store: TokenStore, tmp_path: Path, clock: Clock
) -> None:
    command_line = TokenStore(tmp_path / "state", clock=clock)

    token, secret = command_line.create("client", ["build-1"])
    assert store.check(secret, "client", "build-1") == token
    assert store.ended([token.id]) == set()

    assert command_line.revoke(token.id) == token
    assert store.ended([token.id, "deadbeef"]) == {token.id, "deadbeef"}
    assert refusal(store, secret)[0] == 401


def test_changes_of_one_moment_are_told_apart(store: TokenStore, tmp_path: Path) -> None:
    """Same size, perhaps the same inode, and within one tick of the file system's clock."""
    reader = TokenStore(tmp_path / "state")
    for _ in range(50):
        token, secret = store.create("client", ["build-1"])
        reader.check(secret, "client", "build-1")
        store.revoke(token.id)
        assert reader.ended([token.id]) == {token.id}


def test_who_revokes_a_token_that_is_not_there_hears_so(store: TokenStore) -> None:
    with pytest.raises(TokenError, match="no token 'deadbeef'"):
        store.revoke("deadbeef")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda store: store.create("admin", ["a"]), "`role` must be executor or client"),
        (lambda store: store.create("client", []), "`environments`"),
        (lambda store: store.create("client", ["a/b"]), "`environments`.*letters"),
        (lambda store: store.create("client", ["a" * 257]), "`environments`"),
        (lambda store: store.create("client", ["a"], expires_in=0), "more than 0 seconds"),
        (lambda store: store.create("client", ["a"], expires_in=float("nan")), "more than 0 seconds"),
        (lambda store: store.create("client", ["a"], note="two\nlines"), "`note`"),
        (lambda store: store.create("client", ["a"], note="x" * 201), "`note`"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(
    store: TokenStore, path: Path, change: Callable[[TokenStore], object], named: str
) -> None:
    with pytest.raises(TokenError, match=named):
        change(store)
    assert not path.exists()


def create_some(folder: Path, count: int) -> None:
    for _ in range(count):
        TokenStore(folder).create("client", ["build-1"])


def test_eight_processes_that_create_at_once_lose_nothing(store: TokenStore, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=create_some, args=(tmp_path / "state", 5)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)

    assert [process.exitcode for process in processes] == [0] * 8
    store.refresh()
    assert len({token.id for token in store.tokens}) == 40
    assert not (tmp_path / "state" / "tokens.json.new").exists()


def test_what_a_crash_left_half_written_does_no_harm(store: TokenStore, path: Path) -> None:
    token, _ = store.create("client", ["build-1"])
    path.with_name("tokens.json.new").write_text('{"version": 1, "tok')

    second, _ = store.create("client", ["build-1"])

    assert TokenStore(path.parent).tokens == (token, second)


def damaged(content: str, **members: object) -> str:
    whole = json.loads(content)
    whole["tokens"][0] |= members
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda content: content[: len(content) // 2], "no JSON"),
        (lambda content: "", "no JSON"),
        (lambda content: "[" * 100_000, "no JSON"),
        (lambda content: "[]", "`tokens`"),
        (lambda content: '{"version": 1}', "`tokens`"),
        (lambda content: content.replace('"version": 1', '"version": 2'), "`version`"),
        (lambda content: damaged(content, role="root"), r"tokens\[0\]: `role`"),
        (lambda content: damaged(content, environments="build-1"), r"tokens\[0\]: `environments`"),
        (lambda content: damaged(content, environments=[1]), r"tokens\[0\]: `environments`"),
        (lambda content: damaged(content, environments=["*"]), r"tokens\[0\]: `environments`"),
        (lambda content: damaged(content, sha256="00"), r"tokens\[0\]: `sha256`"),
        (lambda content: damaged(content, id=7), r"tokens\[0\]: `id`"),
        (lambda content: damaged(content, expires="soon"), r"tokens\[0\]: `expires`"),
        (lambda content: damaged(content, created=True), r"tokens\[0\]: `created`"),
        (lambda content: damaged(content, extra=1), r"tokens\[0\]: `extra`"),
        (lambda content: content.replace('"note"', '"nota"'), r"tokens\[0\]: `note` is missing"),
        (lambda content: '{"version": 1, "tokens": [7]}', r"tokens\[0\]: must be an object"),
    ],
)
def test_a_file_that_cannot_be_understood_is_an_error_and_stays_as_it_is(
    store: TokenStore, path: Path, damage: Callable[[str], str], named: str
) -> None:
    token, secret = store.create("client", ["build-1"])
    content = damage(path.read_text())
    path.write_text(content)

    with pytest.raises(TokenFileError, match=named):
        TokenStore(path.parent)
    with pytest.raises(TokenFileError, match=named):
        store.create("client", ["build-1"])
    with pytest.raises(TokenFileError, match=named):
        store.revoke(token.id)
    assert path.read_text() == content
    # Who runs goes on with what it knew, and can tell.
    assert store.check(secret, "client", "build-1") == token
    assert re.search(named, store.fault)


def test_a_repaired_file_counts_again(store: TokenStore, path: Path) -> None:
    token, secret = store.create("client", ["build-1"])
    good = path.read_text()
    path.write_text(good[:-20])
    store.refresh()
    assert store.fault

    path.write_text(good)
    store.refresh()

    assert store.fault == ""
    assert store.check(secret, "client", "build-1") == token


def test_a_removed_file_means_no_tokens(store: TokenStore, path: Path) -> None:
    token, secret = store.create("client", ["build-1"])
    path.unlink()

    assert refusal(store, secret)[0] == 401
    assert store.ended([token.id]) == {token.id}
    store.create("client", ["build-2"])
    assert len(TokenStore(path.parent).tokens) == 1


def test_a_file_or_folder_open_to_others_is_refused(store: TokenStore, path: Path) -> None:
    store.create("client", ["build-1"])
    path.chmod(0o640)
    with pytest.raises(TokenFileError, match=r"mode 0640.*chmod it to 0600"):
        TokenStore(path.parent)
    path.chmod(0o600)
    path.parent.chmod(0o750)
    with pytest.raises(TokenFileError, match="mode 0750"):
        TokenStore(path.parent)
    path.parent.chmod(0o700)


def test_a_link_in_the_place_of_the_file_is_refused(store: TokenStore, path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text('{"version": 1, "tokens": []}')
    path.symlink_to(elsewhere)

    with pytest.raises(TokenFileError, match="cannot read"):
        TokenStore(path.parent)


def test_a_missing_folder_is_made_only_when_asked_for(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match="no state folder"):
        TokenStore(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()

    assert TokenStore(tmp_path / "typo", create=True).tokens == ()


def test_a_folder_in_place_of_the_file_is_refused_and_no_descriptor_stays_open(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "state", create=True)
    _, secret = store.create("client", ["box"])
    (tmp_path / "state" / "tokens.json").unlink()
    (tmp_path / "state" / "tokens.json").mkdir(mode=0o700)
    before = os.listdir("/proc/self/fd")

    for _ in range(3):
        store.check(secret, "client", "box")

    assert "is no file; remove it" in store.fault
    assert sorted(os.listdir("/proc/self/fd")) == sorted(before)


def test_a_pipe_in_place_of_the_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "state", create=True)
    _, secret = store.create("client", ["box"])
    (tmp_path / "state" / "tokens.json").unlink()
    os.mkfifo(tmp_path / "state" / "tokens.json", 0o600)

    store.check(secret, "client", "box")

    assert "is no file" in store.fault


# -- pools


MEMBER, ALIEN = "gpu--0123456789abcdef", "gpu-2--0123456789abcdef"


def test_a_pools_token_is_for_all_of_its_members_and_nothing_else(store: TokenStore, path: Path) -> None:
    token, secret = store.create("client", [], pools=["gpu", "gpu"])

    assert token.pools == ("gpu",)
    assert store.check(secret, "client", MEMBER) == store.check_pool(secret, "gpu") == token
    for environment in ("gpu", ALIEN, "gpu--0123", "box"):
        assert refusal(store, secret, environment=environment)[0] == 403
    assert refusal(store, secret, "executor", MEMBER)[0] == 403
    with pytest.raises(TokenRefused, match="not for this pool"):
        store.check_pool(secret, "gpu-2")
    assert TokenStore(path.parent).tokens == (token,)


def test_an_executors_token_or_none_opens_no_pool(store: TokenStore) -> None:
    _, secret = store.create("executor", ["box"], pools=["gpu"])
    assert store.check(secret, "executor", "box") == store.check(secret, "executor", MEMBER)
    with pytest.raises(TokenRefused, match="for the role executor"):
        store.check_pool(secret, "gpu")
    for presented in (None, "xrt_made-up"):
        with pytest.raises(TokenRefused) as refused:
            store.check_pool(presented, "gpu")
        assert refused.value.status == 401


def test_a_members_id_in_a_file_is_worth_nothing_without_its_pool(store: TokenStore, path: Path) -> None:
    _, secret = store.create("client", ["box"])
    content = json.loads(path.read_text())
    assert "pools" not in content["tokens"][0]  # an earlier relay can read the file
    content["tokens"][0]["environments"] = [MEMBER]
    path.write_text(json.dumps(content))

    assert refusal(store, secret, environment=MEMBER)[0] == 403


@pytest.mark.parametrize(
    ("environments", "pools", "says"),
    [
        ([], [], "must name one environment or more"),
        ([MEMBER], [], "is a pool's member; name its pool instead"),
        ([], ["a/b"], "`pools` must be 1 to"),
        ([], [MEMBER], "`pools` must not end"),
    ],
)
def test_a_token_for_no_place_or_an_invalid_one_is_refused(
    store: TokenStore, environments: list[str], pools: list[str], says: str
) -> None:
    with pytest.raises(TokenError, match=says):
        store.create("client", environments, pools=pools)
    assert store.tokens == ()
