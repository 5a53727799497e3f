"""The labels and targets that reach a loss function: how they are spread, and how they are fitted.

What is kept is counts and sums for each line that calls a loss, and the last few batches' fit.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import WeightedRandomSampler

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.data.label_fit import (
    ContradictoryLabels,
    OwnBatchEffect,
    Padding,
    SampleFit,
    measure_fit,
)
from headway.torch_adapters import tensor_values
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.loss_graph import find_terms
from headway.torch_adapters.op_schema import BINARY_LOSSES, REGRESSION_LOSSES, TASK_LOSSES

BY_HAND = ("sub", "__sub__", "__rsub__")

MOST_PLACES = 24
MOST_CLASSES = 4096
MOST_ELEMENTS = 1 << 20
"""A larger call is looked at in its first part."""
FITS_KEPT = 60
"""Batches whose fit is kept: the first and the last of them."""


@dataclass(slots=True)
class LabelCounts:
    """The labels that one call of a loss function has received."""

    loss: str
    place: dict[str, Any] | None
    first: int
    samples: int = 0
    calls: int = 0
    alone: int = 0
    """Calls whose result was all that backward was called on, but for a factor."""
    classes: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    weighted: bool = False
    contrastive: bool = False
    dense: bool = False
    """Many labels for each sample: a map, a sequence."""
    changes: int = 0
    """Neighbours in a batch with different labels …"""
    neighbours: int = 0
    """Number of neighbours compared."""
    padding: Padding = field(default_factory=Padding)
    early: list[SampleFit] = field(default_factory=list)
    late: deque[SampleFit] = field(default_factory=lambda: deque(maxlen=FITS_KEPT))
    total: float = 0.0
    squares: float = 0.0
    predicted: float = 0.0
    """Sum of squares of the first predictions."""
    elements: int = 0
    predictions: int = 0
    drawn: int = 0
    """Calls whose targets came out of a loader as they are …"""
    drawn_samples: int = 0
    low: float = math.inf
    high: float = -math.inf
    """… and between what they lie."""


class Labels(Observer):
    """Counts labels, sums up targets, and looks at how single samples are fitted."""

    functions = find_aliases(*TASK_LOSSES, *BY_HAND)

    def start(self) -> None:
        self._tallies: dict[Any, LabelCounts] = {}
        self._balanced = False
        self._grid: tuple[int, int] | None = None
        self._rows: int | None = None
        self._addresses: set[int] = set()
        self._effect = OwnBatchEffect()
        self._contradictions = ContradictoryLabels()
        self._inputs: list[Tensor] = []
        self._forwards = 0
        self._called: list[tuple[LabelCounts, Any]] = []

    def pass_begun(self, loader: Any) -> None:
        for sampler in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
            name = type(sampler).__name__.lower()
            known = isinstance(sampler, WeightedRandomSampler)
            if known or any(word in name for word in ("weight", "balanc", "strat")):
                self._balanced = True

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._grid = None
        self._rows = tensor_values.batch_size(batch)
        self._addresses = set()
        items = batch.values() if isinstance(batch, dict) else batch
        if not isinstance(items, Tensor) and hasattr(items, "__iter__"):
            for item in items:
                if isinstance(item, Tensor):
                    self._addresses.add(item.data_ptr())
                if isinstance(item, Tensor) and item.ndim == 2 and not item.is_floating_point():
                    self._grid = (item.shape[0], item.shape[1])

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if next(module.parameters(), None) is None:
            return  # a criterion: it is given flattened outputs, not the samples
        self._inputs = [item for item in args if isinstance(item, Tensor)]
        self._forwards += 1
        for item in self._inputs[:1]:
            if item.ndim:
                self._rows = item.shape[0]

    def function_ended(self, call: TorchCall) -> None:
        if not torch.is_grad_enabled():
            return
        if call.name in BY_HAND:
            self._by_hand(call)
            return
        given, target = call.argument(0, "input"), call.argument(1, "target")
        if not isinstance(given, Tensor) or not isinstance(target, Tensor):
            return
        if not given.requires_grad:
            return
        if not target.numel():
            self._empty(call)
            return
        tally = self._tally(call.name, given)
        if tally is None:
            return
        tally.calls += 1
        self._called.append((tally, call.result))
        self._vary(tally, target)
        if call.name in REGRESSION_LOSSES:
            self._sum_up(tally, given, target)
        else:
            self._count(tally, call, given, target)

    def _empty(self, call: TorchCall) -> None:
        result = call.result
        if isinstance(result, Tensor) and result.numel() and not bool(result.isfinite().all()):
            facts = {"what": f"{call.name} received", "place": self.script.place()}
            self.evidence.record("empty-batch", facts)

    def _vary(self, tally: LabelCounts, target: Tensor) -> None:
        """Whether targets that come from the data differ at all."""
        if target.data_ptr() not in self._addresses or target.numel() != target.shape[0]:
            return
        tally.drawn += 1
        tally.drawn_samples += target.numel()
        tally.low = min(tally.low, float(target.detach().min()))
        tally.high = max(tally.high, float(target.detach().max()))

    def _tally(self, loss: str, given: Tensor) -> LabelCounts | None:
        place = self.script.place()
        # One function may train several models in turn, each for labels of its own.
        outputs = given.shape[1] if given.ndim > 1 else 1
        key = (loss, outputs, None if place is None else (place["file"], place["line"]))
        if key not in self._tallies:
            if len(self._tallies) >= MOST_PLACES:
                return None
            self._tallies[key] = LabelCounts(loss, place, self.script.step)
        return self._tallies[key]

    # Classes.

    def _count(self, tally: LabelCounts, call: TorchCall, given: Tensor, target: Tensor) -> None:
        binary = call.name in BINARY_LOSSES
        weights = (call.argument(2, "weight"), call.kwargs.get("pos_weight"))
        reduction = call.kwargs.get("reduction", "mean")
        if any(item is not None for item in weights) or reduction == "none":
            tally.weighted = True  # by the loss, or by whoever goes on with single losses
        if target.requires_grad or target.numel() > 1 << 24:
            return
        with torch.no_grad():
            if binary:
                self._count_binary(tally, given.detach(), target.detach(), call.name)
            elif not target.is_floating_point():
                ignored = call.argument(4, "ignore_index", -100)
                self._count_classes(tally, given.detach(), target.detach(), ignored, call.name)

    def _count_binary(self, tally: LabelCounts, given: Tensor, target: Tensor, loss: str) -> None:
        if target.ndim > 2 or (target.ndim == 2 and target.shape[1] != 1):
            tally.classes = 0  # several labels a sample, or a map
            return
        labels = target.reshape(-1)[:MOST_ELEMENTS]
        self._is_dense(tally, target)
        hard = bool(((labels == 0) | (labels == 1)).all())
        if not hard or labels.numel() != given.numel():
            return
        tally.classes = 2
        self._add(tally, labels.long().tolist())
        if given.numel() <= 1 << 16:
            score = given.reshape(-1).float()
            logits = score if "logits" in loss else torch.logit(score.clamp(1e-6, 1 - 1e-6))
            both = torch.stack([torch.zeros_like(logits), logits], 1)
            self._fit(tally, both, labels.long())

    def _count_classes(
        self, tally: LabelCounts, given: Tensor, target: Tensor, ignored: Any, loss: str
    ) -> None:
        classes = given.shape[1] if given.ndim > 1 else given.shape[0]
        if classes > MOST_CLASSES:
            return
        tally.classes = classes
        labels = target.reshape(-1)
        kept = labels != ignored if isinstance(ignored, int) else None
        if kept is not None and bool(kept.all()):
            kept = None  # nothing is ignored
        self._is_dense(tally, target)
        sequence = target.ndim > 1 or self._is_flat_grid(labels)
        if sequence:
            grid = target if target.ndim == 2 else self._as_grid(labels)
            tally.padding.take(grid, ignored)
        labels = (labels if kept is None else labels[kept])[:MOST_ELEMENTS]
        values: list[int] = labels.tolist()
        if not values or min(values) < 0 or max(values) >= classes:
            return
        self._add(tally, values)
        if target.ndim == 1 and given.ndim == 2:
            count = len(values)
            if count > 2 and classes >= count and values == list(range(count)):
                tally.contrastive = True
            if given.numel() <= 1 << 20:
                self._fit(tally, (given if kept is None else given[kept]).float(), labels)
            if self._forwards == 1 and kept is None:
                self._contradictions.scored(self._inputs, labels)

    def _add(self, tally: LabelCounts, labels: list[int]) -> None:
        tally.samples += len(labels)
        for label, count in sorted(Counter(labels).items()):
            tally.counts[label] = tally.counts.get(label, 0) + count
        if len(labels) > 1:
            tally.changes += sum(map(operator.ne, labels, labels[1:]))
            tally.neighbours += len(labels) - 1

    def _is_dense(self, tally: LabelCounts, target: Tensor) -> None:
        if target.ndim > 1 and target.numel() > target.shape[0]:
            tally.dense = True
        if self._rows and target.numel() >= 4 * self._rows:
            tally.dense = True

    def _is_flat_grid(self, labels: Tensor) -> bool:
        return self._as_grid(labels) is not None

    def _as_grid(self, labels: Tensor) -> Tensor | None:
        """Flattened sequences as rows again, if the batch contains their lengths."""
        if self._grid is None:
            return None
        rows, length = self._grid
        for width in (length, length - 1):
            if width > 1 and rows * width == labels.numel():
                return labels.reshape(rows, width)
        return None

    def _fit(self, tally: LabelCounts, logits: Tensor, labels: Tensor) -> None:
        if labels.numel() < 2 or logits.shape[0] != labels.numel():
            return
        fit = measure_fit(logits, labels, self.script.step)
        if len(tally.early) < FITS_KEPT // 3:
            tally.early.append(fit)
        tally.late.append(fit)

    # Numbers.

    def _by_hand(self, call: TorchCall) -> None:
        """`prediction - target`, outside of any module: half of a loss written by hand."""
        if self.script.stack or len(call.args) < 2:
            return
        left, right = call.args[0], call.args[1]
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            return
        if left.requires_grad == right.requires_grad or left.shape != right.shape:
            return
        given, target = (left, right) if left.requires_grad else (right, left)
        if target.numel() < 8 or not target.is_floating_point() or target.grad_fn is not None:
            return
        tally = self._tally("difference", given)
        if tally is not None:
            tally.calls += 1
            self._sum_up(tally, given, target)

    def _sum_up(self, tally: LabelCounts, given: Tensor, target: Tensor) -> None:
        if target.requires_grad or not target.is_floating_point():
            return
        values = target.detach().reshape(-1)[:MOST_ELEMENTS].double()
        tally.samples += target.shape[0] if target.ndim else 1
        tally.elements += values.numel()
        tally.total += float(values.sum())
        tally.squares += float(values.square().sum())
        if tally.calls <= 3:
            guessed = given.detach().reshape(-1)[:MOST_ELEMENTS].double()
            tally.predictions += guessed.numel()
            tally.predicted += float(guessed.square().sum())

    # What the updates do to their own batch.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        called, self._called = self._called, []
        for tally, result in called[:8]:
            tally.alone += any(_is_whole(root, result) for root in roots)
        self._inputs, self._forwards = [], 0
        self._contradictions.backward_begins()

    def step_begins(self, optimizer: Optimizer) -> None:
        self._contradictions.step_begins(optimizer)
        self._effect.step_begins(optimizer, wanted=self._wanted())

    def step_ended(self, optimizer: Optimizer) -> None:
        self._effect.step_ended()

    def _wanted(self) -> bool:
        return any(tally.late and not tally.contrastive for tally in self._tallies.values())

    # The end.

    def finished(self) -> None:
        for tally in self._tallies.values():
            about = {"place": tally.place, "loss": tally.loss, "first_step": tally.first}
            if tally.counts and not tally.contrastive:
                self._report_labels(tally, about)
            if tally.elements:
                self._report_targets(tally, about)
            if tally.drawn:
                facts = {"batches": tally.drawn, "samples": tally.drawn_samples}
                varying = {"varying": int(tally.low != tally.high)}
                self.evidence.record("target-variety", {**about, **facts, **varying})

    def _report_labels(self, tally: LabelCounts, about: dict[str, Any]) -> None:
        counts = dict(sorted(tally.counts.items(), key=lambda item: -item[1])[:20])
        self.evidence.record(
            "labels",
            {
                **about,
                "samples": tally.samples,
                "calls": tally.calls,
                "classes": tally.classes,
                "seen": len(tally.counts),
                "counts": [[label, count] for label, count in counts.items()],
                "weighted": tally.weighted or self._balanced,
                "dense": tally.dense,
                "changes": tally.changes,
                "neighbours": tally.neighbours,
                **tally.padding.facts(),
            },
        )
        if tally.late and not tally.weighted and not tally.dense:
            fitted = SampleFit.summary(tally.early, list(tally.late), tally.counts, tally.classes)
            alone = {"steps": self._effect.steps, "alone": tally.alone / max(tally.calls, 1)}
            seen = {"passes": self.script.data_passes}
            effect, twice = self._effect.facts(), self._contradictions.facts()
            self.evidence.record(
                "sample-fit", {**about, **fitted, **alone, **effect, **twice, **seen}
            )

    def _report_targets(self, tally: LabelCounts, about: dict[str, Any]) -> None:
        mean = tally.total / tally.elements
        square = tally.squares / tally.elements
        predicted = tally.predicted / max(tally.predictions, 1)
        self.evidence.record(
            "targets",
            {
                **about,
                "samples": tally.samples,
                "rms": math.sqrt(square) if square >= 0 else None,
                "mean": mean,
                "std": math.sqrt(max(square - mean * mean, 0.0)),
                "prediction_rms": math.sqrt(predicted) if predicted >= 0 else None,
            },
        )


def _is_whole(root: Tensor, result: Any) -> bool:
    """Whether a loss is this result, but for a factor."""
    node = root.grad_fn
    if not isinstance(result, Tensor) or result.numel() != 1 or node is None:
        return False
    terms = find_terms(node, root.output_nr)
    return len(terms) == 1 and terms[0].node is result.grad_fn
