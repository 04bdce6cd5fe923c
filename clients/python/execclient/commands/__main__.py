"""The commands without the server's console script: `python -m execclient.commands run -- uname -a`."""

import sys

from execclient.commands.app import main

if __name__ == "__main__":
    main(sys.argv[1:])
