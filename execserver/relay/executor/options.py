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
    remote_token_file: str | None = None
    remote_token_stdin: bool = False
    remote_key_file: str | None = None
    remote_allowed_clients: str | None = None
    remote_exit_on_refusal: bool = False
    proxy: str | None = None


def place_of(options: RemoteOptions) -> tuple[str, str]:
    """The registry's URL and the environment id.

    Raises:
        ConfigurationError: one of them is missing.
    """
    if options.remote is None or options.environment_id is None:
        missing = "--remote" if options.remote is None else "--environment-id"
        raise ConfigurationError(f"{missing} is missing: --remote and --environment-id go together")
    return options.remote, options.environment_id


def options_of_service(options: RemoteOptions, served: tuple[str, str] | None) -> RemoteOptions | None:
    """The options, with the URL and the environment with which the service was started.

    Args:
        options: of the current configuration.
        served: URL and environment at the start of the supervisor; None if it had none.

    Returns:
        None if the service was started without `--remote`.

    Raises:
        ConfigurationError: `--remote` was added since the start, or an option needs `--remote`.
    """
    if served is not None:
        remote, environment_id = served
        return replace(options, remote=remote, environment_id=environment_id)
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
