"""How long the longest tests take.

`make test-long` takes them to the length that is claimed; `make test-nightly` stops at a quarter of
it.
"""

from __future__ import annotations

import os

import pytest

LONG = bool(os.environ.get("HEADWAY_LONG"))


def length(claimed: int) -> int:
    """So much of it now."""
    return claimed if LONG else claimed // 4


only_at_length = pytest.mark.skipif(not LONG, reason="make test-long runs it")
