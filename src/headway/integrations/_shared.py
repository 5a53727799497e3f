"""Runs a framework's forward and backward again without side effects, and imports frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from headway.errors import import_optional
from headway.torch_adapters.saved_state import ObjectSnapshot

MAX_DEPTH = 3
"""Nesting up to which objects are restored: `trainer.history["loss"]`."""


class BatchRerun:
    """Runs one batch of a step again."""

    def __init__(self, run: Callable[[Any], Any], *owners: Any) -> None:
        """`owners`: objects whose counters and lists are restored afterwards."""
        self._run = run
        self._owners = owners

    def __call__(self, batch: Any) -> None:
        self._run(batch)

    def keep(self, trained: Sequence[nn.Module], *, tensors: bool) -> ObjectSnapshot:
        return ObjectSnapshot(self._owners, trained, tensors=tensors, deepest=MAX_DEPTH)


@contextmanager
def replace_attributes(owner: Any, **instead: Any) -> Iterator[None]:
    """Replaces attributes of an object temporarily."""
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
    """Replaces a method that must have no effect."""


def import_framework(*names: str, extra: str) -> Any:
    """The first of these modules that is installed; `extra` installs the first."""
    return import_optional(*names, user=f"headway.integrations.{extra}", extra=extra)
