"""Checks before a server starts to serve, and the resources of the daemon that no sandbox shows."""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from execserver.configuration.model import Settings
from execserver.host import Host
from execserver.private_folder import FolderError, runtime_folder, state_folder
from execserver.relay.executor.options import check_place, missing_packages, options_of_service
from execserver.sandbox import policy
from execserver.sandbox.options import DaemonPaths, executed, socket_addresses
from execserver.sandbox.sandboxes import Sandboxes
from execserver.supervisor.config_file import usual_places
from execserver.supervisor.earlier_state import earlier_place, is_own_folder
from execserver.supervisor.remote import place_in
from execserver.supervisor.server_channel import Hello
from execserver.transports.authentication import ConfigurationError

if TYPE_CHECKING:
    from execserver.audit.trail import AuditTrail
    from execserver.relay.executor.identity import Identity


def check_exposure(config: Settings, hello: Hello) -> None:
    """Refuse listeners that would open the machine to other machines, and credentials where none are checked.

    Raises:
        ConfigurationError: the settings and the listeners do not fit together.
    """
    if not hello.listeners:
        if config.remote is not None:
            check_place(config.remote_options)
        # The supervisor found the file unusable and left the error to the server; the file is correct by now.
        raise ConfigurationError("the configuration file was changed during the start: start again")
    kinds = {listener.kind for listener in hello.listeners}
    if config.authentication.ws_auth is not None:
        if "stdio" in kinds:
            raise ConfigurationError("--ws-auth cannot be used with --listen stdio, where it is not checked")
        return
    for listener in hello.listeners:
        if listener.kind == "tcp" and listener.socket is not None:
            address = listener.socket.getsockname()[0]
            if not ipaddress.ip_address(address).is_loopback and not config.allow_unauthenticated:
                raise ConfigurationError(
                    f"{listener.url} is reachable from other machines: give --ws-auth, "
                    "or --allow-unauthenticated if that is meant"
                )


def check_confinement(config: Settings, sandboxes: Sandboxes) -> None:
    """With `require_sandbox`, refuse to serve where nothing can be confined: every command would be refused.

    Blocks for a tenth of a second, which nothing else needs the probe for so early.

    Raises:
        ConfigurationError: nothing can be confined here.
    """
    if config.require_sandbox and (reason := sandboxes.obstacle()) is not None:
        raise ConfigurationError(
            f"require_sandbox is set, and no command can be confined here: {reason}; "
            "`execserver doctor` has the details"
        )


def remote_identity(config: Settings, hello: Hello, host: Host) -> Identity | None:
    """The daemon's identity for the registry that the supervisor found in the settings; None without a
    registry.

    Raises:
        ConfigurationError: the options cannot be used, or packages are missing.
    """
    passed = next((listener for listener in hello.listeners if listener.kind == "remote"), None)
    if passed is None and hello.take_over:
        return None  # a registry that is new in the file begins with the next service, not the next server
    served = None if passed is None else place_in(passed.url)
    options = options_of_service(config.remote_options, served)
    if passed is None or options is None:
        return None
    assert passed.memory is not None
    try:
        from execserver.relay.executor.executor import RemoteExecutor  # noqa: F401  a check that it loads
        from execserver.relay.executor.identity import identity_from
    except ImportError as error:
        raise ConfigurationError(missing_packages(error)) from None
    return identity_from(options, Path(host.cwd), host.environment, passed.memory)


def audit_folder(config: Settings, cwd: str) -> str | None:
    """The audit folder, without symbolic links; None if there is none.

    Args:
        config: the settings.
        cwd: the launch folder.
    """
    return None if config.audit_dir is None else os.path.realpath(os.path.join(cwd, config.audit_dir))


def open_trail(config: Settings, hello: Hello, host: Host) -> AuditTrail | None:
    """Open the audit folder, if there is one. For a server that takes over it may be unusable: then only acts
    are refused, or a warning is logged.

    Raises:
        ConfigurationError: it cannot be used.
    """
    path = audit_folder(config, host.cwd)
    if path is None:
        return None
    from execserver.audit.trail import AuditError, AuditTrail  # for few daemons

    trail = AuditTrail(path, config.audit_max_bytes, stop=config.audit_failure == "stop")
    try:
        trail.open(wait=True)
    except AuditError as error:
        if not hello.take_over:
            raise ConfigurationError(str(error)) from None
        trail.report(error)
    return trail


def daemon_paths(config: Settings, hello: Hello, host: Host, config_file: str | None) -> DaemonPaths:
    """Folders, files and sockets of the daemon that no sandbox shows.

    Args:
        config: the settings. Relative names start in the launch folder.
        hello: the listeners.
        host: the launch.
        config_file: the file that the settings were read from.
    """
    named = (
        config_file,
        config.ws_token_file,
        config.ws_shared_secret_file,
        config.remote_token_file,
        config.remote_key_file,
        config.remote_allowed_clients,
    )
    files = [os.path.join(host.cwd, name) for name in named if name is not None]
    files += [path for path in usual_places(os.environ) if path not in files]
    for listener in hello.listeners:
        if listener.kind == "unix" and listener.socket is not None:
            name = listener.socket.getsockname()
            # A socket from a service manager may have an abstract name, or none.
            files += [name] if isinstance(name, str) and name.startswith("/") else []
    folders = [folder for folder in (earlier_place(),) if is_own_folder(folder)]
    if (runtime := runtime_folder(host.environment)) is not None:
        folders.append(f"{runtime}/instances")  # a control socket is in it
    with suppress(FolderError):  # records of running services are there whatever the setting is
        folders.append(state_folder(host.environment))
    if (audit := audit_folder(config, host.cwd)) is not None:
        folders.append(audit)
    if config.remote_token_file is not None:
        folders += _closed_folder(os.path.join(host.cwd, config.remote_token_file), host)
    return DaemonPaths(tuple(folders), tuple(files), executed(), socket_addresses(os.environ), home=host.home)


def _closed_folder(file: str, host: Host) -> list[str]:
    """The folder of a file that is replaced now and then, if the folder is closed to other users and no work
    is done in it.

    The kernel uncovers a name when another file replaces it, so sandboxes that are open then would see the
    new file. Below a covered folder they do not.
    """
    folder = os.path.realpath(os.path.dirname(file))
    try:
        status = os.stat(folder)
    except OSError:
        return []
    is_closed = not status.st_mode & 0o007 and status.st_uid in (0, os.geteuid())
    is_worked_in = any(policy.is_below(os.path.realpath(path), folder) for path in (host.cwd, host.home))
    return [folder] if is_closed and not is_worked_in else []
