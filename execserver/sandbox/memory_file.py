"""Handing content to a launcher by a descriptor."""

from __future__ import annotations

import os


def memory_file(content: bytes) -> int:
    """A close-on-exec descriptor from which the content can be read once.

    Raises:
        OSError: no descriptor or no memory is to be had.
    """
    fd = os.memfd_create("execserver", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
