"""All sandboxes of the daemon: the choice of a backend, and the setup of each confinement.

Rules of this module:

1. A policy that limits anything is enforced by a backend that was seen to confine on this machine, or the
   request is refused with the reason and the fix.
2. The first backend that works and can state the view is used (`selection.py`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from execprotocol.errors import InvalidRequest
from execserver.sandbox import (
    backends,
    bare_roots,
    devices,
    disk,
    entry_points,
    glob_search,
    refused,
    selection,
    state_folder,
    view,
)
from execserver.sandbox.backend import BackendError, Sandbox, Sources, needs_own_name
from execserver.sandbox.mount_points import adopted, description, registry
from execserver.sandbox.options import TOOL_PATH, DaemonPaths, SandboxOptions
from execserver.telemetry.logs import Logger

if TYPE_CHECKING:
    from execserver.launch_spec import LaunchSpec
    from execserver.sandbox.confinement import Confinement
    from execserver.sandbox.diagnostics.probe import ProbeResult
    from execserver.sandbox.policy import Policy

log = Logger()


_NOT_MANAGED = "has no network namespace that a network proxy could enter; install bubblewrap"

_LOOK_SECONDS = 1.0
_LEAST_LOOKS = 10
"""How long, and how often at least, the disk is looked at for one sandbox while folders vanish."""


class _Tools(msgspec.Struct, frozen=True):
    """Programs of the host that start a command inside a sandbox."""

    bash: str | None = None
    setsid: str | None = None


class Sandboxes:
    """Makes confinements. All methods but `prepare_in_thread` may block, and may be called from any thread.

    Args:
        options: the settings.
        own: files that every sandbox hides; the state folder is added.
        environment: the daemon's environment at its launch.
    """

    def __init__(self, options: SandboxOptions, own: DaemonPaths, environment: Mapping[str, str]) -> None:
        self._options = options
        self._environment = environment
        self._own = own
        self._lock = threading.Lock()
        self._selection: selection.Selection | None = None
        self._state: str | None = None
        self._mount_points: registry.MountPoints | None = None
        self._devices: devices.Devices | None = None
        self._bare_roots: bare_roots.BareRoots | None = None
        self._warned_of_devices = False
        self._open: set[Confinement] = set()

    def sweep(self) -> None:
        """Remove mount points that dead daemons left in workspaces. Never raises."""
        try:
            self._open_state()
            assert self._state is not None
            entry_points.sweep(self._state)
            removed = self._mounts().sweep()
        except Exception as error:
            log.warning("sandboxes are not available", reason=str(error))
            return
        if removed:
            log.info("removed mount points that were left behind", count=len(removed))

    def warm_up(self) -> None:
        """Probe the backends before the first request needs the result. Never raises."""
        try:
            self._open_state()
            first = self._candidates(files_limited=True)[0]
            result = first.result()
        except Exception:
            return  # `sweep` has logged the reason, and every request reports it
        if not result.works:
            log.warning(f"{first.name} is not available", reason=result.reason, fix=result.fix)
            return
        # Loaded now, so that the first denied command does not wait for the import.
        from execserver.sandbox import denial  # noqa: F401

    def obstacle(self) -> str | None:
        """Why no limit on files can be enforced here, with the fix; None if some can. Blocks."""
        reasons = []
        try:
            self._open_state()
            for candidate in self._candidates(files_limited=True):
                result = candidate.result()
                if result.works:
                    return None
                reasons.append(_reason(result))
        except (OSError, state_folder.StateFolderError) as error:
            return str(error)
        return "; and ".join(reasons)

    def prepare(
        self,
        policy: Policy,
        command: LaunchSpec,
        extra: tuple[str, ...] = (),
    ) -> Confinement:
        """Make the confinement of one command.

        Args:
            policy: a policy that limits something.
            command: the command to run.
            extra: paths that are readable inside under every policy.

        Raises:
            InvalidRequest: the policy cannot be enforced here; the message names the reason and the fix.
        """
        deadline = time.monotonic() + _LOOK_SECONDS
        for attempt in count(1):
            try:
                self._open_state()
                confinement = self._prepare(policy, command, extra)
            except state_folder.StateFolderError as error:
                raise refused(str(error), "sandbox") from None
            except ValueError as error:
                raise refused(str(error), "sandbox") from None
            except OSError as error:
                # A folder that was seen may be gone at its use: the mount point of a sandbox that has ended.
                changes = isinstance(error, FileNotFoundError)
                if changes and (attempt < _LEAST_LOOKS or time.monotonic() < deadline):
                    continue
                raise refused(f"{os.strerror(error.errno or 0)}: {_named(error)}", "sandbox") from None
            break
        self._open.add(confinement)
        return confinement

    async def prepare_in_thread(
        self, policy: Policy, command: LaunchSpec, extra: tuple[str, ...] = ()
    ) -> Confinement:
        """`prepare` in a thread. If this is cancelled, the confinement is released once it is made."""
        import asyncio  # late: `doctor` has no loop

        loop = asyncio.get_running_loop()
        making = loop.run_in_executor(None, self.prepare, policy, command, extra)

        def release(made: asyncio.Future[Confinement]) -> None:
            if not made.cancelled() and made.exception() is None:
                loop.run_in_executor(None, self.release, made.result())

        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(release)
            raise

    def adopt(self, state: object, descriptors: Sequence[int]) -> Confinement:
        """Adopt a sandbox that a dead server made. Call it before the first `prepare`.

        Never raises: if the state cannot be parsed, its locks are released with the sandbox.

        Args:
            state: the description from `Confinement.recovery_state`.
            descriptors: copies of its descriptors, in the same order; they belong to the sandbox from now on.
        """
        confinement: Confinement
        try:
            self._open_state()
            known = description.parse(state)
            has_lease = known.mount_points or descriptors
            lease = self._mounts().adopt(known.mount_points, descriptors) if has_lease else None
            if known.watched is None:
                watched = self._watch(bare_roots.candidates(known.policy))
            else:
                watched = self._watches().watch_again(known.watched) if known.watched else None
            confinement = adopted.AdoptedSandbox(known, lease, watched)
        except (ValueError, OSError, state_folder.StateFolderError) as error:
            log.warning("a sandbox of the server before cannot be understood", reason=str(error))
            confinement = adopted.UnknownSandbox(state, descriptors, self._mount_points)
        self._open.add(confinement)
        return confinement

    def release(self, confinement: Confinement) -> None:
        """Release a confinement after its last process has ended."""
        confinement.release()
        self._open.discard(confinement)

    def launch_failed(self) -> None:
        """Probe again, because a launch failed through a fault of the launcher."""
        if self._selection is not None:
            self._selection.forget()

    def close(self) -> None:
        """Release everything; for the end of the daemon."""
        # Other threads may still remove from the set: its operations are atomic, and release is idempotent.
        while self._open:
            self._open.pop().release()
        if self._bare_roots is not None:
            self._bare_roots.close()
        if self._mount_points is not None:
            with suppress(OSError):
                self._mount_points.sweep()  # folders that another daemon still used when we released them
            self._mount_points.close()

    # -- backends

    def _prepare(self, policy: Policy, command: LaunchSpec, extra: tuple[str, ...]) -> Confinement:
        if sys.platform == "darwin":
            if policy.managed_network:
                raise refused(f"Seatbelt {_NOT_MANAGED}", "enforceManagedNetwork")
            return self._seatbelted(policy, command)
        if not sys.platform.startswith("linux"):
            raise InvalidRequest(
                "failed to prepare process sandbox: there is no sandbox backend on this platform "
                f"({sys.platform})",
                name="sandbox_unavailable",
                field="sandbox",
            )
        reasons = []
        for candidate in self._candidates(files_limited=policy.limits_files):
            result = candidate.result()
            if result.backend is None:
                reasons.append(_reason(result))
                continue
            if policy.managed_network and candidate.name != "bubblewrap":
                reasons.append(f"{candidate.name} {_NOT_MANAGED}")
                continue
            seen, tools = self._view(result, policy, command, extra)
            try:
                reason = result.backend.unstatable(seen)
                if reason is None:
                    return self._confined(candidate, result, seen, policy, command, tools, bool(extra))
            except BackendError as error:
                candidate.forget()
                reason = str(error)
            reasons.append(reason)
        raise InvalidRequest(
            f"failed to prepare process sandbox: {'; and '.join(reasons)}", name="sandbox_unavailable"
        )

    def _candidates(self, *, files_limited: bool) -> Sequence[selection.Candidate]:
        assert self._selection is not None
        return self._selection.candidates(files_limited=files_limited)

    def _view(
        self, result: ProbeResult, policy: Policy, command: LaunchSpec, extra: tuple[str, ...]
    ) -> tuple[view.View, _Tools]:
        """What the command sees with the backend of a probe, and programs that start the command inside."""
        inspection = result.inspection
        tools = _Tools()
        if result.backend is not None and result.backend.namespaces:
            tools = _Tools(
                self._tool("bash", "bash", "arg0") if needs_own_name(command) else None,
                self._tool("setsid", "util-linux", "tty") if command.tty else None,
            )
        used = (*filter(None, (tools.setsid, tools.bash)), *inspection.inside)
        own = replace(self._own, code=(*self._own.code, *inspection.files))
        needs = view.RequiredPaths(command.cwd, command.program, used, extra)
        return view.build_view(policy, own, needs), tools

    def _confined(
        self,
        candidate: selection.Candidate,
        result: ProbeResult,
        seen: view.View,
        policy: Policy,
        command: LaunchSpec,
        tools: _Tools,
        worker: bool,
    ) -> Confinement:
        backend = result.backend
        assert self._state is not None
        assert backend is not None
        sources = Sources(
            state_folder.empty_file(self._state),
            state_folder.empty_folder(self._state),
            self._device_folder(policy) if backend.namespaces else None,
        )
        points = seen.mount_points
        lease = self._mounts().acquire(points, seen.not_shared) if points else None
        held: dict[str, int] = {}
        watched = folder = None
        try:
            for target in lease.foreign if lease is not None else ():
                if os.path.islink(target):
                    raise refused(f"{target} became a symbolic link just now", "sandbox")
            held = _hold(seen) if "bind-fd" in result.features else {}
            watched = self._watch(seen.bare_roots)
            # An fs worker outlives other users of the folders, and has to see what they put there.
            made = frozenset(lease.made) if lease is not None and not worker else frozenset[str]()
            sandbox = Sandbox(
                view=seen, sources=sources, bash=tools.bash, setsid=tools.setsid, held=held, made=made
            )
            made_by = candidate.name
            if not candidate.foreign:
                return backends.BackendConfinement(
                    policy, command.cwd, made_by, backend, sandbox, lease, watched
                )
            folder = entry_points.SandboxFolder(self._state)
            sandbox = replace(sandbox, folder=folder.path, dies_with_parent=worker, gated=not worker)
            launch = backend.wrap(command, sandbox)
            return backends.PreparedConfinement(
                policy, command.cwd, made_by, backend, sandbox, lease, watched, launch=launch, folder=folder
            )
        except BaseException:
            for fd in held.values():
                os.close(fd)
            for taken in (folder, watched, lease):
                if taken is not None:
                    taken.release()
            raise

    def _watch(self, roots: Sequence[str]) -> bare_roots.WatchedRoots | None:
        return self._watches().watch(roots) if roots else None

    def _watches(self) -> bare_roots.BareRoots:
        with self._lock:
            if self._bare_roots is None:
                self._bare_roots = bare_roots.BareRoots()
            return self._bare_roots

    def _device_folder(self, policy: Policy) -> str | None:
        assert self._devices is not None
        if not policy.limits_files:
            return None
        folder = self._devices.folder()
        if self._devices.reason and not self._warned_of_devices:
            self._warned_of_devices = True
            log.warning(
                "commands in sandboxes can change the modes of /dev/null and its like",
                reason=self._devices.reason,
            )
        return folder

    def _seatbelted(self, policy: Policy, command: LaunchSpec) -> Confinement:
        from execserver.sandbox import seatbelt  # not on Linux

        if not os.access(seatbelt.PROGRAM, os.X_OK):
            raise refused(f"{seatbelt.PROGRAM} is missing", "sandbox")
        if needs_own_name(command):
            raise refused("sandbox-exec cannot give a program another name", "arg0")
        budget = glob_search.Budget()
        denied = [*self._own.folders, *self._own.files]
        for pattern in policy.deny_globs:
            denied += glob_search.expand(pattern, [command.cwd], policy.glob_depth, budget, denies=True)
        granted = seatbelt.grants(policy, home=self._own.home, denied=denied)
        return backends.SeatbeltConfinement(policy, command.cwd, seatbelt.profile(granted))

    def _tool(self, name: str, package: str, field: str) -> str:
        import shutil  # slow to load, and rarely needed

        path = shutil.which(name, path=TOOL_PATH)
        if path is None:
            raise refused(f"the program {name} is missing: install {package}", field)
        return path

    # -- state

    def _open_state(self) -> None:
        with self._lock:
            if self._state is None:
                self._state = state_folder.open_state_folder(
                    self._options.spool_dir, self._environment, os.geteuid()
                )
                self._mount_points = registry.MountPoints(self._state)
                self._devices = devices.Devices(self._state)
                self._own = replace(self._own, folders=(*self._own.folders, self._state))
                self._selection = selection.Selection(
                    self._options, self._environment, self._state, self._own
                )

    def _mounts(self) -> registry.MountPoints:
        assert self._mount_points is not None
        return self._mount_points


def _hold(seen: view.View) -> dict[str, int]:
    """Open the view's writable mounts, so that none can be replaced by a link before it is mounted."""
    held: dict[str, int] = {}
    try:
        for mount in seen.mounts:
            if isinstance(mount, view.Bind) and mount.writable and not mount.device:
                held[mount.source] = disk.open_without_links(mount.source)
    except OSError as error:
        for fd in held.values():
            os.close(fd)
        if isinstance(error, FileNotFoundError):
            raise
        raise refused(f"{_named(error)} was replaced just now: {error.strerror}", "sandbox") from None
    return held


def _reason(result: ProbeResult) -> str:
    return f"{result.reason}; {result.fix}"


def _named(error: OSError) -> str:
    return os.fsencode(error.filename).decode("utf-8", "replace") if error.filename else str(error)
