"""The settings of `--remote`. The module loads nothing: a daemon without `--remote` imports it, too."""

from __future__ import annotations

import msgspec
from msgspec.structs import fields, replace

from execserver.transports.authentication import ConfigurationError

TOKEN_VARIABLE = "EXECSERVER_REMOTE_TOKEN"  # noqa: S105
"""The variable with the executor's token. A setting could be read in `ps`, in files and in `config show`."""


class RemoteOptions(msgspec.Struct, frozen=True):
    """`--remote` and its options; None and False mean that the option is absent."""

    remote: str | None = None
    environment_id: str | None = None
    pool: str | None = None
    label: tuple[str, ...] = ()
    capacity: int | None = None
    remote_token_file: str | None = None
    remote_token_stdin: bool = False
    remote_key_file: str | None = None
    remote_allowed_clients: str | None = None
    remote_exit_on_refusal: bool = False
    proxy: str | None = None


def check_place(options: RemoteOptions) -> None:
    """Check that the options name a registry, and either an environment or a pool.

    Raises:
        ConfigurationError: they do not, or an option of pools is given without a pool.
    """
    if options.remote is None:
        raise ConfigurationError("--remote is missing")
    if (options.environment_id is None) == (options.pool is None):
        fault = "are missing" if options.pool is None else "exclude each other"
        raise ConfigurationError(f"--environment-id and --pool {fault}: --remote needs one of them")
    for name, value in (("--label", options.label), ("--capacity", options.capacity)):
        if value and options.pool is None:
            raise ConfigurationError(f"{name} needs --pool")


def options_of_service(
    options: RemoteOptions, served: tuple[str, str | None, str | None] | None
) -> RemoteOptions | None:
    """The options, with the URL and the environment or pool with which the service was started.

    Args:
        options: of the current configuration.
        served: URL, environment and pool at the start of the supervisor; None if it had none.

    Returns:
        None if the service was started without `--remote`.

    Raises:
        ConfigurationError: `--remote` was added since the start, or an option needs `--remote`.
    """
    if served is not None:
        remote, environment_id, pool = served
        return replace(options, remote=remote, environment_id=environment_id, pool=pool)
    if options.remote is not None:
        raise ConfigurationError("--remote is new in the configuration: stop the service and start it again")
    for field in fields(options):
        # The proxy is no error: its variable may be meant for clients.
        if getattr(options, field.name) and field.name != "proxy":
            raise ConfigurationError(f"--{field.name.replace('_', '-')} needs --remote")
    return None


def missing_packages(error: ImportError) -> str:
    """The error text if a package of the executor's end is missing."""
    return f"--remote needs packages that are not there ({error}): pip install 'execserver[relay]'"
