"""Imports a framework or says how to install it, and re-runs a framework's forward and backward
without side effects.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from headway.errors import FrameworkMissing
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


# Bringing a framework in, or saying how to install it.


def import_framework(*names: str, extra: str) -> Any:
    """The first of these modules that is installed; `extra` is what installs the first."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in _with_parents(name):
                raise  # installed, but something it needs is not: its own message is the better one
    raise FrameworkMissing(
        f"headway.integrations.{extra} needs {names[0].partition('.')[0]}, "
        f"which is not installed: pip install 'headway[{extra}]'"
    )


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]
