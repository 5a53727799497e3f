"""How much each sample has of a gradient, taken while a spike's backward runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.replay.calls import Call
from headway.replay.finiteness import plain
from headway.replay.samples import Samples


@dataclass(frozen=True, slots=True)
class Share:
    """What the samples of one batch have of one gradient."""

    order: int
    batch: int
    sizes: tuple[float, ...]


class Shares:
    """Collected from the ops of backward as they run."""

    def __init__(
        self, samples: Sequence[Samples], weight_shapes: frozenset[tuple[int, ...]]
    ) -> None:
        self.of_activations: list[Share] = []
        """The nearest to the loss first."""
        self.of_weights: dict[int, Share] = {}
        """By the op that made the gradient."""
        self._samples = samples
        self._weight_shapes = weight_shapes

    def look(self, call: Call, args: tuple[Any, ...], outputs: Sequence[Tensor]) -> None:
        if call.batch >= len(self._samples) or not outputs:
            return
        samples = self._samples[call.batch]
        made = self._rows_of_product(call, args)
        if made is not None and (share := self._share(call, samples, made)):
            self.of_weights[call.order] = share
        first = outputs[0]
        if not first.is_floating_point() or tuple(first.shape) in self._weight_shapes:
            return
        if share := self._share(call, samples, first):
            self.of_activations.append(share)

    def _rows_of_product(self, call: Call, args: tuple[Any, ...]) -> Tensor | None:
        """What each row adds to a weight's gradient: a row of it is the product of two vectors."""
        given = [plain(item) for item in args[:2] if isinstance(item, Tensor)]
        left, right = given if len(given) == 2 else (None, None)
        if left is None or right is None:
            return None
        if call.facts.aten == "mm":
            return _norms(left.t()) * _norms(right)
        if call.facts.aten == "convolution_backward":
            return _norms(left) * _norms(right)
        return None

    def _share(self, call: Call, samples: Samples, rows: Tensor) -> Share | None:
        axis = samples.axis(rows.shape)
        if axis is None:
            return None
        squares = samples.per_sample(rows.float().square(), axis, "sum")
        return Share(call.order, call.batch, tuple(squares.sqrt().tolist()))


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows.flatten(1).float(), dim=1)
    return norms
