"""The weight of one token in an update that is accumulated over several micro-batches.

A mean over the tokens of each micro-batch, averaged over the micro-batches, gives the tokens of a
short one a larger weight than those of a long one.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
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
    """A mean over the labels of one micro-batch, or the losses that a mask makes one of."""

    node: Any
    """What made it; a later `loss *= …` is no part of it. Released when a backward begins."""
    function: str
    counted: int
    ignored: int
    place: dict[str, Any] | None
    weight: float = math.nan
    """The factor with which the mean enters what backward is called on."""

    def weigh(self, gradient: Tensor) -> bool:
        """Take the weight from the gradient; False where single losses have different ones."""
        if gradient.ndim:
            sizes = gradient.detach().abs()
            sizes = sizes[sizes > 0]
            if not sizes.numel() or float(sizes.max()) > (1 + SAME) * float(sizes.min()):
                return False
            self.ignored += self.counted - sizes.numel()
            self.counted = sizes.numel()
            gradient = gradient.sum()
        self.weight = float(gradient)
        return True


@dataclass(slots=True)
class AccumulatedSteps:
    """Facts about the steps of one line."""

    first: MeanLoss
    first_step: int
    ratios: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Those of the most uneven step."""
    equal_weights: bool = True
    ignored: bool = False


class TokenWeights(Observer):
    """Counts the labels of each micro-batch, and reads the weight of its mean from autograd."""

    functions = find_aliases("cross_entropy", "nll_loss", "embedding")
    calls_before = STEPS

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
        if given is None or not given.labels or given.reduction == "sum" or given.weighted:
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
            weights: Any = torch.autograd.grad(
                roots[0], wanted, retain_graph=True, allow_unused=True
            )
        except RuntimeError:  # a graph that cannot be walked twice
            self._reported = True
            self.evidence.unavailable(TOPIC, "the graph of the loss cannot be walked twice")
            return
        for mean, weight in zip(means, weights, strict=True):
            mean.node = None
            if weight is not None and mean.weigh(weight):
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


def node_of_losses(result: Any, target: Tensor) -> Any:
    """What made the losses of single tokens, where the loss function does not reduce them."""
    single = isinstance(result, Tensor) and result.shape == target.shape and result.ndim > 0
    return result.grad_fn if single else None


def ignore_masked(target: Tensor, node: Any, root: Tensor, ignored: int) -> Tensor:
    """The targets, those replaced that a mask over the single losses leaves out."""
    if node is None:
        return target
    found: Any
    try:
        edge = GradientEdge(node, 0)
        found = torch.autograd.grad(root, [edge], retain_graph=True, allow_unused=True)
    except RuntimeError:  # a graph that cannot be walked twice
        return target
    weights = found[0]
    if weights is None or weights.shape != target.shape or not bool((weights != 0).any()):
        return target
    return target.masked_fill(weights == 0, ignored)


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
MOST_ONE_END = 0.5
"""Share of rows with one last target from which that token counts as their end."""


@dataclass(slots=True)
class EndToken:
    """Facts about the token that ends the rows, over several batches."""

    token: int
    ignored: int
    place: dict[str, Any] | None
    first_step: int
    learned: bool = False
    pads: bool = False
    rows: int = 0
    batches: int = 0
    attended: int = 0
    masked_rows: int = 0
    stops_before: int = 0
    longest_runs: set[int] = field(default_factory=set)
    last_targets: Counter[int] = field(default_factory=Counter)
    """The last target of each row."""
    widths: set[int] = field(default_factory=set)

    @property
    def is_part_of_rows(self) -> bool:
        """Whether the longest row of each batch ends in exactly one, which cannot be padding.

        It can be where all batches are padded to one length: not if no other token ends the rows.
        """
        if self.longest_runs != {1} or self.batches <= 2:
            return False
        most = max(self.last_targets.values(), default=self.rows)
        return len(self.widths) > 1 or most < MOST_ONE_END * self.rows

    def facts(self) -> dict[str, Any]:
        return {
            "token": self.token,
            "learned": self.learned,
            "pads": self.pads,
            "rows": self.rows,
            "batches": self.batches,
            "attended": self.attended / self.masked_rows if self.masked_rows else None,
            "ends_longest": self.is_part_of_rows,
            "stops_before": self.stops_before / self.rows,
            "ignore_index": self.ignored,
            "first_step": self.first_step,
            "place": self.place,
        }

    def add(self, tokens: Tensor, targets: Tensor, known: Tensor, mask: Tensor | None) -> None:
        rows, length = tokens.shape
        ends = tokens == self.token
        # The length of the run at the end of each row.
        runs = ends.flip(1).long().cumprod(1).sum(1)
        self.batches += 1
        self.rows += rows
        self.widths.add(length)
        self.longest_runs.add(int(runs.min()))
        self.pads = self.pads or bool((runs > 1).any())
        if mask is not None:
            places = torch.arange(length, device=tokens.device)
            last = (mask.long() * places).amax(1)
            self.masked_rows += rows
            self.attended += int(ends.gather(1, last[:, None]).sum())
            self.pads = self.pads or bool((ends & ~mask).any())
        # The last target that counts, and what follows it in the row.
        width = known.shape[1]
        at = (known.long() * torch.arange(1, width + 1, device=known.device)).amax(1)
        self.last_targets.update(targets.gather(1, (at - 1).clamp(min=0)[:, None])[:, 0].tolist())
        following = (at + 1).clamp(max=length - 1)
        next_is_end = ends.gather(1, following[:, None])[:, 0]
        self.stops_before += int((next_is_end & (at > 0) & (at + 1 < length)).sum())


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
