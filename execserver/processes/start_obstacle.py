"""Explains a failed start: finds what is missing or in the way.

The error of the system call is the same for a missing working directory, program and interpreter. The disk
tells which of them it was, if it still gives the same error. The result only explains, for the disk may have
changed in between.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from execserver.launch_spec import DEFAULT_PATH, find_program

MAX_STRING_BYTES = 131071
"""The limit of Linux for one argument, or one variable with its name (MAX_ARG_STRLEN, without the NUL)."""

_POINTER_BYTES = 8
_LEAST_TOTAL_BYTES, _MOST_TOTAL_BYTES = 128 << 10, 6 << 20
"""The limits of Linux for all arguments and variables together, each with its NUL and a pointer: a quarter of
the soft limit of the stack, but no less and no more than this."""

MAX_DEPTH = 4
"""How many scripts may be interpreters of scripts: the kernel's limit."""

_HEAD_BYTES = 4096
_SHOWN_PATH_CHARACTERS = 1000

_SEGMENT_BYTES = {False: 32, True: 56}
"""The size of an entry in the table of segments, in ELF files of 32 and 64 bits."""

_MOST_SEGMENTS_BYTES = 64 << 10
"""The size of the whole table: the kernel's limit."""

_PROGRAM_INTERPRETER = 3
"""PT_INTERP: the segment of an ELF file with the path of its loader."""

_FOLDER_TEXTS = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "is no directory, or a part of its path is none",
    errno.EACCES: "may not be entered",
    errno.ELOOP: "is behind too many links",
    errno.ENAMETOOLONG: "has a path or a name that is too long",
}

_FILE_TEXTS = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "has a file in its path where a directory is needed",
    errno.EACCES: "is in a folder that may not be entered",
    errno.ELOOP: "is behind too many links",
    errno.ENAMETOOLONG: "has a path or a name that is too long",
}


MayRead = Callable[[str], bool]
"""Whether the content of the file at this path may be revealed."""


class Obstacle(NamedTuple):
    """The reason why a program could not be started."""

    field: str
    """The parameter of the start that has to change."""
    reason: str
    """A sentence for people."""
    path: str | None = None
    """The folder, the program or the interpreter; None for another reason."""


def find_obstacle(
    error: OSError | ValueError,
    argv: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    may_read: MayRead = lambda _: True,
) -> Obstacle | None:
    """Why a start failed, if that can be found.

    Args:
        error: of the start.
        argv: the program as in the request, and its arguments.
        cwd: the working directory, absolute.
        environment: that of the child.
        may_read: whether the content of a file may be revealed; a sandbox may deny that.
    """
    try:
        return _found(error, argv, cwd, environment, may_read)
    except (OSError, ValueError):
        return None  # the disk has changed meanwhile


