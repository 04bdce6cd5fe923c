"""The files of a daemon for fsspec: `fsspec.filesystem("execserver")`, `fsspec.open("execserver:///PATH")`.

    file_system.py   the file system: URLs, listings, contents, changes of names
    open_files.py    files that `open` and `open_async` return
    sessions.py      a session for each event loop, and calls that outlast it

`docs/how-to/fsspec.md`.
"""

try:
    import fsspec  # noqa: F401
except ImportError as error:
    raise ImportError(
        'execclient.integrations.fsspec needs fsspec: pip install "execclient[fsspec]"'
    ) from error

from execclient.integrations.fsspec.file_system import ExecServerFileSystem as ExecServerFileSystem
