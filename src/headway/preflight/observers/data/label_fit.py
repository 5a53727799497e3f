"""How labels are fitted: per sample, by an update's own batch, contradictory labels, padding."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# Whether one and the same input comes with different labels.

MOST_INPUTS = 20_000
MOST_COMPARED_ROWS = 512
MOST_COMPARED_BYTES = 1 << 14
"""Of one sample, so that large ones are known by their beginning and never looked at for long."""


MOST_BACKWARDS = 8
"""Backward passes of one optimizer step that are looked at."""


class ContradictoryLabels:
    """Compares the labels of each input, for each optimizer: another training may have others."""

    def __init__(self) -> None:
        self._known: list[tuple[weakref.ref[Optimizer], _KnownLabels]] = []
        self._scored: list[tuple[list[Tensor], Tensor]] = []
        self._trained: list[tuple[list[Tensor], Tensor]] = []

    def scored(self, inputs: list[Tensor], labels: Tensor) -> None:
        """A loss compares the output for these inputs with the labels."""
        self._scored.append((inputs, labels))

    def backward_begins(self) -> None:
        """What was scored is trained on."""
        # Mixup scores one output against two sets of labels.
        if len(self._scored) == 1:
            self._trained = [*self._trained[1 - MOST_BACKWARDS :], *self._scored]
        self._scored = []

    def step_begins(self, optimizer: Optimizer) -> None:
        """What was trained on belongs to this optimizer."""
        trained, self._trained = self._trained, []
        if not trained:
            return
        known = next((known for ref, known in self._known if ref() is optimizer), None)
        if known is None:
            known = _KnownLabels()
            self._known.append((weakref.ref(optimizer), known))
        for inputs, labels in trained:
            known.take(inputs, labels)

    def facts(self) -> dict[str, Any]:
        """How many inputs there were, and how many of them had several labels; the worst."""
        found = [facts for _, known in self._known if (facts := known.facts())]
        return max(found, key=lambda facts: facts["contradictory"], default={})


class _KnownLabels:
    """Remembers inputs by their hashes, with the labels they came with."""

    def __init__(self) -> None:
        self._labels: dict[bytes, int] = {}
        self._differing: set[bytes] = set()

    def take(self, inputs: list[Tensor], labels: Tensor) -> None:
        """A batch: everything the model was given, and the labels."""
        rows = labels.numel()
        if not inputs or rows > MOST_COMPARED_ROWS or len(self._labels) > MOST_INPUTS:
            return
        if not all(item.ndim and item.shape[0] == rows and item.is_cpu for item in inputs):
            return
        if any(item.layout is not torch.strided or not item.numel() for item in inputs):
            return
        if not any(_continuous(item) for item in inputs):
            return
        # As bytes: numpy does not know every dtype.
        flat = [item.detach().reshape(rows, -1).contiguous() for item in inputs]
        arrays = [item.view(torch.uint8).numpy() for item in flat]
        if sum(array[0].nbytes for array in arrays) > MOST_COMPARED_BYTES:
            return
        for row, label in enumerate(labels.tolist()):
            digest = blake2b(digest_size=12)
            for array in arrays:
                digest.update(array[row].tobytes())
            self._note(digest.digest(), int(label))

    def _note(self, key: bytes, label: int) -> None:
        before = self._labels.setdefault(key, label)
        if before != label:
            self._differing.add(key)

    def facts(self) -> dict[str, Any]:
        """How many inputs there were, and how many of them had several labels."""
        if not self._labels:
            return {}
        return {"inputs": len(self._labels), "contradictory": len(self._differing)}


def _continuous(item: Tensor) -> bool:
    """Whether these are measurements: whole numbers may well be the same by chance."""
    if not item.is_floating_point() or item[0].numel() < 2:
        return False
    return not bool((item == item.round()).all())


# What updates do to the batch they were made from, and whether one batch agrees with the next.

# To first order: the gradient times the change of the weights is what the batch's own loss falls
# by. Where gradients of neighbouring batches have nothing in common, what one learns the next
# forgets.

EFFECT_EVERY = 5
EFFECT_ELEMENTS = 2_000_000
"""Weights that are looked at; the first ones where there are more."""
MOST_EFFECTS = 500


class OwnBatchEffect:
    """Measured at every fifth step, and the one after it."""

    def __init__(self) -> None:
        self.steps = 0
        self.falls: list[float] = []
        self.cosines: list[float] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        self._gradients: list[Tensor] | None = None

    @torch.no_grad()
    def step_begins(self, optimizer: Optimizer, *, wanted: bool) -> None:
        """The gradients are there."""
        self.steps += 1
        self._before = []
        earlier, self._gradients = self._gradients, None
        if not wanted or len(self.falls) >= MOST_EFFECTS:
            return
        if self.steps % EFFECT_EVERY == 0:
            chosen = list(_chosen(optimizer))
            self._before = [(parameter, parameter.detach().clone()) for parameter in chosen]
            self._gradients = [p.grad.detach().clone() for p in chosen if p.grad is not None]
        elif earlier is not None:
            now = [p.grad.detach() for p in _chosen(optimizer) if p.grad is not None]
            self._compare(earlier, now)

    def _compare(self, earlier: list[Tensor], now: list[Tensor]) -> None:
        if len(earlier) != len(now) or any(
            a.shape != b.shape for a, b in zip(earlier, now, strict=True)
        ):
            return
        pairs = list(zip(earlier, now, strict=True))
        both = sum(float((a.float() * b.float()).sum()) for a, b in pairs)
        sizes = [
            sum(float(item.float().square().sum()) for item in side) for side in (earlier, now)
        ]
        if sizes[0] > 0 and sizes[1] > 0 and math.isfinite(both):
            self.cosines.append(both / math.sqrt(sizes[0] * sizes[1]))

    @torch.no_grad()
    def step_ended(self) -> None:
        """The weights have moved."""
        before, self._before = self._before, []
        fall = 0.0
        for parameter, was in before:
            if parameter.grad is not None and parameter.grad.shape == was.shape:
                moved = (parameter.detach() - was).float()
                fall -= float((parameter.grad.float() * moved).sum())
        if before and math.isfinite(fall):
            self.falls.append(fall)

    def facts(self) -> dict[str, float]:
        """Means; of the agreement, over the later half and over the half before it."""
        found: dict[str, float] = {}
        if self.falls:
            found["own_fall"] = sum(self.falls) / len(self.falls)
        later = self.cosines[len(self.cosines) // 2 :]
        if later:
            found["agreement"] = sum(later) / len(later)
            found["agreement_pairs"] = len(later)
        earlier = self.cosines[: len(self.cosines) // 2]
        if earlier:
            found["early_agreement"] = sum(earlier) / len(earlier)
        return found


def _chosen(optimizer: Optimizer) -> Iterator[Tensor]:
    room = EFFECT_ELEMENTS
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None or parameter.grad.is_sparse or parameter.numel() > room:
                continue
            room -= parameter.numel()
            yield parameter


# Whether the rows of a batch of sequences end in padding: one id, there and nowhere else.


@dataclass(slots=True)
class Padding:
    """Observations of sequences of labels."""

    rows: int = 0
    elements: int = 0
    tails: dict[int, int] = field(default_factory=dict)
    """For each id that rows end in, how much of them it is …"""
    tailed: dict[int, int] = field(default_factory=dict)
    """… in how many rows …"""
    elsewhere: dict[int, int] = field(default_factory=dict)
    """… and how often it is found before that."""
    shortest: dict[int, int] = field(default_factory=dict)
    longest: dict[int, int] = field(default_factory=dict)

    def take(self, grid: Tensor | None, ignored: Any) -> None:
        """Look at rows of labels."""
        if grid is None or grid.ndim != 2 or grid.shape[1] < 3 or self.rows > 4096:
            return
        rows: list[list[int]] = grid[:256].tolist()
        for given in rows:
            # Labels that are shifted by one have one at their end that is left out.
            row = given[:-1] if given[-1] == ignored else given
            last = row[-1]
            if last == ignored:
                continue
            length = 0
            while length < len(row) and row[-1 - length] == last:
                length += 1
            if length == len(row):
                continue
            self.rows += 1
            self.elements += len(row)
            self.tails[last] = self.tails.get(last, 0) + length
            self.tailed[last] = self.tailed.get(last, 0) + 1
            self.shortest[last] = min(self.shortest.get(last, length), length)
            self.longest[last] = max(self.longest.get(last, length), length)
            for label in row[: len(row) - length]:
                if label in self.tails:
                    self.elsewhere[label] = self.elsewhere.get(label, 0) + 1

    def facts(self) -> dict[str, Any]:
        """The id that looks most like padding, if any does."""
        if not self.tails or self.rows < 8:
            return {}
        label = max(self.tails, key=self.tails.__getitem__)
        return {
            "pad_id": label,
            "pad_share": self.tails[label] / self.elements,
            "pad_rows": self.tailed[label] / self.rows,
            "pad_elsewhere": self.elsewhere.get(label, 0) / max(self.elements, 1),
            "pad_shortest": self.shortest[label],
            "pad_longest": self.longest[label],
        }


# How the samples of a batch are fitted: which are right, and how sure the model is.

MOST_FITTED_SAMPLES = 1024
"""Samples of one batch."""


@dataclass(slots=True)
class SampleFit:
    """One batch."""

    step: int
    loss: float
    labels: list[int]
    guesses: list[int]
    surest: list[float]
    """The largest probability of each sample."""

    @staticmethod
    def summary(
        early: Sequence[SampleFit],
        late: Sequence[SampleFit],
        counts: Mapping[int, int],
        classes: int,
    ) -> dict[str, Any]:
        """The early and the late batches in a few numbers."""
        total = sum(counts.values())
        shares = [count / total for count in counts.values()] if total else []
        last = list(late)[len(late) // 3 :] or list(late)
        facts: dict[str, Any] = {
            "classes": classes,
            "seen": len(counts),
            "entropy": -sum(share * math.log(share) for share in shares if share > 0),
            "majority": max(shares, default=1.0),
            "early_loss": _mean([item.loss for item in early]),
            "late_loss": _mean([item.loss for item in last]),
            "late_steps": len(last),
        }
        return facts | _late(last)


def measure_fit(logits: Tensor, labels: Tensor, step: int) -> SampleFit:
    """A batch, from its logits or log-probabilities."""
    with torch.no_grad():
        log_p = torch.log_softmax(logits[:MOST_FITTED_SAMPLES], 1)
        labels = labels[:MOST_FITTED_SAMPLES]
        sound = ~log_p.isnan().any(1)  # a row of NaN is neither right nor wrong
        log_p, labels = log_p[sound], labels[sound]
        loss = float(-log_p.gather(1, labels[:, None]).mean())
        surest, guesses = log_p.exp().max(1)
    return SampleFit(step, loss, labels.tolist(), guesses.tolist(), surest.tolist())


def _late(fits: Sequence[SampleFit]) -> dict[str, Any]:
    rows = [
        (sure, label, guess)
        for fit in fits
        for sure, label, guess in zip(fit.surest, fit.labels, fit.guesses, strict=True)
    ]
    if not rows:
        return {}
    wrong = sum(label != guess for _, label, guess in rows) / len(rows)
    rows.sort(reverse=True)
    top = rows[: max(len(rows) // 4, 1)]
    recalls: dict[int, list[int]] = {}
    confused: dict[tuple[int, int], int] = {}
    for _, label, guess in rows:
        hits = recalls.setdefault(label, [0, 0])
        hits[0] += label == guess
        hits[1] += 1
        if label != guess:
            confused[label, guess] = confused.get((label, guess), 0) + 1
    return {
        "late_samples": len(rows),
        "wrong": wrong,
        "wrong_when_sure": sum(label != guess for _, label, guess in top) / len(top),
        "sureness": sum(sure for sure, _, _ in top) / len(top),
        "sureness_of_rest": sum(sure for sure, _, _ in rows[len(top) :])
        / max(len(rows) - len(top), 1),
        "class_errors": [
            [label, 1 - hits / count, count] for label, (hits, count) in sorted(recalls.items())
        ][:100],
        "pair": _pair(recalls, confused),
    }


def _pair(recalls: dict[int, list[int]], confused: dict[tuple[int, int], int]) -> list[float]:
    """The two classes taken for each other most: [a, b, a as b, b as a, error of the rest]."""
    best: list[float] = []
    for (a, b), count in confused.items():
        back = confused.get((b, a), 0)
        if a < b and back:
            there, here = count / recalls[a][1], back / recalls[b][1]
            if not best or min(there, here) > min(best[2], best[3]):
                rest = [hits for label, hits in recalls.items() if label not in (a, b)]
                seen = sum(item[1] for item in rest)
                error = 1 - sum(item[0] for item in rest) / seen if seen else 1.0
                best = [a, b, there, here, error, float(min(recalls[a][1], recalls[b][1]))]
    return best


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
