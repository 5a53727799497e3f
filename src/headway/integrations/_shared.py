"""Imports a framework or says how to install it, and re-runs a framework's forward and backward
without side effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from headway.errors import import_optional
from headway.torch_adapters.saved_state import ObjectSnapshot

# A framework's forward and backward, once more and without being noticed.

# Counters and lists of the trainer, which the user's own methods may fill, are put back
# afterwards; what would be logged or told to callbacks is kept quiet meanwhile.

MAX_DEPTH = 3
"""`trainer.history["loss"]`: objects of the trainer, and containers in them."""


class FrameworkRerun:
    """How to run one batch of a step again."""

    def __init__(self, run: Callable[[Any], Any], *owners: Any) -> None:
        """`owners`: those whose counters and lists are to be as before afterwards."""
        self._run = run
        self._owners = owners

    def __call__(self, batch: Any) -> None:
        self._run(batch)

    def keep(self, trained: Sequence[nn.Module], *, tensors: bool) -> ObjectSnapshot:
        return ObjectSnapshot(self._owners, trained, tensors=tensors, deepest=MAX_DEPTH)


@contextmanager
def replace_attributes(owner: Any, **instead: Any) -> Iterator[None]:
    """Attributes of an object are others for a while."""
    before = {name: vars(owner)[name] for name in instead if name in vars(owner)}
    for name, value in instead.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in instead:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """Instead of a method that nobody shall hear."""


def import_framework(*names: str, extra: str) -> Any:
    """The first of these modules that is installed; `extra` is what installs the first."""
    return import_optional(*names, user=f"headway.integrations.{extra}", extra=extra)
