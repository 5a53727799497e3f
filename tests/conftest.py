"""Shared by all tests. A defect of the guard must be seen here, not shielded away."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("HEADWAY_STRICT", "1")

# How long an example takes depends on what else the machine does, and decides no test.
settings.register_profile("headway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headway")


@pytest.fixture(autouse=True)
def _nothing_was_compiled_before() -> Iterator[None]:
    """What one test compiled is no reason to treat the next one's model as compiled."""
    yield
    if (utils := sys.modules.get("torch._dynamo.utils")) is not None:
        utils.counters.clear()
