"""Join a network namespace of a sandbox.

Only what a bare interpreter has: the program of a stream (`execserver/ports/stream.py`) starts for each
connection.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os

_NS_GET_USERNS = 0xB701  # include/uapi/linux/nsfs.h
_CLONE_NEWUSER = 0x1000_0000
_CLONE_NEWNET = 0x4000_0000

_libc = ctypes.CDLL(None, use_errno=True)


def join_network(network: int) -> None:
    """Move this process, which must have one thread, into a network namespace.

    An ordinary user must join the owning user namespace first, and cannot leave it again. So a child does
    this, which ends.

    Args:
        network: a descriptor of the namespace.

    Raises:
        OSError: it cannot be joined.
    """
    try:
        _set_namespace(network, _CLONE_NEWNET)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        # Only in the namespace that owns it an ordinary user has the capability.
        owner = fcntl.ioctl(network, _NS_GET_USERNS)
        _set_namespace(owner, _CLONE_NEWUSER)
        os.close(owner)
        _set_namespace(network, _CLONE_NEWNET)


def _set_namespace(descriptor: int, kind: int) -> None:
    if _libc.setns(descriptor, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the sandbox's namespace cannot be joined: {os.strerror(number)}")
