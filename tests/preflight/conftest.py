"""One thread for torch, and failures of our own come through."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from support.trainings import one_thread


@pytest.fixture(autouse=True, scope="session")
def _single_threaded() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """A script has its process to itself; a test shares it with what others left alive.

    What is frozen is not among the objects that models and optimizers are looked for in.
    """
    gc.freeze()
    yield
    gc.unfreeze()
