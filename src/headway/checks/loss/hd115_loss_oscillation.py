from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, repeat
from operator import add, mul
from statistics import median

from headway.checks.loss_context import has_competing_losses
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Header, Moment, StepRecord, moment_of, record_at
from headway.core.window import BestLevel, Window

FIRST = 3
"""Number of first losses that define the start level."""
SHORTEST = 12
"""Rows of another tool's log that are enough at its end."""
APART = 12
"""Of this many last rows, every second one must be above all the others."""
LOST = 1.3
"""Multiple of the best earlier level around which swings make no progress."""
STILL = 1e-3
"""Updates below this share of the weights cannot make the loss swing."""


class LossOscillation(Check):
    """The loss swings up and down with every step and makes no progress.

    ## What it checks
    The last 40 losses: whether they alternate, how far they swing, and whether the run is better
    than at its start.

    ## Why it matters
    Each step overshoots the minimum and ends on the other side. The updates cancel each other; the
    run can continue like this indefinitely, and any disturbance makes it diverge.

    ## How it is measured
    At least 85 % of the moves reverse direction, each loss resembles the one before the previous
    (autocorrelation above 0.6 at lag 2, below -0.6 at lag 1), the swing is at least a quarter of
    the level, and the median is not below 0.9 of the start, or is 1.3 times the best level before.

    ## False alarms
    Losses of random batches reverse direction two times in three and do not resemble the one before
    the previous. Two batches or two tasks in alternation do alternate; they are recognised by their
    progress, or by tiny updates. Several optimizers with their own losses are not judged.

    ## What to do
    Lower the learning rate, first by a factor of 3 to 10. Then check the momentum and the scale of
    the inputs, which determines the steepest direction.

    ## References
    AutoTrainer's and TheDeepChecker's rules for oscillating losses; Cohen et al., "Gradient
    descent on neural networks typically occurs at the edge of stability".
    """

    code = "HD115"
    name = "loss-oscillation"
    severity = Severity.ERROR
    summary = "large period-2-like swings, no net progress"
    needs = Needs(signals=("loss",))
    scope = "training"
    explains = ("HD103", "HD104", "HD207")

    @dataclass(frozen=True)
    class Limits:
        values: int = 40
        """Number of last losses that are judged."""
        swing: float = 0.25
        """Change from one value to the next, as a share of the level."""
        turns: float = 0.85
        """Share of the moves that reverse direction."""
        start: float = 0.9
        """Below this share of the first loss the run has made progress."""

    def start(self) -> None:
        self.recent = Window(self.limits.values)
        self.first: list[float] = []
        self.onset: Moment | None = None
        self.seen = 0
        self.reported = False
        self.several = False
        self.ratios = Window(20)
        self.rows: list[tuple[Moment, float]] = []
        """In the log of another tool: the recent losses with their positions."""
        self.best = BestLevel()
        """The best level of pairs of losses before the last ones."""

    def begin(self, header: Header) -> None:
        self.several = self.several or has_competing_losses(header)
        self.recent.clear()
        self.rows.clear()
        self.seen = 0

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        loss = record.values.get("loss")
        if "optimizers" in record.values:
            losses = {value for _, value in record.family("loss")}
            self.several = self.several or len(losses) > 1
        if loss is None or record.held or self.reported or self.several or not math.isfinite(loss):
            return
        column = record.columns.get("param/update_ratio")
        ratios = [] if column is None else [v for v in column.values if math.isfinite(v)]
        if ratios:
            self.ratios.push(max(ratios))
        if len(self.first) < (FIRST + 1 if self.context.rows else FIRST):
            self.first.append(loss)
        if self.recent.full:
            # A pair of losses, because the median of two tasks in alternation is that of one task.
            self.best.learn(record.step, self.recent.oldest_mean(2))
        self.recent.push(loss)
        self.seen += 1
        if self.context.rows:
            self.rows.append((moment_of(record), loss))
            if len(self.rows) > 4 * self.limits.values:
                del self.rows[: -2 * self.limits.values]
        if self.recent.full and self.seen % 10 == 0:
            yield from self._judge(record)

    def finish(self) -> Iterable[Finding]:
        short = SHORTEST <= len(self.recent) < self.limits.values
        if self.context.rows and short and not self.reported and not self.several:
            yield from self._judge(record_at(self.rows[-1][0]))

    def _judge(self, record: StepRecord) -> Iterable[Finding]:
        values = self.recent.values
        start, level = median(self.first), median(values)
        if start <= 0 or min(values) < 0:
            return
        above_start = level >= self.limits.start * start
        # A run that had progressed and now swings above its earlier level.
        pairs = median(map(mul, map(add, values, islice(values, 1, None)), repeat(0.5)))
        if not above_start and pairs < LOST * self.best.level:
            return
        if len(self.ratios) and self.ratios.median < STILL:
            return
        swing = median(abs(later - earlier) for earlier, later in pairwise(values))
        turns = _turns(values)
        if swing < self.limits.swing * level or turns < self.limits.turns:
            return
        alike = 0.6
        if (
            len(values) < self.limits.values
        ):  # there are fewer pairs than values, which matters in short records
            alike *= 1 - 4 / len(values)
            if not _apart(values[-APART:]):
                return
        if _autocorrelation(values, 1) > -alike or _autocorrelation(values, 2) < alike:
            return
        if not _steady(values):
            return
        self.reported = True
        at = moment_of(record)
        if self.context.rows:
            at = self.rows[_first_swing([item for _, item in self.rows], swing)][0]
        elif record.segment == 0:
            at = (0, record.seq, max(record.step - len(values) + 1, 0), record.rank)
        earlier = (
            f"its start ({say(start)})"
            if above_start
            else f"its best level ({say(self.best.level)} at step {self.best.step})"
        )
        yield self.find(
            record_at(at),
            f"the loss swings by {say(swing)} around {say(level)} from step to step and stays "
            f"above {earlier}: the updates overshoot",
            remedies=[
                "Lower the learning rate, first by a factor of 3 to 10.",
                "Check the scale of the inputs and the momentum.",
            ],
            swing=swing,
            level=level,
            start=start,
            turns=turns,
            values=len(values),
        )


