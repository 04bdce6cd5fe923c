"""The settings of the executor's end, as given. Loads nothing: a daemon without `--remote` has them, too."""

from __future__ import annotations

import msgspec
from msgspec.structs import fields, replace

from execserver.transports.authentication import ConfigurationError

TOKEN_VARIABLE = "EXECSERVER_REMOTE_TOKEN"  # noqa: S105
"""The executor's token. No setting: flags are seen by everybody, and files and `config show` by some."""


class RemoteOptions(msgspec.Struct, frozen=True):
    """What `--remote` and the options that go with it say; None and False are absent."""

    remote: str | None = None
    environment_id: str | None = None
    remote_token_file: str | None = None
    remote_token_stdin: bool = False
    remote_key_file: str | None = None
    remote_allowed_clients: str | None = None
    remote_exit_on_refusal: bool = False


def place_of(options: RemoteOptions) -> tuple[str, str]:
    """URL and environment.

    Raises:
        ConfigurationError: one of them is missing.
    """
    if options.remote is None or options.environment_id is None:
        missing = "--remote" if options.remote is None else "--environment-id"
        raise ConfigurationError(f"{missing} is missing: --remote and --environment-id go together")
    return options.remote, options.environment_id


def options_of_service(options: RemoteOptions, served: tuple[str, str] | None) -> RemoteOptions | None:
    """The options with the place that is served, which is the same for as long as the service lives.

    Args:
        options: as they are now.
        served: URL and environment that the supervisor took up at the start; None for none.

    Returns:
        None without a place.

    Raises:
        ConfigurationError: there is a place only now, or options that mean nothing without one.
    """
    if served is not None:
        remote, environment_id = served
        return replace(options, remote=remote, environment_id=environment_id)
    if options.remote is not None:
        raise ConfigurationError("--remote is new in the configuration: stop the service and start it again")
    for field in fields(options):
        if getattr(options, field.name):
            raise ConfigurationError(f"--{field.name.replace('_', '-')} needs --remote")
    return None


def missing_packages(error: ImportError) -> str:
    """What to say when the executor's end cannot be loaded."""
    return f"--remote needs packages that are not there ({error}): pip install 'execserver[relay]'"
