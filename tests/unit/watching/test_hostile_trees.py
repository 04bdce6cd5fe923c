"""Watches of trees that were made to stop the program of a watch, or to make it large."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.watching.test_polling import said, until, watching


@pytest.mark.statement("M17")
async def test_patterns_that_take_hours_for_a_name_do_not_stop_a_watch(tmp_path: Path) -> None:
    names = [f"{number}{'a' * 200}" for number in range(6)]
    (tmp_path / names[0]).touch()
    (tmp_path / ".gitignore").write_text("*a*a*a*a*a*a*a*a*b\n")
    async with watching(tmp_path, []) as watch:
        for name in names[1:]:
            (tmp_path / name).touch()
        page = await until(watch, lambda page: names[-1] in str(page["changes"]))
        assert {f"created /{name}" for name in names[1:]} <= set(said(tmp_path, page))


@pytest.mark.statement("M17")
async def test_too_many_patterns_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    (tmp_path / ".gitignore").write_text("x\n" * 9_000)
    (tmp_path / "few/.gitignore").write_text("*.o\n" * 2_000)
    async with watching(tmp_path, []) as watch:
        (tmp_path / "x").touch()
        (tmp_path / "few/y.o").touch()
        page = await until(watch, lambda page: bool(page["changes"]))
        assert said(tmp_path, page) == ["created /few/y.o"]


@pytest.mark.statement("M17")
async def test_patterns_of_a_polled_tree_count_once(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.o\n" * 6_000)
    async with watching(tmp_path, [tmp_path.stat().st_dev]) as watch:
        for name in ("first", "second"):
            (tmp_path / f"{name}.o").touch()
            (tmp_path / name).touch()
            page = await until(watch, lambda page, name=name: name in str(page["changes"]))  # type: ignore[misc]
        assert said(tmp_path, page) == ["created /first", "created /second"]


async def test_a_deep_tree_does_not_end_a_watch(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(1200):
            os.mkdir("d", dir_fd=folder)
            below = os.open("d", os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = below
        async with watching(tmp_path, []) as watch:
            os.close(os.open(".gitignore", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
            os.close(os.open("last", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
            await until(watch, lambda page: "last" in str(page))
            assert watch.end_reason is None
    finally:
        os.close(folder)
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


async def test_many_long_paths_at_once_do_not_end_a_watch(tmp_path: Path) -> None:
    root = tmp_path / "root"
    long = root.joinpath(*["d" * 250] * 14)
    long.mkdir(parents=True)
    async with watching(root, [tmp_path.stat().st_dev], max_polled=10_000) as watch:
        made = tmp_path / "made"
        made.mkdir()
        for number in range(5_000):
            (made / str(number)).touch()
        made.rename(long / "made")  # they appear between two looks
        await until(watch, lambda _: watch.next_seq > 5_000 or watch.end_reason is not None)
        assert watch.end_reason is None
