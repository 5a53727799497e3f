"""The weight of one token in an update that is accumulated over several micro-batches.

A mean over the tokens of each micro-batch, averaged over the micro-batches, gives the tokens of a
short one a larger weight than those of a long one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.loss.loss_inputs import LossArguments
from headway.torch_adapters.compat import find_aliases

TOPIC = "token-weights"
STEPS = 12
"""The first steps, which are measured."""
ENOUGH = 4
"""Accumulated steps after which the facts are written."""
MOST = 64
UNEVEN = 1.5
SAME = 0.01


@dataclass(slots=True)
class MeanLoss:
    """A mean over the labels of one micro-batch."""

    node: Any
    """What made it; a later `loss *= …` is no part of it. Released when a backward begins."""
    function: str
    counted: int
    ignored: int
    place: dict[str, Any] | None
    weight: float = math.nan
    """The factor with which the mean enters what backward is called on."""


@dataclass(slots=True)
class AccumulatedSteps:
    """What is known of the steps of one line."""

    first: MeanLoss
    first_step: int
    ratios: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Those of the most uneven step."""
    equal_weights: bool = True
    ignored: bool = False


class TokenWeights(Observer):
    """Counts the labels of each micro-batch, and asks autograd for the weight of its mean."""

    functions = find_aliases("cross_entropy", "nll_loss", "embedding")

    def start(self) -> None:
        self._embedded: list[tuple[int, int]] = []
        """Shapes of the ids that were looked up since the last backward."""
        self._open: list[MeanLoss] = []
        self._done: list[MeanLoss] = []
        self._lines: dict[str, AccumulatedSteps] = {}
        self._reported = False

    def function_ended(self, call: TorchCall) -> None:
        if self._reported or self.script.step >= STEPS or not torch.is_grad_enabled():
            return
        if call.name == "embedding":
            ids = call.argument(0, "input")
            if isinstance(ids, Tensor) and ids.ndim == 2:
                self._embedded = [*self._embedded[-8:], (ids.shape[0], ids.shape[1])]
            return
        given, result = LossArguments.of(call), call.result
        if given is None or not given.labels or given.reduction != "mean" or given.weighted:
            return
        if not isinstance(result, Tensor) or result.grad_fn is None or len(self._open) >= MOST:
            return
        if not any(_fits(given.target.numel(), shape) for shape in self._embedded):
            return
        counted = int((given.target != given.ignore_index).sum())
        ignored = given.target.numel() - counted
        self._open.append(
            MeanLoss(result.grad_fn, call.name, counted, ignored, self.script.place())
        )

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        means, self._open, self._embedded = self._open, [], []
        if not means or len(roots) != 1:
            return
        wanted = [GradientEdge(mean.node, 0) for mean in means]
        # Only the path from the loss to its means is run: no gradient reaches a parameter.
        try:
            weights = torch.autograd.grad(roots[0], wanted, retain_graph=True, allow_unused=True)
        except RuntimeError:  # a graph that cannot be walked twice
            self._reported = True
            self.evidence.unavailable(TOPIC, "the graph of the loss cannot be walked twice")
            return
        for mean, weight in zip(means, weights, strict=True):
            mean.node = None
            if weight is not None:
                mean.weight = float(weight)
                self._done.append(mean)
        del self._done[:-MOST]

    def step_ended(self, optimizer: Optimizer) -> None:
        done, self._done = self._done, []
        by_line: dict[str, list[MeanLoss]] = {}
        for mean in done:
            by_line.setdefault(str(mean.place), []).append(mean)
        for line, means in by_line.items():
            weights = [abs(mean.weight) for mean in means]
            if len(means) < 2 or min(mean.counted for mean in means) < 1 or not min(weights):
                continue
            known = self._lines.setdefault(line, AccumulatedSteps(means[0], self.script.step))
            of_a_token = [abs(mean.weight) / mean.counted for mean in means]
            ratio = max(of_a_token) / min(of_a_token)
            if ratio >= max(known.ratios, default=0.0):
                known.counts = [mean.counted for mean in means]
            known.ratios.append(ratio)
            known.equal_weights &= max(weights) <= (1 + SAME) * min(weights)
            known.ignored |= any(mean.ignored for mean in means)
            if len(known.ratios) >= ENOUGH:
                self._report()
                return

    def step_skipped(self, optimizer: Optimizer) -> None:
        self._done = []

    def finished(self) -> None:
        self._open = []
        self._report()

    def _report(self) -> None:
        if self._reported:
            return
        for known in self._lines.values():
            self._reported = True
            facts: dict[str, Any] = {
                "function": known.first.function,
                "steps": len(known.ratios),
                "uneven": sum(ratio >= UNEVEN for ratio in known.ratios),
                "ratio": statistics.median(known.ratios),
                "counts": known.counts[:8],
                "equal_weights": known.equal_weights,
                "ignored": known.ignored,
                "first_step": known.first_step,
            }
            if known.first.place is not None:
                facts["place"] = known.first.place
            self.evidence.record(TOPIC, facts)


