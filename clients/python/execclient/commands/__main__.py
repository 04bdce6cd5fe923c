"""The commands without the server's console script: `python -m execclient.commands run -- uname -a`."""

import sys

from execclient.commands.app import main
from execprotocol.command_line import expanded, until_unread

if __name__ == "__main__":
    sys.exit(until_unread(lambda: main(expanded(sys.argv[1:]))))
