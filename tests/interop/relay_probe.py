"""The shared conformance probe through a relay's plain door.

`python -m tests.interop.relay_probe SHARED OPTIONS…` starts a relay, our executor behind it, and runs the
probe with a client's token and the options. What needs a server of its own, it leaves out by itself.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.interop.relay_peers import our_executor
from tests.support.relay_service import RelayService

ENVIRONMENT = "probed"


def main(argv: list[str]) -> int:
    """Run the probe; its exit status."""
    probe = Path(argv[0]) / "conformance" / "probe.py"
    if not probe.is_file():
        sys.stderr.write(f"{probe} is missing: set SHARED to the shared folder\n")
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="relay-probe-") as folder,
        RelayService(Path(folder) / "relay", "--plain-door", ENVIRONMENT) as relay,
        our_executor(relay, ENVIRONMENT, Path(folder) / "home") as executor,
    ):
        executor.wait_online(relay, ENVIRONMENT)
        url = f"ws{relay.url.removeprefix('http')}/exec/{ENVIRONMENT}"
        token = relay.token("client", ENVIRONMENT)
        command = [sys.executable, str(probe), "--url", url, "--token", token, *argv[1:]]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
