"""The command line of the client: `execserver run`, `attach`, `ps`, `logs`, `kill`, `cp` and `completion`.

Imported by the console script only when one of these is called for; typer and rich come with it.
"""

try:
    from execclient.commands.app import main
except ModuleNotFoundError as error:
    if error.name != "typer":
        raise
    raise ImportError('the commands need typer and rich: pip install "execclient[cli]"') from error

__all__ = ["main"]
