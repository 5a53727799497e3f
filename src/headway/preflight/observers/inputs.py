"""The numbers that reach the first weights.

A layer whose input carries no graph gets it from the data, however the data was prepared on the
way: scaled by the loader, by the loop or inside the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.live import scan
from headway.preflight.collate_source import scaling_line
from headway.preflight.observer import Call, Observer
from headway.preflight.spellings import spellings

LAYERS = ("linear", "conv1d", "conv2d", "conv3d", "matmul", "mm")
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
MOST_LAYERS = 16
MOST_ELEMENTS = 1 << 20
FIRST, THEN = 20, 10
"""The first steps are looked at, then every so-many-th."""


@dataclass(slots=True)
class Seen:
    """What one layer was fed."""

    module: nn.Module | None
    place: dict[str, Any] | None
    first: int
    batches: int = 0
    samples: int = 0
    elements: int = 0
    total: float = 0.0
    squares: float = 0.0
    largest: float = 0.0
    zeros: float = 0.0
    whole: bool = True
    """Whether all numbers are whole ones."""


@dataclass(slots=True)
class Fed:
    """What an outermost model was given as its first argument."""

    place: dict[str, Any] | None
    first: int
    batches: int = 0
    samples: int = 0
    smallest: int = 1 << 60
    """The smallest batch."""
    low: Tensor | None = None
    high: Tensor | None = None
    shape: tuple[int, ...] = ()
    comparable: bool = True
    features: int = 0


class Inputs(Observer):
    """Looks at what goes into the first layers."""

    functions = spellings(*LAYERS)
    every_module = True

    def start(self) -> None:
        self._layers: dict[int, Seen] = {}
        self._fed: dict[int, Fed] = {}
        self._empty = False
        self._collate: Any = None
        self._first = 0

    # Layers.

    def function_ended(self, call: Call) -> None:
        if not torch.is_grad_enabled() or not self._due():
            return
        self._look(call.args, call.result)

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if isinstance(module, RECURRENT) and torch.is_grad_enabled() and self._due():
            first = output[0] if isinstance(output, tuple) else output
            self._look((args[0] if args else None, *module.parameters()), first)

    def _due(self) -> bool:
        step = self.scene.step
        return step < FIRST or step % THEN == 0

    def _look(self, args: Sequence[Any], result: Any) -> None:
        if not isinstance(result, Tensor) or not result.requires_grad or not args:
            return
        data = args[0]
        others = [item for item in args[1:3] if isinstance(item, Tensor)]
        if not isinstance(data, Tensor) or not data.is_floating_point() or data.requires_grad:
            return
        if not data.numel() or data.is_sparse or data.ndim < 2:
            return
        if not any(item.requires_grad and item.is_leaf for item in others):
            return
        module = self.scene.stack[-1] if self.scene.stack else None
        seen = self._layers.get(id(module))
        if seen is None:
            if len(self._layers) >= MOST_LAYERS:
                return
            seen = self._layers[id(module)] = Seen(module, self.scene.place(), self.scene.step)
        values = data.detach().reshape(-1)[:MOST_ELEMENTS].double()
        seen.batches += 1
        seen.samples += data.shape[0]
        seen.elements += values.numel()
        seen.total += float(values.sum())
        seen.squares += float(values.square().sum())
        seen.largest = max(seen.largest, float(values.abs().max()))
        seen.zeros += float((values == 0).sum())
        seen.whole = seen.whole and bool((values == values.round()).all())

    # Models.

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if len(self.scene.stack) != 1 or not torch.is_grad_enabled() or not module.training:
            return
        data = next((item for item in args if isinstance(item, Tensor)), None)
        if data is None or not data.ndim:
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        if data.shape[0] == 0:
            self._tell_empty("the model was given", tuple(data.shape))
        if self._due():
            self._compare(module, data)

    def _compare(self, module: nn.Module, data: Tensor) -> None:
        """Keep the smallest and the largest of every feature over all samples."""
        fed = self._fed.get(id(module))
        if fed is None:
            if len(self._fed) >= MOST_LAYERS:
                return
            fed = self._fed[id(module)] = Fed(self.scene.place(), self.scene.step)
        shape = tuple(data.shape[1:])
        if (fed.batches and shape != fed.shape) or data.is_sparse or not data.shape[0]:
            fed.comparable = False
        if not fed.comparable or data.numel() > MOST_ELEMENTS or data.is_complex():
            fed.comparable = False
            return
        values = data.detach()
        low, high = values.amin(0), values.amax(0)
        fed.low = low.clone() if fed.low is None else torch.minimum(fed.low, low)
        fed.high = high.clone() if fed.high is None else torch.maximum(fed.high, high)
        fed.shape, fed.features = shape, low.numel()
        fed.batches += 1
        fed.samples += data.shape[0]
        fed.smallest = min(fed.smallest, data.shape[0])

    # Batches without samples.

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._collate = getattr(loader, "collate_fn", None)
        if scan.batch_size(batch) == 0:
            self._tell_empty("the loader gave", ())

    def _tell_empty(self, what: str, shape: tuple[int, ...]) -> None:
        if not self._empty:
            self._empty = True
            facts = {"what": what, "shape": list(shape), "place": self.scene.place()}
            self.evidence.tell("empty-batch", facts)

    # The end.

    def finished(self) -> None:
        for seen in self._layers.values():
            if seen.elements:
                name = "the first weights"
                self._tell_scale(self.scene.path_of(seen.module) if seen.module else name, seen)
        for fed in self._fed.values():
            self._tell_variety(fed)
        if not self._empty and self._fed:
            self.evidence.tell("empty-batch", {})

    def _tell_scale(self, name: str, seen: Seen) -> None:
        mean, square = seen.total / seen.elements, seen.squares / seen.elements
        if not (math.isfinite(mean) and math.isfinite(square)):
            return
        self.evidence.tell(
            "input-scale",
            {
                "module": name,
                "place": seen.place,
                "first_step": seen.first,
                "batches": seen.batches,
                "samples": seen.samples,
                "rms": math.sqrt(square),
                "mean": mean,
                "std": math.sqrt(max(square - mean * mean, 0.0)),
                "max": seen.largest,
                "zeros": seen.zeros / seen.elements,
                "whole": seen.whole,
                "scaled_at": scaling_line(self._collate),
            },
        )

    def _tell_variety(self, fed: Fed) -> None:
        if not fed.comparable or fed.low is None or fed.high is None or not fed.features:
            return
        varying = int((fed.high != fed.low).sum())
        self.evidence.tell(
            "input-variety",
            {
                "place": fed.place,
                "first_step": fed.first,
                "batches": fed.batches,
                "samples": fed.samples,
                "smallest": fed.smallest,
                "features": fed.features,
                "varying": varying,
            },
        )
