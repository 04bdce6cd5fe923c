"""The command line of the client: `execserver run`, `attach`, `ps`, `logs`, `kill`, `cp` and `completion`.

Imported by the console script only when one of these is called for; typer and rich come with it.
"""

from execclient.commands.app import main

__all__ = ["main"]
