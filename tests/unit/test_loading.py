"""Modules that are loaded late: with a full table of descriptors too, which is a real one here."""

from __future__ import annotations

import subprocess
import sys

# A program whose table is full.
PROGRAM = """
import os, resource
from execserver.protocol.errors import InvalidParams
from execserver.protocol.methods import METHODS
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


# The same for modules that are put off, and for a family of methods; 8 of the table it holds to give them up,
# as a daemon holds its spare ones.
DEFERRED = """
import contextlib, os, resource, sys
from execserver.api.families import Families
from execserver.loading import LOADER, deferred, load_deferred

held = []

@contextlib.contextmanager
def lend():
    while held:
        os.close(held.pop())
    yield

wave = deferred("wave")
families = Families()
families.put_off(["a"], lambda: {"a": __import__("tabnanny").check})
held.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(8))
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, hard))
for work in (load_deferred, families.make_all, lambda: wave.open):
    try:
        work()
    except OSError:
        continue
    sys.exit("there was room")
LOADER.lend = lend
print(families["a"].__name__, wave.open.__name__, held)
load_deferred()
print(sys.modules["wave"].open is wave.open)
"""


def test_a_full_table_keeps_nobody_from_what_is_put_off() -> None:
    said = subprocess.run([sys.executable, "-I", "-B", "-c", DEFERRED], capture_output=True, text=True)
    assert (said.stdout.split(), said.stderr) == (["check", "open", "[]", "True"], "")
