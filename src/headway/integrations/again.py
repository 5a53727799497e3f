"""A framework's forward and backward, once more and without being noticed.

Counters and lists of the trainer, which the user's own methods may fill, are put back afterwards;
what would be logged or told to callbacks is kept quiet meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from headway.torch_tools.put_back import PutBack

DEEP_ENOUGH = 3
"""`trainer.history["loss"]`: objects of the trainer, and containers in them."""


class Again:
    """How to run one batch of a step again."""

    def __init__(self, run: Callable[[Any], Any], *owners: Any) -> None:
        """`owners`: those whose counters and lists are to be as before afterwards."""
        self._run = run
        self._owners = owners

    def __call__(self, batch: Any) -> None:
        self._run(batch)

    def keep(self, trained: Sequence[nn.Module], *, tensors: bool) -> PutBack:
        return PutBack(self._owners, trained, tensors=tensors, deepest=DEEP_ENOUGH)


@contextmanager
def replaced(owner: Any, **instead: Any) -> Iterator[None]:
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


def nothing(*args: Any, **kwargs: Any) -> None:
    """Instead of a method that nobody shall hear."""
