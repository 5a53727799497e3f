"""The numbers that reach the first weights: scale, variety, and values that are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.source_lines import (
    find_batch_functions,
    find_converting_line,
    find_scaling_line,
)
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.model_copy import is_training_forward
from headway.torch_adapters.nested_state import find_tensors
from headway.torch_adapters.op_schema import BINARY_LOSSES, REGRESSION_LOSSES
from headway.torch_adapters.tensor_values import BadTensor, batch_size, scan_batch

# The numbers that reach the first weights.

# A layer whose input carries no graph gets it from the data, however the data was prepared on the
# way: scaled by the loader, by the loop or inside the model.

LAYERS = ("linear", "conv1d", "conv2d", "conv3d", "matmul", "mm")
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
MOST_LAYERS = 16
MOST_ELEMENTS = 1 << 20
FIRST, THEN = 20, 10
"""The first steps are looked at, then every so-many-th."""


@dataclass(slots=True)
class LayerInputs:
    """The inputs of one layer."""

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
class ModelInputs:
    """The first argument of an outermost model."""

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


class InputValues(Observer):
    """Looks at what goes into the first layers."""

    functions = find_aliases(*LAYERS)
    every_module = True

    def start(self) -> None:
        self._layers: dict[int, LayerInputs] = {}
        self._fed: dict[int, ModelInputs] = {}
        self._empty = False
        self._making: tuple[Any, ...] = ()
        self._first = 0

    # Layers.

    def function_ended(self, call: TorchCall) -> None:
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
        step = self.script.step
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
        module = self.script.stack[-1] if self.script.stack else None
        seen = self._layers.get(id(module))
        if seen is None:
            if len(self._layers) >= MOST_LAYERS:
                return
            seen = self._layers[id(module)] = LayerInputs(
                module, self.script.place(), self.script.step
            )
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
        if len(self.script.stack) != 1 or not torch.is_grad_enabled() or not module.training:
            return
        data = next((item for item in args if isinstance(item, Tensor)), None)
        if data is None or not data.ndim:
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        if data.shape[0] == 0:
            self._report_empty("the model received", tuple(data.shape))
        if self._due():
            self._compare(module, data)

    def _compare(self, module: nn.Module, data: Tensor) -> None:
        """Keep the smallest and the largest of every feature over all samples."""
        fed = self._fed.get(id(module))
        if fed is None:
            if len(self._fed) >= MOST_LAYERS:
                return
            fed = self._fed[id(module)] = ModelInputs(self.script.place(), self.script.step)
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
        self._making = find_batch_functions(loader)
        if batch_size(batch) == 0:
            self._report_empty("the loader returned", ())

    def _report_empty(self, what: str, shape: tuple[int, ...]) -> None:
        if not self._empty:
            self._empty = True
            facts = {"what": what, "shape": list(shape), "place": self.script.place()}
            self.evidence.record("empty-batch", facts)

    # The end.

    def finished(self) -> None:
        for seen in self._layers.values():
            if seen.elements:
                name = "the first weights"
                self._report_scale(self.script.path_of(seen.module) if seen.module else name, seen)
        for fed in self._fed.values():
            self._report_variety(fed)
        if not self._empty and self._fed:
            self.evidence.record("empty-batch", {})

    def _report_scale(self, name: str, seen: LayerInputs) -> None:
        mean, square = seen.total / seen.elements, seen.squares / seen.elements
        if not (math.isfinite(mean) and math.isfinite(square)):
            return
        self.evidence.record(
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
                "scaled_at": next(filter(None, map(find_scaling_line, self._making)), None),
                "converted_at": next(filter(None, map(find_converting_line, self._making)), None),
            },
        )

    def _report_variety(self, fed: ModelInputs) -> None:
        if not fed.comparable or fed.low is None or fed.high is None or not fed.features:
            return
        varying = int((fed.high != fed.low).sum())
        self.evidence.record(
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


# Numbers that are not finite in what a model or a loss is given, where they come out again.

# A guard looks through the batches of a loader after a bad step. A loop that makes its own batches
# has none, so what goes into the model is looked at here, at the moment it does.

LOSSES = find_aliases(
    *("cross_entropy", *BINARY_LOSSES, *REGRESSION_LOSSES, "kl_div", "poisson_nll_loss"),
)
MOST_NONFINITE = 8
"""Findings of this kind are alike: the first few will do."""
MOST_KNOWN_OUTPUTS = 32
"""Outputs that are known again: what a model made is no data."""


class NonfiniteInputs(Observer):
    """Records tensors of the role `input`, at the step they came in."""

    functions = LOSSES

    def start(self) -> None:
        self._left = MOST_NONFINITE
        self._waiting: list[tuple[int, BadTensor, dict[str, Any] | None]] = []
        self._made: list[ref[Any]] = []
        self._drawn: list[ref[Any]] = []
        """The tensors of the latest batch of a loader."""

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._drawn = [ref(item) for _, item in find_tensors(batch)]

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        outputs = [tensor for _, tensor in find_tensors(output)]
        if self._left > 0 and is_training_forward(module, output) and _has_bad(outputs):
            given = [item for _, item in find_tensors((args, dict(kwargs))) if self._is_data(item)]
            self._look(tuple(given), "model input")
        if next(module.parameters(), None) is not None:
            self._made = [*self._made, *(ref(item) for item in outputs)][-MOST_KNOWN_OUTPUTS:]

    def function_ended(self, call: TorchCall) -> None:
        result, target = call.result, call.argument(1, "target")
        if self._left <= 0 or not isinstance(result, Tensor) or not result.requires_grad:
            return
        given = call.argument(0, "input")
        # A target is to blame only for what it made itself.
        if not isinstance(target, Tensor) or not isinstance(given, Tensor) or _has_bad([given]):
            return
        if self._is_data(target) and _has_bad([result]):
            self._look({"target": target}, "loss input")

    def _is_data(self, tensor: Tensor) -> bool:
        if tensor.requires_grad or not tensor.is_floating_point():
            return False
        return not any(made() is tensor for made in self._made)

    def _look(self, given: Any, name: str) -> None:
        drawn = [item for item in (one() for one in self._drawn) if item is not None]
        # Of a finite batch, the loop has made the bad values: the samples are not to blame.
        computed = bool(drawn) and not _has_bad(drawn)
        if computed:
            found = scan_batch(given, (), name)
        else:
            found = scan_batch(given, self.script.launch.samples)
        for bad in found:
            if computed:
                bad = replace(bad, facts={**bad.facts, "batch_is_finite": True})
            self._left -= 1
            self._waiting.append((self.script.step, bad, self.script.place()))

    def step_begins(self, optimizer: Any) -> None:
        self._record()

    def finished(self) -> None:
        self._record()

    def _record(self) -> None:
        """There is a recorder from the first backward on."""
        recorder = self.script.launch.recorder
        if recorder is None or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for step, bad, place in waiting:
            recorder.tensor(
                step,
                bad.name,
                bad.role,
                dtype=str(bad.tensor.dtype).removeprefix("torch."),
                shape=tuple(bad.tensor.shape),
                stats=bad.stats,
                facts={**bad.facts, "place": place},
            )


def _has_bad(tensors: list[Tensor]) -> bool:
    with torch.no_grad():
        return any(
            item.is_floating_point()
            and item.layout is torch.strided
            and item.numel() > 0
            and not bool(torch.isfinite(item).all())
            for item in tensors
        )
