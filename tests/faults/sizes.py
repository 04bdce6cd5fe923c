"""How long the long tests are: short forms belong to `make test`, long ones to `make faults`."""

from __future__ import annotations

import os
from collections.abc import Callable

LONG = os.environ.get("EXECSERVER_FAULTS") == "long"

Report = Callable[[str], None]
"""Tells a figure of a long form, past pytest's capture: the manual quotes it."""

GONE_SECONDS = 8.0
"""In which everything has ended: 0.1 on an idle machine; what outlives its owner does so for minutes."""
