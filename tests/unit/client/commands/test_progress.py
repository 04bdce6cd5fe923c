from __future__ import annotations

import pytest

from execclient.commands.cp import progress_parts


@pytest.mark.parametrize(
    ("done", "total", "files", "seconds", "line"),
    [
        (0, None, "", 1.0, "0 bytes"),
        (512, None, "", 1.0, "512 bytes  512 bytes/s"),
        (1 << 20, 4 << 20, "", 2.0, "25%  1.0 MiB of 4.0 MiB  512.0 KiB/s  0:06 left"),
        (1 << 20, 8 << 30, "", 1.0, "0%  1.0 MiB of 8.0 GiB  1.0 MiB/s  2:16:31 left"),
        (5, 5, "3 of 3 files", 1.0, "3 of 3 files  100%  5 bytes of 5 bytes  5 bytes/s"),
        (9, 5, "", 0.0, "100%  9 bytes of 5 bytes"),
        (0, 0, "0 of 0 files", 1.0, "0 of 0 files  0 bytes of 0 bytes"),
    ],
)
def test_the_parts_of_a_progress_line(
    done: int, total: int | None, files: str, seconds: float, line: str
) -> None:
    assert "  ".join(progress_parts(done, total, files, seconds)) == line
