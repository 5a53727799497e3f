"""How often samples repeat: data that occur once cannot be memorised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer
from headway.torch_adapters.nested_state import find_tensors
from headway.torch_adapters.tensor_values import batch_size

DATA_PASSES_SIGNAL = "data_passes"
MOST_REPEATED_ROWS = 50_000
"""Rows that are remembered; after that nothing new is reported."""
MOST_REPEATED_COLUMNS = 256


class RepeatedSamples(Observer):
    """Knows the rows of the model's input again by a number each."""

    def start(self) -> None:
        self._distinct: set[int] = set()
        self._drawn = 0
        self._loaded: dict[int, int] = {}
        """Samples that the loaders have drawn, by the id of their data set."""
        self._counted: set[int] = set()
        """Rows of the current step: a second forward of a batch is no second pass."""

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        # An augmented sample never comes twice, but it is seen again.
        data = getattr(loader, "dataset", None)
        rows = batch_size(batch) or 0
        try:
            size = len(data) if data is not None else 0
        except Exception:  # a data set without a length, or one whose __len__ raises
            size = 0
        if size and torch.is_grad_enabled():
            drawn = self._loaded[id(data)] = self._loaded.get(id(data), 0) + rows
            self.script.data_passes = max(self.script.data_passes or 0.0, drawn / size)

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if len(self.script.stack) != 1 or self._drawn >= MOST_REPEATED_ROWS:
            return
        if not module.training or not torch.is_grad_enabled():
            return
        given = next(
            (item for _, item in find_tensors((args, dict(kwargs))) if _has_rows(item)), None
        )
        if given is None or not any(True for _ in module.parameters()):
            return
        fresh = [number for number in _numbers(given.detach()) if number not in self._counted]
        self._counted.update(fresh)
        self._drawn += len(fresh)
        self._distinct.update(fresh)
        passes = self._drawn / max(len(self._distinct), 1)
        self.script.data_passes = max(self.script.data_passes or 0.0, passes)
        self.evidence.value(DATA_PASSES_SIGNAL, passes)

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if not self.script.optimizers:  # updates by hand follow
            self._counted.clear()

    def step_ended(self, optimizer: Optimizer) -> None:
        self._counted.clear()


def _has_rows(tensor: Tensor) -> bool:
    return tensor.ndim > 1 and tensor.shape[0] > 0 and not tensor.is_complex()


def _numbers(batch: Tensor) -> list[int]:
    """A number per row: equal for equal rows, and hardly ever for others."""
    rows = batch.reshape(batch.shape[0], -1)
    rows = rows[:, :: rows.shape[1] // MOST_REPEATED_COLUMNS + 1].double()
    places = torch.arange(rows.shape[1], dtype=torch.float64, device=rows.device)
    weighed = rows.nan_to_num() @ (places * 0.7 + 1).cos()
    return [hash(round(value, 6)) for value in weighed.tolist()]
