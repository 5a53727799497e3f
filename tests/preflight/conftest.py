"""One thread for torch, and failures of our own come through."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.declared_facts import undeclared
from support.trainings import one_thread

from headway.guard.recorder import Recorder


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


@pytest.fixture(autouse=True)
def _facts_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Observers write only what the types of `headway.core` declare, which checks read."""
    setup = Recorder.setup

    def checked(self: Recorder, step: int, topic: str, facts: Mapping[str, Any]) -> None:
        assert not undeclared(topic, facts)
        setup(self, step, topic, facts)

    monkeypatch.setattr(Recorder, "setup", checked)
