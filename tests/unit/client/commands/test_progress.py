from __future__ import annotations

import pytest

from execclient.commands.cp import progress_parts


@pytest.mark.parametrize(
    ("done", "total", "files", "seconds", "line"),
    [
        (0, None, "", 1.0, "0 B"),
        (512, None, "", 1.0, "512 B  512 B/s"),
        (1 << 20, 4 << 20, "", 2.0, "25%  1.0 MiB of 4.0 MiB  512 KiB/s  0:06 left"),
        (1 << 20, 8 << 30, "", 1.0, "0%  1.0 MiB of 8.0 GiB  1.0 MiB/s  2:16:31 left"),
        (5, 5, "3 of 3 files", 1.0, "3 of 3 files  100%  5 B of 5 B  5 B/s"),
        (9, 5, "", 0.0, "100%  9 B of 5 B"),
        (0, 0, "0 of 0 files", 1.0, "0 of 0 files  0 B of 0 B"),
    ],
)
def test_the_parts_of_a_progress_line(
    done: int, total: int | None, files: str, seconds: float, line: str
) -> None:
    assert "  ".join(progress_parts(done, total, files, seconds)) == line
