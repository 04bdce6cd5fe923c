"""The settings of a command line that says nothing but where to listen, as most do.

Flags, variables, file, their types in words and their errors take longer to load than all that such a command
line means. Whatever is not plain goes the long way (`loading.py`), which gives the same:
`tests/unit/test_quick_settings.py` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from execserver.configuration.model import PREFIX, Settings
from execserver.supervisor import config_file
from execserver.supervisor.listeners import ListenError, listeners_from
from execserver.supervisor.packets import CHANNEL_VARIABLE

_FLAG = "--listen"


def quick_settings(argv: Sequence[str], environment: Mapping[str, str]) -> Settings | None:
    """The settings of a plain command line; None for any other, and for one that is wrong.

    Args:
        argv: what follows `serve`.
        environment: the variables. One that a setting might come from is not plain.
    """
    if len(argv) % 2 or any(flag != _FLAG for flag in argv[::2]):
        return None
    urls = tuple(argv[1::2])
    if not all(urls) or any(url.startswith("-") for url in urls):
        return None
    if any(name.startswith(PREFIX) and name != CHANNEL_VARIABLE for name in environment):
        return None
    try:
        listeners_from(urls)
    except ListenError:
        return None
    return None if config_file.find(None, environment) else Settings(listen=urls)
