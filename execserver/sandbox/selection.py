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

from execserver.sandbox.backend import BackendError, SandboxBackend
from execserver.sandbox.backends import Landlock, SeccompOnly
from execserver.sandbox.diagnostics import probe
from execserver.sandbox.diagnostics.probe import ProbeResult
from execserver.sandbox.options import DaemonPaths, SandboxOptions

_ASK_AGAIN_SECONDS = 5.0
"""A failed backend may have been repaired meanwhile; a trial takes some 50 ms."""


BUBBLEWRAP_FIRST = ("auto", "bubblewrap")
"""The values of the setting with which bubblewrap is the first backend."""

_TRUSTED_SECONDS = 60.0
"""A backend from an entry point is tried again after this time, because its code may change what it does."""


class Candidate:
    """A backend that may be used, and the result of its probe.

    Args:
        name: its name in the setting, in messages and on the wire.
        try_it: runs the probe; may block.
        trusted: seconds for which a successful probe is valid.
        foreign: whether it is from an entry point.
    """

    def __init__(
        self,
        name: str,
        try_it: Callable[[], ProbeResult],
        *,
        trusted: float = math.inf,
        foreign: bool = False,
    ) -> None:
        self.name = name
        self.foreign = foreign
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
        seccomp = Candidate("seccomp", lambda: probe.probe_backend("seccomp", SeccompOnly(), state_folder))
        match options.backend:
            case "auto":
                self._for_files = [bubblewrap, *([landlock] if options.allow_landlock else [])]
            case "bubblewrap":
                self._for_files = [bubblewrap]
            case "landlock":
                self._for_files = [landlock]
            case name:
                self._for_files = [_foreign(name, state_folder)]
        first = self._for_files[:1] if self._for_files[0] is bubblewrap else []
        self._for_network = [*first, seccomp]

    def candidates(self, *, files_limited: bool) -> Sequence[Candidate]:
        """Those for a policy that limits files, or for one that limits only the network, in their order."""
        return self._for_files if files_limited else self._for_network

    def forget(self) -> None:
        """Probe all again when their results are needed next."""
        for candidate in (*self._for_files, *self._for_network):
            candidate.forget()


def _foreign(name: str, state_folder: str) -> Candidate:
    """A backend from an entry point, which is loaded by the first probe."""
    loaded: list[SandboxBackend] = []

    def try_it() -> ProbeResult:
        from execserver.sandbox import entry_points

        try:
            if not loaded:
                loaded.append(entry_points.load(name))
            return probe.probe_backend(f"the sandbox backend {name}", loaded[0], state_folder)
        except (BackendError, ValueError) as error:
            return ProbeResult(False, str(error), "install or repair its package, or change the setting")

    return Candidate(name, try_it, trusted=_TRUSTED_SECONDS, foreign=True)
