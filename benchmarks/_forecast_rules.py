"""Rules that may warn of a divergence, for `forecast.py`: those of others, and ours.

A rule computes one score per step from the record of that step and the ones before it. It warns
where the score exceeds a threshold. These are our own implementations, written from the papers and
from reading the code of the named projects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import mean, median, pstdev

import torch
from _forecast_trainings import Series

Scores = list[float]
Rule = Callable[[Series], Scores]
QUIET = -math.inf
"""The score of a step that cannot be judged yet."""
EARLIEST = 20
"""Steps of history before the first score."""
FIRST_ROW = 30
"""The same for the combined forecast."""


def log(value: float) -> float:
    return math.log(max(value, 1e-30)) if math.isfinite(value) else 70.0


# Rules of others -----------------------------------------------------------------------------


def z_scores(values: Sequence[float], window: int) -> Scores:
    """OLMo-core's `SkipStepOptimizer`: distance to the mean of the window before, in deviations."""
    scores = []
    for step, value in enumerate(values):
        before = values[max(step - window, 0) : step]
        if step < EARLIEST or not all(map(math.isfinite, before)):
            scores.append(QUIET)
        else:
            scores.append((value - mean(before)) / (pstdev(before) + 1e-12))
    return scores


def zclip_scores(values: Sequence[float], alpha: float = 0.97, z: float = 2.5) -> Scores:
    """ZClip (arXiv 2504.02507): as above, with exponential means of the clipped norms."""
    first = list(values[:25])
    if len(first) < 25 or not all(map(math.isfinite, first)):
        return [QUIET] * len(values)
    middle, variance = mean(first), pstdev(first) ** 2
    scores = [QUIET] * 25
    for value in values[25:]:
        deviation = variance**0.5
        score = (value - middle) / (deviation + 1e-6)
        scores.append(score)
        admitted = middle + z * deviation / (score / z) if score > z else value
        middle = alpha * middle + (1 - alpha) * admitted
        variance = alpha * variance + (1 - alpha) * (admitted - middle) ** 2
    return scores


def above_best(values: Sequence[float], patience: int = 1) -> Scores:
    """TheDeepChecker's kind: the loss relative to its best level, for `patience` steps in a row."""
    best, ratios, scores = math.inf, [], []
    for step, value in enumerate(values):
        ratios.append(log(value) - log(best) if step >= EARLIEST else QUIET)
        scores.append(min(ratios[-patience:]) if step >= EARLIEST else QUIET)
        if step >= 10:
            best = min(best, max(median(values[step - 9 : step + 1]), 1e-6))
    return scores


def above_median(values: Sequence[float], window: int = 100) -> Scores:
    """The gradient norm relative to its median, as in AdaGC-like limits."""
    return [
        log(value) - log(median(values[max(step - window, 0) : step]))
        if step >= EARLIEST
        else QUIET
        for step, value in enumerate(values)
    ]


# Ours ----------------------------------------------------------------------------------------


def latest(
    kept: dict[int, list[float]], steps: int, fold: Callable[[list[float]], float]
) -> Scores:
    """A sampled column, reduced to one number, from the step after its measurement on."""
    value, scores = math.nan, []
    for step in range(steps):
        scores.append(value)
        if kept.get(step):
            value = fold(kept[step])
    return scores


def block_medians(values: Sequence[float], step: int, blocks: int, size: int) -> list[float]:
    """Medians of the latest blocks, oldest first; fewer at the start of a run."""
    ends = [step + 1 - size * back for back in range(blocks)]
    return [median(values[end - size : end]) for end in reversed(ends) if end >= size]


def steady_growth(values: Sequence[float], blocks: int = 4, size: int = 8) -> Scores:
    """Growth of the logarithm over the latest blocks, if it grew in each of them."""
    logs = [log(value) for value in values]
    scores = []
    for step in range(len(values)):
        medians = block_medians(logs, step, blocks, size)
        rises = [b - a for a, b in pairwise(medians)]
        ready = step >= EARLIEST and len(medians) == blocks
        scores.append((blocks - 1) * min(rises) if ready else QUIET)
    return scores


def norm_and_loss_growth(series: Series) -> Scores:
    """Steady growth of the gradient norm, while the loss does not fall."""
    norms, losses = steady_growth(series.grad_norm), steady_growth(series.loss, 3)
    return [norm if loss > 0 else QUIET for norm, loss in zip(norms, losses, strict=True)]


def sustained_update(series: Series, measurements: int = 3) -> Scores:
    """Logarithm of the update relative to the weight that the latest measurements all reached.

    Of the tensors the third largest, because a bias that starts at 0 has a large ratio.
    """
    seen: list[float] = []
    scores = []
    for step in range(len(series.loss)):
        ready = step >= EARLIEST and len(seen) >= measurements
        scores.append(min(seen[-measurements:]) if ready else QUIET)
        if ratios := series.update_ratios.get(step):
            seen.append(log(sorted(ratios)[-min(3, len(ratios))]))
    return scores


def norm_rise(series: Series) -> Scores:
    """Logarithm of the median norm of 8 steps relative to that of the 50 before."""
    norms = [log(norm) for norm in series.grad_norm]
    return [
        median(norms[step - 7 : step + 1]) - median(norms[max(step - 58, 0) : step - 7])
        if step >= EARLIEST
        else QUIET
        for step in range(len(norms))
    ]


def loss_rise(series: Series, size: int = 8) -> Scores:
    """Logarithm of the median loss of the latest steps relative to the lowest such median."""
    best, scores = math.inf, []
    for step in range(len(series.loss)):
        level = log(median(series.loss[max(step - size + 1, 0) : step + 1]))
        best = min(best, max(level, log(1e-4)))
        scores.append(level - best if step >= EARLIEST else QUIET)
    return scores


