"""One thread for torch, and failures of our own come through."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from torch import nn
from torch.optim import Optimizer
from trainings import one_thread

from holdfast.live import discovery


@pytest.fixture(autouse=True, scope="session")
def _single_threaded() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STRICT", "1")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script has its process to itself; a test shares it with what others left alive."""
    gc.collect()
    left = {id(item): item for kind in (Optimizer, nn.Module) for item in discovery._alive(kind)}
    alive = discovery._alive
    monkeypatch.setattr(
        discovery, "_alive", lambda kind: [item for item in alive(kind) if id(item) not in left]
    )
