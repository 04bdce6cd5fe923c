"""Modules that are loaded late: with a full table of descriptors too, which is a real one here."""

from __future__ import annotations

import subprocess
import sys

# A program whose table is full; 8 of it holds to give them up, as a daemon holds its spare ones.
PROGRAM = """
import contextlib, errno, os, resource, sys
from execserver.loading import LOADER
from execserver.protocol.methods import METHODS, load_shapes
from execserver.rpc.params import decode_params

held = []

@contextlib.contextmanager
def lend():
    while held:
        os.close(held.pop())
    yield

def decode():
    return decode_params(METHODS["process/terminate"], {"processId": "p"})

held.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(8))
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, hard))
for work in (decode, lambda: LOADER.load_without_spares(load_shapes)):
    try:
        work()
    except OSError as error:
        assert error.errno == errno.EMFILE
    else:
        sys.exit("there was room")
    assert "execserver.rpc.validation" not in sys.modules
LOADER.lend = lend
print(decode().process_id, held)
load_shapes()
"""


def test_a_full_table_costs_no_request_its_answer() -> None:
    said = subprocess.run([sys.executable, "-I", "-B", "-c", PROGRAM], capture_output=True, text=True)
    assert (said.stdout.split(), said.stderr) == (["p", "[]"], "")
