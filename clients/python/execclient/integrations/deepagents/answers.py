"""Texts for a model: results and failures."""

from __future__ import annotations

import errno

from deepagents.backends.protocol import FILE_NOT_FOUND, IS_DIRECTORY, PERMISSION_DENIED, FileData, ReadResult
from deepagents.backends.sandbox import MAX_BINARY_BYTES, MAX_OUTPUT_BYTES, TRUNCATION_MSG

from execclient import NotFound, RunResult


def output_text(result: RunResult, limit: int) -> str:
    """Both streams in the order in which they were read. A notice stands for what was left out."""
    data = result.aggregated
    if not result.aggregated_truncated:
        return data.decode("utf-8", "replace")
    head = limit - limit // 2
    notice = f"\n... [{result.aggregated_truncated} bytes left out] ...\n"
    return data[:head].decode("utf-8", "replace") + notice + data[head:].decode("utf-8", "replace")


def page(file_path: str, text: str, offset: int, limit: int) -> ReadResult:
    """Some lines, as the script of deepagents returns them: ends are LF, and none is at the end."""
    if not text:
        return ReadResult(file_data=FileData(content="", encoding="utf-8"))
    if limit == 0:
        return ReadResult(file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
    if offset >= len(lines):
        return ReadResult(
            error=f"File '{file_path}': Line offset {offset} exceeds file length ({len(lines)} lines)"
        )
    content = "\n".join(lines[offset : offset + limit])
    end = min(offset + limit, len(lines))
    room = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG.encode())
    encoded = content.encode()
    if len(encoded) > room:
        content = encoded[:room].decode(errors="ignore")
        # The next page begins with the line that is cut here, unless it is the only one.
        end = offset + (content.count("\n") or 1)
        content += TRUNCATION_MSG
    return ReadResult(
        file_data=FileData(content=content, encoding="utf-8"),
        total_lines=len(lines),
        start_line=offset + 1,
        end_line=end,
        next_offset=end if end < len(lines) else None,
    )


def too_large(file_path: str) -> ReadResult:
    """The result for a binary file that is too large to be shown."""
    return ReadResult(
        error=f"File '{file_path}': Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes"
    )


def reason(error: Exception) -> str:
    """The word of deepagents for a failure, else its text."""
    if isinstance(error, NotFound):
        return FILE_NOT_FOUND
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno == errno.EROFS):
        return PERMISSION_DENIED
    if isinstance(error, IsADirectoryError):
        return IS_DIRECTORY
    if isinstance(error, NotADirectoryError):
        return "not_a_directory"
    return str(error)


def explained(error: Exception) -> str:
    """The word, and the text where that says more."""
    word = reason(error)
    return word if word == str(error) else f"{word}: {error}"


def shown(path: str) -> str:
    """A path for a model: a name that is not UTF-8 would fail in its request."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
