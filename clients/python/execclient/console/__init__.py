"""The console: a page in the browser that shows the processes of a daemon, and answers approvals.

    async with Console(approver=approver) as console:
        print(console.url)
        ...

It listens on loopback only. `docs/how-to/console.md` has its use, `SECURITY.md` what protects it.
"""

from execclient.console.pages import ConsoleNotBuilt
from execclient.console.server import Console

__all__ = ["Console", "ConsoleNotBuilt"]
