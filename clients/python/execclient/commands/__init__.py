"""The commands of the client: `execserver run`, `attach`, `ps`, `logs`, `kill`, `cp`, `patch`, `policy` and
`completion`.

The console script imports this package only for one of these commands: it loads typer and rich.
"""

from execclient.commands.app import main

__all__ = ["main"]
