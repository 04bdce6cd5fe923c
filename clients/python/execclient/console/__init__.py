"""The console: a page in the browser that shows the processes of a daemon, and answers approvals.

    async with Console(approver=approver) as console:
        print(console.url)
        ...

It listens on loopback only. `docs/how-to/console.md` has its use, `SECURITY.md` what protects it.
"""

try:
    import picows  # noqa: F401 - what the modules below need beside the plain client
except ImportError as error:
    raise ImportError('execclient.console needs picows: pip install "execclient[ws]"') from error

from execclient.console.pages import ConsoleNotBuilt
from execclient.console.server import Console

__all__ = ["Console", "ConsoleNotBuilt"]
