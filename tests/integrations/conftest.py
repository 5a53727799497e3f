"""Real frameworks, tiny models: offline, on one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.trainings import one_thread

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")


@pytest.fixture(autouse=True, scope="session")
def _single_threaded() -> Iterator[None]:
    with one_thread():
        yield
