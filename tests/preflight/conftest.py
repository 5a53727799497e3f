"""One thread for torch, and failures of our own come through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from trainings import one_thread


@pytest.fixture(autouse=True, scope="session")
def _single_threaded() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STRICT", "1")
