"""Modules that are loaded late: with a full table of descriptors too, which is a real one here."""

from __future__ import annotations

import subprocess
import sys

# A program whose table is full.
PROGRAM = """
import os, resource
from execprotocol.errors import InvalidParams
from execprotocol.methods import METHODS
from execserver.rpc.params import decode_params

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
start = {"processId": "p", "argv": ["a"], "cwd": "file:///", "env": {}, "tty": False}
metadata = {"threadId": "12345678-1234-1234-1234-123456789012"}
print(decode_params(METHODS["process/start"], start | {"metadata": metadata}).process_id)
try:
    decode_params(METHODS["fs/walk"], {"path": 5})
except InvalidParams as error:
    print(error.field)
try:
    os.open(os.devnull, os.O_RDONLY)
except OSError:
    print("full")
"""


def test_parameters_are_decoded_and_refused_with_a_full_table() -> None:
    said = subprocess.run([sys.executable, "-I", "-B", "-c", PROGRAM], capture_output=True, text=True)
    assert (said.stdout.split(), said.stderr) == (["p", "path", "full"], "")


# A program whose table is full; 8 of it holds to give them up, as a daemon holds its reserved ones.
LATE = """
import contextlib, errno, os, resource, sys
from importlib import import_module
from execserver.loading import LOADER

held = []

@contextlib.contextmanager
def use_reserved_descriptors():
    while held:
        os.close(held.pop())
    yield

held.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(8))
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, hard))
for load in (LOADER.load, LOADER.load_without_reserved):
    try:
        load(lambda: import_module("tabnanny"))
    except OSError as error:
        assert error.errno == errno.EMFILE
        continue
    sys.exit("there was room")
LOADER.use_reserved_descriptors = use_reserved_descriptors
print(LOADER.load(lambda: import_module("tabnanny")).__name__, held)
"""


def test_a_late_import_takes_the_reserved_descriptors_of_a_full_table() -> None:
    said = subprocess.run([sys.executable, "-I", "-B", "-c", LATE], capture_output=True, text=True)
    assert (said.stdout.split(), said.stderr) == (["tabnanny", "[]"], "")
