"""What people do with fsspec: synchronise, chain file systems, cache files, and use them as paths."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import fsspec
import pytest
from fsspec.generic import rsync
from fsspec.implementations.dirfs import DirFileSystem
from upath import UPath

from execclient.integrations.fsspec import ExecServerFileSystem


def test_rsync_copies_what_differs_and_deletes_what_is_gone(url: str, folder: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "below").mkdir(parents=True)
    for name in ("a", "below/b", "c"):
        (here / name).write_text(name)
    options = {
        "default_method": "options",
        "storage_options": {"execserver": {"daemon_url": url}, "file": {}},
    }
    source, target = f"file://{here}", f"execserver://{folder}/copy"
    fs = ExecServerFileSystem(url)
    fs.makedirs(f"{folder}/copy")

    rsync(source, target, inst_kwargs=options)
    assert {path: (folder / "copy" / path).read_text() for path in ("a", "below/b", "c")} == {
        "a": "a",
        "below/b": "below/b",
        "c": "c",
    }

    (here / "a").write_text("longer")
    (here / "c").unlink()
    changed = rsync(source, target, delete_missing=True, inst_kwargs=options)
    assert list(changed) == [f"file://{here}/a"]
    assert (folder / "copy/a").read_text() == "longer"
    assert not (folder / "copy/c").exists()


def test_a_file_in_an_archive_at_the_daemon_is_read(url: str, folder: Path) -> None:
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("inside/file.txt", "text")

    with fsspec.open(
        f"zip://inside/file.txt::execserver://{folder}/archive.zip", "rt", execserver={"daemon_url": url}
    ) as file:
        assert file.read() == "text"


def test_a_cached_file_is_fetched_once(url: str, folder: Path, tmp_path: Path) -> None:
    (folder / "file").write_text("text")
    options = {"execserver": {"daemon_url": url}, "filecache": {"cache_storage": str(tmp_path / "cache")}}

    for _ in range(2):
        with fsspec.open(f"filecache::execserver://{folder}/file", "rt", **options) as file:
            assert file.read() == "text"
        (folder / "file").write_text("other")


def test_a_folder_is_a_file_system_of_its_own(fs: ExecServerFileSystem, folder: Path) -> None:
    inside = DirFileSystem(str(folder), fs)
    inside.pipe_file("below/file", b"data")

    assert inside.find("") == ["below/file"]
    assert fs.get_mapper(str(folder))["below/file"] == b"data"


# universal_pathlib warns of protocols that it has no class for.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_path_of_universal_pathlib_is_at_the_daemon(url: str, folder: Path) -> None:
    path = UPath(f"execserver://{folder}", daemon_url=url) / "below" / "file.txt"
    path.parent.mkdir()
    path.write_text("text")

    assert (folder / "below/file.txt").read_text() == path.read_text() == "text"
    assert [str(each.name) for each in path.parent.iterdir()] == ["file.txt"]
    assert path.stat().st_size == 4
    assert path.is_file()
    assert not path.is_dir()
    with path.open("rb") as file:
        assert isinstance(file, io.IOBase)
    path.rename(path.with_name("renamed"))
    assert [each.name for each in UPath(f"execserver://{folder}", daemon_url=url).rglob("*")] == [
        "below",
        "renamed",
    ]
    (path.parent / "renamed").unlink()
    path.parent.rmdir()
    assert list(folder.iterdir()) == []