def _fits(targets: int, shape: tuple[int, int]) -> bool:
    """Whether there is one target for each token, or for each but the first."""
    one, other = shape
    return targets in (one * other, one * (other - 1), other * (one - 1))


# Tokens that the loss ignores although they are no padding.

IGNORED_TOPIC = "end-token"
INSIDE_BATCHES = 3
"""Batches in which ignored tokens are counted."""
AGREES = 0.99
"""Share of the targets that must be the next token of the input."""
MOST_EMBEDDED = 4


class IgnoredTokens(Observer):
    """Counts ignored targets between others, where targets are the next tokens of the input.

    Padding stands at the ends of a row. A token inside it that is ignored is never learned.
    """

    functions = find_aliases("cross_entropy", "nll_loss", "embedding")

    def start(self) -> None:
        self._embedded: list[Tensor] = []
        self._found: dict[str, list[tuple[int, int, int]]] = {}
        """Line → of each batch: rows with such a token, all rows, and such tokens."""

    def function_ended(self, call: TorchCall) -> None:
        if not torch.is_grad_enabled() or self.script.step > 2 * INSIDE_BATCHES:
            return
        if call.name == "embedding":
            ids = call.argument(0, "input")
            if isinstance(ids, Tensor) and ids.ndim == 2 and min(ids.shape) > 2:
                self._embedded = [*self._embedded[1 - MOST_EMBEDDED :], ids.detach()]
            return
        target, ignored = call.argument(1, "target"), call.argument(4, "ignore_index", -100)
        if isinstance(target, Tensor) and isinstance(ignored, int) and ignored >= 0:
            self._follow(target.detach(), ignored)

    def _follow(self, target: Tensor, ignored: int) -> None:
        rows = next(self._next_tokens(target), None)
        if rows is None:
            return
        known = (rows != ignored).long()
        inside = (known.cumsum(1) > 0) & (known.flip(1).cumsum(1).flip(1) > 0) & (rows == ignored)
        place = self.script.place()
        batches = self._found.setdefault(str(place), [])
        batches.append((int(inside.any(1).sum()), len(rows), int(inside.sum())))
        if len(batches) == INSIDE_BATCHES:
            found, of, count = (sum(column) for column in zip(*batches, strict=True))
            facts = {"ignored_inside": count, "rows_inside": found, "rows": of}
            self.evidence.record(IGNORED_TOPIC, facts | {"ignore_index": ignored, "place": place})

    def _next_tokens(self, target: Tensor) -> Iterator[Tensor]:
        """The targets as rows, where they are the tokens that follow those of the input."""
        for ids in self._embedded:
            count, length = ids.shape
            following = ids[:, 1:].to(target.device)
            if target.numel() == ids.numel():
                rows = target.reshape(count, length)
                same = rows[:, :-1] == following
            elif target.numel() == following.numel():
                rows = target.reshape(count, length - 1)
                same = rows == following
            else:
                continue
            if float(same.double().mean()) >= AGREES:
                yield rows

    def step_ended(self, optimizer: Any) -> None:
        self._embedded = []

    def finished(self) -> None:
        self._embedded = []