def large_updates_and_rising_norm(series: Series) -> Scores:
    """`sustained_update`, while the gradient norm is 1.5 times what it was."""
    pairs = zip(sustained_update(series), norm_rise(series), strict=True)
    return [update if rise > math.log(1.5) else QUIET for update, rise in pairs]


def turning(series: Series, window: int = 20) -> Scores:
    """Mean cosine between a gradient and the update before it: near 1, each step goes too far."""
    turn = series.turn
    return [
        mean(turn[step - window + 1 : step + 1]) if step >= window else QUIET
        for step in range(len(turn))
    ]


def attention(series: Series) -> Scores:
    return [log(v) if step >= EARLIEST and v == v else QUIET
            for step, v in enumerate(series.attention)]  # fmt: skip


FEATURES = {
    "sustained update": (-6.0, 0.0),
    "rise of the loss": (0.0, 1.0),
    "rise of the norm": (-1.0, 1.0),
    "turning": (-1.0, 1.0),
    "swings of the loss": (-2.0, 2.0),
    "attention logits": (0.0, 4.0),
    "rise of the rate": (-1.0, 1.0),
    "growth of the weights": (-0.5, 1.0),
}
"""The features with their limits: one extreme step must not outweigh all other features."""


def features(series: Series) -> list[list[float]]:
    """The inputs of the combined forecast, one row per step; 0 where nothing was measured."""
    count = len(series.loss)
    weights = latest(series.weight_norms, count, lambda norms: log(max(norms)))
    losses = [log(loss) for loss in series.loss]
    swings = [0.0, *(abs(b - a) for a, b in pairwise(losses))]
    signals = (sustained_update(series), loss_rise(series), norm_rise(series), turning(series))
    rows = []
    for step in range(count):
        past, now = slice(max(step - 66, 0), step - 15), slice(step - 15, step + 1)
        if step < FIRST_ROW:
            rows.append([0.0] * len(FEATURES))
            continue
        row = [
            *(signal[step] for signal in signals),
            log(median(swings[now]) + 1e-4) - log(median(swings[past]) + 1e-4),
            log(series.attention[step]) if series.attention[step] == series.attention[step] else 0,
            log(series.rate[step]) - log(median(series.rate[past])),
            weights[step] - next((w for w in weights[past] if w == w), math.nan),
        ]
        limits = FEATURES.values()
        rows.append(
            [min(max(v, a), b) if v == v else 0.0 for v, (a, b) in zip(row, limits, strict=True)]
        )
    return rows


class Combined:
    """Logistic regression on `features`: is a divergence less than `HORIZON` steps away?"""

    HORIZON = 20

    def __init__(self, runs: Sequence[tuple[Series, int | None]], ridge: float = 0.01) -> None:
        rows, labels, shares = [], [], []
        for series, onset in runs:
            scores = features(series)
            end = len(scores) if onset is None else min(onset, len(scores))
            begin = FIRST_ROW if onset is None else max(onset - self.HORIZON, FIRST_ROW)
            for step in range(begin, end):
                rows.append(scores[step])
                labels.append(float(onset is not None))
                shares.append(1 / max(end - begin, 1))  # each run counts once
        x, y, share = torch.tensor(rows), torch.tensor(labels), torch.tensor(shares)
        self.centre, self.scale = x.mean(0), x.std(0) + 1e-6
        self.weights = torch.zeros(x.shape[1] + 1, requires_grad=True)
        solver = torch.optim.LBFGS([self.weights], max_iter=200)

        def closure() -> torch.Tensor:
            solver.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                self._logits(x), y, weight=share / share.mean()
            )
            loss = loss + ridge * self.weights[:-1].square().sum()
            loss.backward()
            return loss

        solver.step(closure)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.centre) / self.scale @ self.weights[:-1] + self.weights[-1]

    @torch.no_grad()
    def __call__(self, series: Series) -> Scores:
        values = self._logits(torch.tensor(features(series))).tolist()
        return [QUIET if step < FIRST_ROW else value for step, value in enumerate(values)]


OTHERS: dict[str, Rule] = {
    "loss, z-score over 50 steps": lambda run: z_scores(run.loss, 50),
    "loss, z-score over 128 steps": lambda run: z_scores(run.loss, 128),
    "gradient norm, z-score over 50 steps": lambda run: z_scores(run.grad_norm, 50),
    "gradient norm, z-score over 128 steps": lambda run: z_scores(run.grad_norm, 128),
    "gradient norm, ZClip's z-score": lambda run: zclip_scores(run.grad_norm),
    "gradient norm above its median": lambda run: above_median(run.grad_norm),
    "loss above its best": lambda run: above_best(run.loss),
    "loss above its best, 10 steps in a row": lambda run: above_best(run.loss, 10),
    "loss above its best, medians of 8": lambda run: loss_rise(run),
    "gradient norm, median of 8 against the 50 before": lambda run: norm_rise(run),
}

OURS: dict[str, Rule] = {
    "norm grows steadily, loss does not fall": norm_and_loss_growth,
    "update relative to the weight, 3 measurements": sustained_update,
    "the same, while the norm rises": large_updates_and_rising_norm,
    "gradient along the last update": turning,
    "attention logits": attention,
}

PUBLISHED = {
    "loss, z-score over 128 steps": 6.0,
    "gradient norm, z-score over 128 steps": 6.0,
    "gradient norm, ZClip's z-score": 2.5,
    "loss above its best": math.log(2.0),
}
"""Thresholds that the projects use, where a rule has one."""
