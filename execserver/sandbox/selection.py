"""The backends that may be used on this machine, in their order, and what their probes have shown.

Rules of this module:

1. bubblewrap comes first, then Landlock if the operator allowed it. With the setting `sandbox_backend` only
   the named backend limits files.
2. A limit on the network alone needs only seccomp where bubblewrap does not work.
3. A successful probe is trusted until a launch fails or a file of the backend is replaced, and for a minute
   if the backend is from an entry point. A failed one is repeated after a while.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from execserver.sandbox.backends import Landlock, SeccompOnly
from execserver.sandbox.diagnostics import probe
from execserver.sandbox.diagnostics.probe import ProbeResult
from execserver.sandbox.options import DaemonPaths, SandboxOptions

_ASK_AGAIN_SECONDS = 5.0
"""A failed backend may have been repaired meanwhile; a trial takes some 50 ms."""


class Candidate:
    """A backend that may be used, and the result of its probe.

    Args:
        name: its name in the setting, in messages and on the wire.
        try_it: runs the probe; may block.
        trusted: seconds for which a successful probe is valid.
    """

    def __init__(self, name: str, try_it: Callable[[], ProbeResult], *, trusted: float = math.inf) -> None:
        self.name = name
        self._try = try_it
        self._trusted = trusted
        self._lock = threading.Lock()
        self._result: ProbeResult | None = None
        self._until = 0.0

    def result(self) -> ProbeResult:
        """The result, of a new probe if there is none that is valid. May block."""
        with self._lock:
            known = self._result
            if known is None or time.monotonic() > self._until or (known.works and not known.is_current):
                known = self._result = self._try()
                self._until = time.monotonic() + (self._trusted if known.works else _ASK_AGAIN_SECONDS)
            return known

    def forget(self) -> None:
        """Probe again when the result is needed next."""
        with self._lock:
            self._result = None


class Selection:
    """The candidates of one daemon. May be used from any thread.

    Args:
        options: the settings.
        environment: the daemon's environment at its launch.
        state_folder: the daemon's own, for the files of probes.
        own: the daemon's own files, which sandboxes hide.
    """

    def __init__(
        self, options: SandboxOptions, environment: Mapping[str, str], state_folder: str, own: DaemonPaths
    ) -> None:
        bubblewrap = Candidate(
            "bubblewrap", lambda: probe.probe(options.bubblewrap, state_folder, environment.get("PATH"))
        )
        landlock = Candidate("landlock", lambda: probe.probe_backend("Landlock", Landlock(own), state_folder))
        self._seccomp = Candidate(
            "seccomp", lambda: probe.probe_backend("seccomp", SeccompOnly(), state_folder)
        )
        self._for_files = [bubblewrap, *([landlock] if options.allow_landlock else [])]

    def candidates(self, *, files_limited: bool) -> Sequence[Candidate]:
        """Those for a policy that limits files, or for one that limits only the network, in their order."""
        return self._for_files if files_limited else [self._for_files[0], self._seccomp]

    def forget(self) -> None:
        """Probe all again when their results are needed next."""
        for candidate in (*self._for_files, self._seccomp):
            candidate.forget()
