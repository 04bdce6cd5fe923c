"""All sandboxes of the daemon: which backend there is, and what a request's confinement needs.

Rules kept in this file:

1. A policy that limits anything is enforced by a backend that was seen to confine on this machine, or the
   request is refused with the missing piece and the fix.
2. Bubblewrap comes first. Landlock enforces what it can state, where the operator allowed it and
   bubblewrap does not work; a limit on the network alone needs seccomp and nothing else.
3. What was found out to work is kept until a launch fails; what does not work is tried again after a while.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from execprotocol.errors import InvalidRequest
from execserver.sandbox import (
    backends,
    bare_roots,
    bubblewrap,
    devices,
    disk,
    globs,
    refusal,
    seccomp,
    state_folder,
    view,
)
from execserver.sandbox.diagnostics import probe
from execserver.sandbox.mount_points import adopted, description, registry
from execserver.sandbox.options import TOOL_PATH, OwnThings, SandboxOptions
from execserver.telemetry.logs import Logger

if TYPE_CHECKING:
    from execserver.launch_spec import LaunchSpec
    from execserver.sandbox.confinement import Confinement
    from execserver.sandbox.policy import Policy

log = Logger()


_ASK_AGAIN_SECONDS = 5.0
"""What does not work may have been mended; a trial costs some 50 ms."""


class Sandboxes:
    """Makes confinements. All methods may block, and may be called from any thread.

    Args:
        options: what the operator says.
        own: what is hidden in every sandbox; the state folder is added.
        environment: the daemon's own, at its launch.
    """

    def __init__(self, options: SandboxOptions, own: OwnThings, environment: Mapping[str, str]) -> None:
        self._options = options
        self._environment = environment
        self._own = own
        self._lock = threading.Lock()
        self._probed: probe.ProbeResult | None = None
        self._ask_again = 0.0
        """When something that did not work is tried anew."""
        self._state: str | None = None
        self._mount_points: registry.MountPoints | None = None
        self._devices: devices.Devices | None = None
        self._bare_roots: bare_roots.BareRoots | None = None
        self._warned_of_devices = False
        self._open: set[Confinement] = set()

    def sweep(self) -> None:
        """Remove what dead daemons left in workspaces. Never raises."""
        try:
            self._open_state()
            removed = self._mounts().sweep()
        except Exception as error:
            log.warning("sandboxes are not available", reason=str(error))
            return
        if removed:
            log.info("removed mount points that were left behind", count=len(removed))

    def warm_up(self) -> None:
        """Find out what there is, before the first request needs it. Never raises."""
        try:
            self._open_state()
            result = self._probe()
        except Exception:
            return  # `sweep` has said why, and so will every request.
        if not result.works:
            log.warning("bubblewrap is not available", reason=result.reason, fix=result.fix)
            return
        # The first command that is denied something should not wait for it.
        from execserver.sandbox import denial  # noqa: F401

    def prepare(
        self,
        policy: Policy,
        command: LaunchSpec,
        extra: tuple[str, ...] = (),
    ) -> Confinement:
        """Make the confinement of one command.

        Args:
            policy: one that limits something.
            command: what is to be run.
            extra: paths that are readable inside whatever the policy says.

        Raises:
            InvalidRequest: it cannot be enforced here; the message says what is missing, and the fix.
        """
        try:
            self._open_state()
            confinement = self._prepare(policy, command, extra)
        except state_folder.StateFolderError as error:
            raise refusal.refused(str(error), "sandbox") from None
        except OSError as error:
            raise refusal.refused(f"{os.strerror(error.errno or 0)}: {_named(error)}", "sandbox") from None
        self._open.add(confinement)
        return confinement

    def adopt(self, kept: object, descriptors: Sequence[int]) -> Confinement:
        """Go on with a sandbox that a dead server made. To be called before the first `prepare`. Never
        raises: of what cannot be understood the locks are given back at the end.

        Args:
            kept: what `Confinement.kept` gave.
            descriptors: copies of those it gave, in the same order; they belong to the sandbox from now on.
        """
        confinement: Confinement
        try:
            self._open_state()
            known = description.understood(kept)
            has_lease = known.mount_points or descriptors
            lease = self._mounts().adopt(known.mount_points, descriptors) if has_lease else None
            confinement = adopted.Adopted(known, lease, self._watch(bare_roots.candidates(known.policy)))
        except (ValueError, OSError, state_folder.StateFolderError) as error:
            log.warning("a sandbox of the server before cannot be understood", reason=str(error))
            confinement = adopted.Opaque(kept, descriptors, self._mount_points)
        self._open.add(confinement)
        return confinement

    def release(self, confinement: Confinement) -> None:
        """Nothing runs in a confinement any more."""
        confinement.release()
        self._open.discard(confinement)

    def launch_failed(self) -> None:
        """A launch failed for the launcher's own reasons: what was found out may hold no longer."""
        with self._lock:
            self._probed = None

    def close(self) -> None:
        """Give everything back; for the end of the daemon."""
        # Others may still take from the set: its operations are atomic, and a release may be repeated.
        while self._open:
            self._open.pop().release()
        if self._bare_roots is not None:
            self._bare_roots.close()
        if self._mount_points is not None:
            with suppress(OSError):
                self._mount_points.sweep()  # what another daemon was using when we let it go
            self._mount_points.close()

    # -- backends

    def _prepare(self, policy: Policy, command: LaunchSpec, extra: tuple[str, ...]) -> Confinement:
        if sys.platform == "darwin":
            return self._seatbelted(policy, command)
        if not sys.platform.startswith("linux"):
            raise InvalidRequest(
                "failed to prepare process sandbox: there is no sandbox backend on this platform "
                f"({sys.platform})",
                name="sandbox_unavailable",
                field="sandbox",
            )
        result = self._probe()
        if result.works and result.path is not None:
            return self._bubblewrapped(result, result.path, policy, command, extra)
        seen = view.look(policy, self._own, view.Needs(command.cwd, command.program, (), extra))
        if not policy.limits_files:
            return self._limited(policy, seen, command)
        if not self._options.allow_landlock:
            raise _unavailable(result, "")
        from execserver.sandbox import landlock  # few daemons need it

        reason = landlock.unavailable() or landlock.unstatable(seen, self._own)
        if reason is not None:
            raise _unavailable(result, f"; and {reason}")
        return self._limited(policy, seen, command)

    def _bubblewrapped(
        self,
        result: probe.ProbeResult,
        path: str,
        policy: Policy,
        command: LaunchSpec,
        extra: tuple[str, ...],
    ) -> Confinement:
        tools = backends.Tools(
            path,
            self._tool("setsid", "util-linux", "tty") if command.tty else None,
            self._tool("bash", "bash", "arg0") if backends.needs_own_name(command) else None,
            result.sealed,
        )
        used = tuple(tool for tool in (tools.setsid, tools.bash) if tool is not None)
        own = replace(self._own, code=(*self._own.code, path))
        seen = view.look(policy, own, view.Needs(command.cwd, command.program, used, extra))
        assert self._state is not None
        sources = bubblewrap.Sources(
            state_folder.empty_file(self._state),
            state_folder.empty_folder(self._state),
            self._device_folder(policy),
        )
        lease = self._mounts().acquire(seen.mount_points) if seen.mount_points else None
        held: dict[str, int] = {}
        watched = None
        try:
            for target in lease.foreign if lease is not None else ():
                if os.path.islink(target):
                    raise refusal.refused(f"{target} became a symbolic link just now", "sandbox")
            held = _hold(seen) if "bind-fd" in result.features else {}
            watched = self._watch(seen.bare_roots)
            # A worker has to see what others make of the folders: it outlives them.
            made = frozenset(lease.made) if lease is not None and not extra else frozenset[str]()
            return backends.Bubblewrapped(
                policy, seen, command.cwd, lease, tools, sources, held, made, watched
            )
        except BaseException:
            for fd in held.values():
                os.close(fd)
            for taken in (watched, lease):
                if taken is not None:
                    taken.release()
            raise

    def _watch(self, roots: Sequence[str]) -> bare_roots.Watched | None:
        if not roots:
            return None
        with self._lock:
            if self._bare_roots is None:
                self._bare_roots = bare_roots.BareRoots()
        return self._bare_roots.watch(roots)

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
            raise refusal.refused(f"{seatbelt.PROGRAM} is missing", "sandbox")
        if backends.needs_own_name(command):
            raise refusal.refused("sandbox-exec cannot give a program another name", "arg0")
        budget = globs.Budget()
        denied = [*self._own.folders, *self._own.files]
        for pattern in policy.deny_globs:
            denied += globs.expand(pattern, [command.cwd], policy.glob_depth, budget, denies=True)
        granted = seatbelt.grants(policy, home=self._own.home, denied=denied)
        return backends.Seatbelted(policy, command.cwd, seatbelt.profile(granted))

    def _limited(self, policy: Policy, seen: view.View, command: LaunchSpec) -> Confinement:
        try:
            return backends.Limited(policy, seen, command.cwd, self._own)
        except seccomp.UnknownArchitectureError as error:
            raise refusal.refused(str(error), "sandbox") from None

    def _tool(self, name: str, package: str, field: str) -> str:
        import shutil  # as the modules above, of which some bring it

        path = shutil.which(name, path=TOOL_PATH)
        if path is None:
            raise refusal.refused(f"the program {name} is missing: install {package}", field)
        return path

    def _probe(self) -> probe.ProbeResult:
        with self._lock:
            known = self._probed
            if known is not None and known.works:
                stale = not known.is_current
            else:
                stale = known is None or time.monotonic() > self._ask_again
            if known is None or stale:
                assert self._state is not None
                self._probed = probe.probe(
                    self._options.bubblewrap, self._state, self._environment.get("PATH")
                )
                self._ask_again = time.monotonic() + _ASK_AGAIN_SECONDS
                return self._probed
            return known

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

    def _mounts(self) -> registry.MountPoints:
        assert self._mount_points is not None
        return self._mount_points


def _hold(seen: view.View) -> dict[str, int]:
    """Descriptors of what the view makes writable. Somebody else may be able to move it, and to put a link in
    its place, before bubblewrap has looked at it too.
    """
    held: dict[str, int] = {}
    try:
        for mount in seen.mounts:
            if isinstance(mount, view.Bind) and mount.writable and not mount.device:
                held[mount.source] = disk.open_without_links(mount.source)
    except OSError as error:
        for fd in held.values():
            os.close(fd)
        raise refusal.refused(f"{_named(error)} was replaced just now: {error.strerror}", "sandbox") from None
    return held


def _unavailable(result: probe.ProbeResult, more: str) -> InvalidRequest:
    return InvalidRequest(
        f"failed to prepare process sandbox: {result.reason}; {result.fix}{more}", name="sandbox_unavailable"
    )


def _named(error: OSError) -> str:
    return os.fsencode(error.filename).decode("utf-8", "replace") if error.filename else str(error)