def _first_swing(values: Sequence[float], swing: float) -> int:
    """Index where the oscillation began: from there on every move is large and reverses."""
    moves = [later - earlier for earlier, later in pairwise(values)]
    at = len(moves) - 1
    while at and abs(moves[at]) > swing / 3 and moves[at] * moves[at - 1] < 0:
        at -= 1
    # The loop stops at the first such move; the oscillation starts where that move ends.
    return at if at == 0 or abs(moves[at]) <= swing / 3 else at + 1


def _apart(values: Sequence[float]) -> bool:
    """Whether every second value is above all the others: a few values may alternate by chance."""
    one, other = values[::2], values[1::2]
    return min(one) > max(other) or min(other) > max(one)


def _turns(values: Sequence[float]) -> float:
    moves = [later - earlier for earlier, later in pairwise(values)]
    back = [one * other < 0 for one, other in pairwise(moves)]
    return sum(back) / len(back)


def _autocorrelation(values: Sequence[float], distance: int) -> float:
    """Rank autocorrelation at this lag, from -1 to 1."""
    ranks = _ranks(values)
    middle = sum(ranks) / len(ranks)
    apart = [rank - middle for rank in ranks]
    total = sum(item * item for item in apart)
    if not total:
        return 0.0
    together = sum(one * other for one, other in zip(apart, apart[distance:], strict=False))
    return together / total


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal values share their mean rank."""
    ordered = sorted(values)
    return [(bisect_left(ordered, item) + bisect_right(ordered, item)) / 2 for item in values]


def _steady(values: Sequence[float]) -> bool:
    """Whether the second half equals the first: a run that still falls makes progress."""
    half = len(values) // 4 * 2  # even, so that both halves contain as many highs as lows
    before, after = median(values[:half]), median(values[half:])
    return after > 0.9 * before
