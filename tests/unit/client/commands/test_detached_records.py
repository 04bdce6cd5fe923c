"""The record of detached sessions: for its owner only, whole or not there, and bounded."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from execclient.commands import detached
from execclient.commands.detached import DetachedSession, recorded
from execprotocol.trust import UntrustedError

URL = "relay+https://relay.example?environment=box"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the records of this test go; it is not there yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "execserver" / "detached"


def session(name: str = "p1", url: str = URL, **members: Any) -> DetachedSession:
    """A session that was left just now, with a process of this name."""
    return DetachedSession(
        **{
            "url": url,
            "session_id": f"session of {name}",
            "process_id": name,
            "started_at": time.time(),
            "ttl": 3600.0,
            **members,
        }
    )


def kept(name: str = "p1", **members: Any) -> DetachedSession:
    """One that is recorded."""
    made = session(name, **members)
    made.keep()
    return made


def test_what_is_recorded_is_found_by_its_url_in_the_order_of_the_starts() -> None:
    later, first = kept("later", started_at=2.0), kept("first", started_at=1.0, ttl=None)
    kept("elsewhere", url="unix:///other")
    assert recorded(URL) == [first, later]
    later.drop()
    later.drop()
    assert recorded(URL) == [first]


def test_ids_and_urls_of_any_text_are_no_paths(folder: Path) -> None:
    hostile = [kept("../../up", session_id="../" * 50), kept("/etc/passwd"), kept("x" * 4000), kept("\0\n")]
    assert len(list(folder.iterdir())) == len(hostile)
    assert sorted(each.process_id for each in recorded(URL)) == sorted(each.process_id for each in hostile)


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
def test_a_record_is_for_its_owner_only(folder: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        made = kept()
    finally:
        os.umask(old)
    assert stat.S_IMODE(made.file.stat().st_mode) == 0o600
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)] == [0o700, 0o700]
    assert [each.name for each in folder.iterdir()] == [made.file.name]


def test_a_missing_home_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(FileNotFoundError):
        kept()
    assert not (tmp_path / "home").exists()
    assert recorded(URL) == []
    (tmp_path / "home").mkdir()
    assert kept().file.is_relative_to(tmp_path / "home" / ".local" / "state")


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\xff" * 100, b"[" * 60_000, b"[]", b'{"url": 5}', b"x" * 100_000, b"1e999"],
    ids=["empty", "cut", "no-text", "deep", "a-list", "incomplete", "large", "a-number"],
)
def test_a_damaged_record_is_told_and_costs_no_other(
    folder: Path, damage: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = kept()
    broken = folder / "0.json"
    broken.write_bytes(damage)
    assert recorded(URL) == [whole]
    assert f"remove it: {broken}" in capfd.readouterr().err
    kept("p2")
    assert len(recorded(URL)) == 2


@pytest.mark.parametrize(
    ("member", "value"),
    [("started_at", 1e300), ("started_at", -1), ("ttl", 1e300), ("ttl", -5), ("ttl", "1"), ("url", None)],
)
def test_a_value_that_cannot_be_is_damage(
    member: str, value: object, capfd: pytest.CaptureFixture[str]
) -> None:
    made = kept()
    made.file.write_text(json.dumps({**json.loads(made.file.read_bytes()), member: value}))
    assert recorded(URL) == []
    assert member in capfd.readouterr().err


def test_what_others_could_write_is_not_used(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = kept()
    made.file.chmod(0o622)
    assert recorded(URL) == []
    assert "can be written by others" in capfd.readouterr().err
    made.file.chmod(0o600)
    folder.chmod(0o777)
    assert recorded(URL) == []
    with pytest.raises(UntrustedError, match="can be written by others"):
        kept("p2")
    assert len(list(folder.iterdir())) == 1


def test_what_is_no_file_is_not_waited_for(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = kept()
    os.mkfifo(folder / "fifo.json", 0o600)
    (folder / "folder.json").mkdir()
    (folder / "link.json").symlink_to("nowhere")
    assert recorded(URL) == [made]
    assert "fifo.json" in capfd.readouterr().err


def test_a_record_outlives_its_session_by_a_day_since_it_was_seen(folder: Path) -> None:
    lately, seen, past = kept("lately"), kept("seen"), kept("past")
    day = detached.KEPT_AFTER_END_SECONDS
    for each, ago in ((lately, day + 3500), (seen, day + 3700), (past, day + 3700)):
        os.utime(each.file, (time.time() - ago,) * 2)
    seen.seen()
    new = kept("new")
    assert {each.name for each in folder.iterdir()} == {each.file.name for each in (lately, seen, new)}


def test_above_the_most_records_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detached, "MAX_RECORDS", 3)
    for number in range(5):
        made = kept(f"p{number}", started_at=float(number))
        os.utime(made.file, (time.time() - 100 + number,) * 2)
    assert [each.process_id for each in recorded(URL)] == ["p2", "p3", "p4"]