def require_interpreter(program: str, cwd: str, may_read: MayRead) -> None:
    """Raise the error that a spawn would for a missing interpreter, for a program that a sandbox starts.

    Raises:
        OSError: ENOENT, the interpreter is missing.
    """
    path = os.path.join(cwd, program)
    for _ in range(MAX_DEPTH):
        interpreter = _interpreter(path) if may_read(path) else None
        if interpreter is None:
            return
        path = os.path.join(cwd, interpreter)
        # A script may name any path. Whether a file exists that may not be read is not revealed.
        if may_read(path) and not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def require_lengths(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise the error that a spawn would for arguments or variables that are too long, for a program that a
    sandbox starts: the sandbox's own error would be about its launcher.

    Raises:
        OSError: E2BIG.
    """
    variables = [f"{name}={value}" for name, value in environment.items()]
    # A character has four bytes at most, so counting characters is mostly enough.
    strings = [*argv, *variables]
    if sum(map(len, strings)) * 4 <= min(MAX_STRING_BYTES, _LEAST_TOTAL_BYTES - len(strings) * 16):
        return
    sizes = [len(os.fsencode(string)) for string in strings]
    if max(sizes) > MAX_STRING_BYTES or _passed_bytes(sizes) > _most_passed_bytes():
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))


def _passed_bytes(sizes: Sequence[int]) -> int:
    return sum(sizes) + len(sizes) * (1 + _POINTER_BYTES)


def _most_passed_bytes() -> int:
    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    quarter = _MOST_TOTAL_BYTES if soft == resource.RLIM_INFINITY else soft // 4
    return max(_LEAST_TOTAL_BYTES, min(quarter, _MOST_TOTAL_BYTES))


def _found(
    error: OSError | ValueError,
    argv: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    may_read: MayRead,
) -> Obstacle | None:
    if isinstance(error, ValueError):
        return _with_nul(argv, environment)
    if error.errno == errno.E2BIG:
        return _too_long(argv, environment)
    folder = _of_folder(cwd, error.errno)
    if folder is not None:
        return folder
    program = argv[0]
    if "/" in program:
        return _of_program(os.path.join(cwd, program), error.errno, may_read)
    path = environment.get("PATH", DEFAULT_PATH)
    try:
        return _of_program(find_program(program, path, cwd), error.errno, may_read)
    except OSError as failure:
        if failure.errno != error.errno:
            return None
        what = "is only found as a file that is not executable" if failure.errno == errno.EACCES else "is not"
        return Obstacle(
            "argv",
            f"the program {program} {what} in the PATH of the executor: {path[:_SHOWN_PATH_CHARACTERS]}",
        )


def _with_nul(argv: Sequence[str], environment: Mapping[str, str]) -> Obstacle | None:
    for place, argument in enumerate(argv):
        if "\0" in argument:
            return Obstacle("argv", f"argv[{place}] holds a NUL character, which no argument can")
    for name, value in environment.items():
        if "\0" in name or "\0" in value:
            return Obstacle("env", f"the variable {name!r} holds a NUL character, which none can")
    return None


def _too_long(argv: Sequence[str], environment: Mapping[str, str]) -> Obstacle:
    for place, argument in enumerate(argv):
        size = len(os.fsencode(argument))
        if size > MAX_STRING_BYTES:
            return Obstacle(
                "argv",
                f"argv[{place}] has {size} bytes, and an argument may have {MAX_STRING_BYTES}: "
                "write it to a file, or pass it by standard input (a script by `sh -s`)",
            )
    passed = [len(os.fsencode(argument)) for argument in argv]
    for name, value in environment.items():
        size = len(os.fsencode(f"{name}={value}"))
        passed.append(size)
        if size > MAX_STRING_BYTES:
            return Obstacle(
                "env",
                f"the variable {name} has {size} bytes, and one may have {MAX_STRING_BYTES} with its name: "
                "write its value to a file",
            )
    size = sum(len(os.fsencode(argument)) + 1 for argument in argv)
    plural = "s" if len(argv) > 1 else ""
    return Obstacle(
        "argv",
        f"the {len(argv)} argument{plural} have {size} bytes, and with the environment "
        f"{_passed_bytes(passed)}; a program gets at most {_most_passed_bytes()} here: write them to a file, "
        "or pass them by standard input",
    )


def _of_folder(cwd: str, number: int | None) -> Obstacle | None:
    found: int | None = None
    try:
        if not stat.S_ISDIR(os.stat(cwd).st_mode):
            found = errno.ENOTDIR
        elif not os.access(cwd, os.X_OK):
            found = errno.EACCES
    except OSError as error:
        found = error.errno
    if found is None or found != number or found not in _FOLDER_TEXTS:
        return None
    return Obstacle("cwd", f"the working directory {cwd} {_FOLDER_TEXTS[found]}", cwd)


def _of_program(path: str, number: int | None, may_read: MayRead) -> Obstacle | None:
    return _of_file(f"the program {path}", path, number, may_read)


def _of_file(named: str, path: str, number: int | None, may_read: MayRead, depth: int = 0) -> Obstacle | None:
    """The fault of a program, or of the interpreter that it needs."""
    if depth and not may_read(path):
        return None
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if error.errno != number or error.errno not in _FILE_TEXTS:
            return None
        text = _FILE_TEXTS[error.errno]
        if error.errno == errno.ENOENT and os.path.islink(path) and may_read(path):
            text = f"is a link to {os.readlink(path)}, which does not exist"
        if path.endswith("\r"):
            text += ": the line that names it ends with CR LF, and must end with LF"
        return Obstacle("argv", f"{named} {text}", path)
    if number == errno.EACCES:
        obstacle = _not_executable(path, mode)
        if obstacle is not None:
            return Obstacle("argv", f"{named} {obstacle}", path)
    if number == errno.ETXTBSY:
        return Obstacle("argv", f"{named} is open for writing", path)
    is_looked_into = stat.S_ISREG(mode) and depth < MAX_DEPTH and may_read(path)
    interpreter = _interpreter(path) if is_looked_into else None
    if interpreter is not None:
        named = f"the interpreter {interpreter} of {path}"
        return _of_file(named, interpreter, number, may_read, depth + 1)
    if number == errno.ENOEXEC:
        text = "is neither a program for this machine nor a script that begins with #!"
        return Obstacle("argv", f"{named} {text}", path)
    return None


def _not_executable(path: str, mode: int) -> str | None:
    if stat.S_ISDIR(mode):
        return "is a directory"
    if not stat.S_ISREG(mode):
        return "is no regular file"
    if not mode & 0o111:
        return "is not executable: chmod +x would make it so"
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        return "is on a file system that is mounted with noexec"
    if not os.access(path, os.X_OK):
        return "may not be executed by the executor's user"
    return None


def _interpreter(path: str) -> str | None:
    """The program that the kernel starts for a script, or to load a program; None if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        head = os.pread(descriptor, _HEAD_BYTES, 0)
        if head.startswith(b"#!"):
            words = head[2:].partition(b"\n")[0].strip(b" \t").replace(b"\t", b" ").split(b" ")
            return os.fsdecode(words[0]) or None
        return _loader(descriptor, head) if head.startswith(b"\x7fELF") else None
    except (OSError, struct.error, IndexError, OverflowError):
        return None  # the file has changed, or was never valid
    finally:
        os.close(descriptor)


def _loader(descriptor: int, head: bytes) -> str | None:
    is_wide = head[4] == 2
    order = "<" if head[5] == 1 else ">"
    table = struct.unpack_from(f"{order}{'Q' if is_wide else 'I'}", head, 32 if is_wide else 28)[0]
    size, count = struct.unpack_from(f"{order}HH", head, 54 if is_wide else 42)
    if size != _SEGMENT_BYTES[is_wide] or size * count > _MOST_SEGMENTS_BYTES:
        return None  # the kernel refuses it, too, and the table could have gigabytes
    headers = os.pread(descriptor, size * count, table)
    for at in range(0, len(headers), size):
        if struct.unpack_from(f"{order}I", headers, at)[0] != _PROGRAM_INTERPRETER:
            continue
        if is_wide:
            offset, length = (struct.unpack_from(f"{order}Q", headers, at + place)[0] for place in (8, 32))
        else:
            offset, length = (struct.unpack_from(f"{order}I", headers, at + place)[0] for place in (4, 16))
        name = os.pread(descriptor, min(length, _HEAD_BYTES), offset).partition(b"\0")[0]
        return os.fsdecode(name) or None
    return None
