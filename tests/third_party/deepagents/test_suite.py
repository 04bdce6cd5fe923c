"""The suite of LangChain for sandboxes, on ours and on what deepagents has itself.

langchain-tests 1.1.9 was written for an earlier deepagents: seven of its tests contradict what deepagents
0.7.32 says of `write` and `glob`, and does. They are expected to fail, by the suite's own means, on both
sandboxes. What deepagents says in their place is tested by `Contract`, on both again.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    SandboxBackendProtocol,
)
from deepagents.backends.sandbox import MAX_OUTPUT_BYTES, TRUNCATION_MSG, BaseSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

from execclient import connect
from execclient.integrations.deepagents import ExecServerSandbox

# The suite has fixtures of this kind.
pytestmark = pytest.mark.filterwarnings("ignore:Class-scoped fixtures:pytest.PytestRemovedIn10Warning")

REPLACES = "deepagents: write() is for creating a file, or overwriting it if it already exists"
ABSOLUTE = "deepagents: the paths of glob() are always absolute, or deny rules would not apply to them"
FILES = "deepagents: glob() never matches directories"


def outdated(reason: str) -> pytest.MarkDecorator:
    """A test of the suite that is expected to fail."""
    return pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)


class LocalSandbox(BaseSandbox):
    """All that deepagents has itself, on a shell of this machine."""

    @property
    def id(self) -> str:
        return "local"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", command],
            env={**os.environ, **path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
        return ExecuteResponse(done.stdout.decode(errors="replace"), done.returncode)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        responses = []
        for path, content in files:
            if path.startswith("/"):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_bytes(content)
            responses.append(FileUploadResponse(path, None if path.startswith("/") else "invalid_path"))
        return responses

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        responses = []
        for path in paths:
            if not path.startswith("/"):
                responses.append(FileDownloadResponse(path, error="invalid_path"))
            elif os.path.isdir(path):
                responses.append(FileDownloadResponse(path, error="is_directory"))
            elif not os.path.exists(path) or not os.stat(path).st_mode & 0o444:  # root may read everything
                responses.append(FileDownloadResponse(path, error="file_not_found"))
            else:
                responses.append(FileDownloadResponse(path, Path(path).read_bytes()))
        return responses


class Contract(SandboxIntegrationTests):
    """The suite, and tests of what deepagents 0.7.32 says where the suite says something else."""

    folder: ClassVar[Path] = Path("/no/sandbox/yet")
    """In place of the fixed one in /tmp."""

    @property
    def sandbox_root_dir(self) -> str:
        return str(self.folder)

    @outdated(REPLACES)
    def test_write_existing_file_fails(
        self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        super().test_write_existing_file_fails(sandbox_backend, sandbox_test_root)

    @outdated(ABSOLUTE)
    def test_glob(self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str) -> None:
        super().test_glob(sandbox_backend, sandbox_test_root)

    @outdated(ABSOLUTE)
    def test_glob_basic_pattern(
        self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        super().test_glob_basic_pattern(sandbox_backend, sandbox_test_root)

    @outdated(FILES)
    def test_glob_with_directories(
        self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        super().test_glob_with_directories(sandbox_backend, sandbox_test_root)

    @outdated(ABSOLUTE)
    def test_glob_hidden_files_explicitly(
        self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        super().test_glob_hidden_files_explicitly(sandbox_backend, sandbox_test_root)

    @outdated(ABSOLUTE)
    def test_glob_with_character_class(
        self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        super().test_glob_with_character_class(sandbox_backend, sandbox_test_root)

    @outdated(ABSOLUTE)
    def test_glob_with_question_mark(
        self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        super().test_glob_with_question_mark(sandbox_backend, sandbox_test_root)

    def test_a_write_replaces_a_file(
        self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        path = self.sandbox_path("existing.txt", root_dir=sandbox_test_root)
        assert sandbox_backend.write(path, "First content").error is None
        assert sandbox_backend.write(path, "Second content").error is None
        assert sandbox_backend.execute(f"cat {shlex.quote(path)}").output == "Second content"

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            (
                "*.txt",
                {"file1.txt", "file2.txt", "file10.txt", "fileA.txt", "sub/deep/file1.txt", ".ci/in.txt"},
            ),
            ("**/*.txt", {"file1.txt", "file2.txt", "file10.txt", "fileA.txt", "sub/deep/file1.txt"}),
            ("/*.py", {"x.py"}),
            ("sub/**/file1.txt", {"sub/deep/file1.txt"}),
            (".*", {".hidden"}),
            ("file[1-2].txt", {"file1.txt", "file2.txt", "sub/deep/file1.txt"}),
            ("file?.txt", {"file1.txt", "file2.txt", "fileA.txt", "sub/deep/file1.txt"}),
            ("{x,y}.py", {"x.py", "sub/y.py"}),
            ("sub", set()),
        ],
    )
    def test_a_glob_finds_files_by_absolute_paths(
        self,
        pattern: str,
        found: set[str],
        sandbox_backend: SandboxBackendProtocol,
        sandbox_test_root: str,
    ) -> None:
        for name in (
            *("file1.txt", "file2.txt", "file10.txt", "fileA.txt", "x.py", ".hidden"),
            *("sub/y.py", "sub/deep/file1.txt", ".ci/in.txt"),
        ):
            assert sandbox_backend.write(f"{sandbox_test_root}/{name}", "content").error is None
        result = sandbox_backend.glob(pattern, path=sandbox_test_root)
        assert (result.error, result.truncated) == (None, False)
        assert result.matches is not None
        assert not any(match["is_dir"] for match in result.matches)
        paths = [match["path"] for match in result.matches]
        assert sorted(paths) == sorted(f"{sandbox_test_root}/{name}" for name in found)

    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_a_page_says_what_it_is_and_an_edit_keeps_the_line_ends(
        self, end: str, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        path = self.sandbox_path("lines.txt", root_dir=sandbox_test_root)
        lines = [f"Line {number}\u2028\f." for number in range(1, 8)]
        sandbox_backend.upload_files([(path, end.join([*lines, ""]).encode())])
        page = sandbox_backend.read(path, offset=2, limit=3)
        assert page.file_data is not None
        assert page.file_data["content"] == "\n".join(lines[2:5])
        assert (page.total_lines, page.start_line, page.end_line, page.next_offset) == (7, 3, 5, 5)
        last = sandbox_backend.read(path, offset=5, limit=100)
        assert (last.start_line, last.end_line, last.next_offset) == (6, 7, None)
        assert sandbox_backend.read(path, offset=-3, limit=1).start_line == 1
        assert sandbox_backend.read(path, limit=-3).no_lines_requested
        assert "exceeds file length" in (sandbox_backend.read(path, offset=7).error or "")
        assert sandbox_backend.edit(path, "\n".join(lines[2:4]), "one\ntwo").occurrences == 1
        (download,) = sandbox_backend.download_files([path])
        assert download.content == end.join([*lines[:2], "one", "two", *lines[4:], ""]).encode()

    def test_a_page_above_the_limit_of_bytes_can_be_continued(
        self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        path = self.sandbox_path("wide.txt", root_dir=sandbox_test_root)
        lines = [f"{number} " + "é" * 40_000 for number in range(10)]
        sandbox_backend.write(path, "\n".join(lines))
        read, offset = [], 0
        while True:
            page = sandbox_backend.read(path, offset=offset)
            assert page.file_data is not None
            assert page.end_line is not None
            content = page.file_data["content"]
            assert len(content.encode()) <= MAX_OUTPUT_BYTES
            read += content.split("\n")[: page.end_line - offset]
            if page.next_offset is None:
                break
            assert content.endswith(TRUNCATION_MSG)
            offset = page.next_offset
        assert read == lines

    def test_what_is_deleted_is_gone_with_all_that_is_in_it(
        self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        sandbox_backend.write(f"{sandbox_test_root}/folder/deep/file", "content")
        assert sandbox_backend.delete(f"{sandbox_test_root}/folder").error is None
        assert sandbox_backend.execute(f"ls -A {shlex.quote(sandbox_test_root)}").output == ""
        assert "not found" in (sandbox_backend.delete(f"{sandbox_test_root}/folder").error or "")

    def test_a_search_stops_at_its_largest_count(
        self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        sandbox_backend.write(f"{sandbox_test_root}/file", "word\n" * 5)
        for count, truncated in ((4, True), (5, False)):
            result = sandbox_backend.grep("word", path=sandbox_test_root, max_count=count)
            assert result.matches is not None
            assert (len(result.matches), result.truncated) == (count, truncated)


class TestExecserver(Contract):
    """Ours, with the default sandbox."""

    @pytest.fixture(scope="class")
    def sandbox(self, url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxBackendProtocol]:
        type(self).folder = tmp_path_factory.mktemp("suite")
        # For `python`, which this machine may not have.
        path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        with ExecServerSandbox(connect(url), root_dir=self.folder, env=path) as backend:
            yield backend


class TestDeepagents(Contract):
    """Theirs, so that this is a test of the interface, and not of us."""

    @pytest.fixture(scope="class")
    def sandbox(self, tmp_path_factory: pytest.TempPathFactory) -> SandboxBackendProtocol:
        type(self).folder = tmp_path_factory.mktemp("theirs")
        return LocalSandbox()
