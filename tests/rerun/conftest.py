"""One thread for torch: the trainings here are tiny, and more threads only fight over the cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.trainings import one_thread


@pytest.fixture(autouse=True, scope="session")
def _single_threaded() -> Iterator[None]:
    with one_thread():
        yield
