"""What all benchmarks and long runs share."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def terminations() -> Iterator[None]:
    """Restores the handler of SIGTERM, which a benchmark sets for itself."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
