"""The commands of the client: `execserver run`, `attach`, `ps`, `logs`, `kill`, `cp`, `patch`, `policy` and
`completion`.

The console script imports this package only for one of these commands: it loads typer and rich.
"""

try:
    from execclient.commands.app import main
except ModuleNotFoundError as error:
    if error.name != "typer":
        raise
    raise ImportError('the commands need typer and rich: pip install "execclient[cli]"') from error

__all__ = ["main"]
