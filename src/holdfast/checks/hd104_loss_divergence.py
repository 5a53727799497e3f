from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low

from holdfast.core.check import Check, Needs
from holdfast.core.findings import Finding, Severity
from holdfast.core.moment import Moment, moment_of, record_at
from holdfast.core.numbers import say
from holdfast.core.records import Header, StepRecord
from holdfast.core.signals import Signal
from holdfast.core.window import MAD_TO_SIGMA, Thinned, Window

BACK = 3
"""So many losses in a row within the band end a rise."""
PROOF = 5
"""So many losses above the band are enough when no further number can come."""
NARROWEST = 1.25
"""The band around a positive best level is at least this factor wide; less is no progress."""
GROWN = 3.0
"""A rise whose worst loss is so many times its first was made by the updates, not by new data."""
BLOWN_UP = 100.0
"""So many times the start level is a divergence even if the loss is falling by now."""
COARSE = 10
"""A value that covers so many steps (an epoch's mean) counts for as many values of one step."""


class LossDivergence(Check):
    """The loss left its best level for good.

    ## What it checks
    The loss since it left the band around the best level of the run so far.

    ## Why it matters
    Every step after the onset is wasted, and every checkpoint saved after it is worse than the
    one before. Runs seldom come back from it by themselves.

    ## How it is measured
    The best level is the lowest median of 20 losses. A rise begins where the loss leaves the band
    of 6 robust standard deviations around it, and ends when three losses in a row are back. It is a
    divergence when, for half as many steps as came before it (30 to 200), the loss is twice its
    best level, above it by four times the noise, has lost half of the progress since the start (a
    signed loss: twice all progress), and is not falling. Without any progress before, it must have
    risen fivefold and by eight times the noise. A hundred times the start level, or a rise that ends in NaN, is told at
    once. The finding stands at the step where the loss left its best level.

    ## False alarms
    After a curriculum switch or a warm restart the loss falls again; once a quarter of the rise is
    won back, its level is the new reference. Several optimizers with different losses (GAN, actor
    and critic) work against each other, where a rising loss means nothing: those are not judged.

    ## What to do
    Go on from a checkpoint before the onset, with a lower rate or past the batches that began
    it. Look at the gradient norm and the learning rate at the onset, not at the end.

    ## References
    Chowdhery et al., "PaLM", section 5.1 (go back about 100 steps, skip 200-500 batches); Bekman,
    "Machine Learning Engineering", on instabilities; TheDeepChecker's rule of twice the best loss.
    """

    code = "HD104"
    name = "loss-divergence"
    severity = Severity.ERROR
    summary = "sustained rise from the best level, no recovery"
    needs = Needs(signals=("loss",))

    @dataclass(frozen=True)
    class Limits:
        ratio: float = 2.0
        """Times the best level, where the loss is positive."""
        ratio_without_progress: float = 5.0
        """The same, in a run that never was better than at its start."""
        sigmas: float = 6.0
        """Half width of the band around the best level, in robust standard deviations."""
        lost: float = 0.5
        """Share of the progress since the start that must be lost."""
        shortest: int = 30
        """Losses above the band before a rise is judged, in a young run …"""
        longest: int = 200
        """… and in an old one."""

    def start(self) -> None:
        self.coarse = False
        self.seen = 0
        self.signed = False
        """Whether the loss was ever below 0."""
        self.recent = Window(20)
        self.first_level = self.best = self.band = math.inf
        """The level of the first losses, the best one, and the largest loss that belongs to it."""
        self.spread = 0.0
        """Of the losses at the best level (of their logarithms, where they are positive)."""
        self.progressed = False
        """Whether the best level is better than the first by more than noise."""
        self.best_step = 0
        self.onset: Moment | None = None
        """Where the loss left the band; None while it is inside."""
        self.seen_before = self.above = self.inside = self.touches = 0
        """Losses before the onset and since; of those in the band in a row now, and in all."""
        self.rise = Thinned(64)
        """The losses since the onset; below: the first of them, the worst, the highest level."""
        self.first_jump = self.worst = self.peak = -math.inf
        self.told = False
        self.rivals: dict[str, float] = {}
        """The latest loss of each optimizer, where there are several."""

    def begin(self, header: Header) -> None:
        self.coarse = header.signals.get("loss", Signal()).span >= COARSE
        if self.seen == 0:
            self.recent = Window(self._values(20))

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        loss = record.values.get("loss")
        if loss is None or record.held or self._has_rivals(record):
            return
        if not math.isfinite(loss):
            if self._diverged(PROOF, PROOF):
                yield self._finding("and then was no number any more")
            return
        self.seen += 1
        self.signed = self.signed or loss < 0
        if self.onset is None and loss <= self.band:
            self._learn(record, loss)
            return
        self._climb(record, loss)
        if self.inside >= BACK:
            self._come_back()
        elif self.above % 5 == 0:
            least, most = self._values(self.limits.shortest), self._values(self.limits.longest)
            if self._diverged(least, min(max(self.seen_before // 2, least), most)):
                yield self._finding("and has not come back")

    def finish(self) -> Iterable[Finding]:
        least = self._values(self.limits.shortest)
        if self._diverged(least, least):
            yield self._finding("and was there when the record ended")

    def _values(self, steps: int) -> int:
        """How many values speak for so many steps."""
        return max(steps // COARSE, 5) if self.coarse else steps

    def _has_rivals(self, record: StepRecord) -> bool:
        """Whether several optimizers minimise different losses."""
        if "optimizers" in record.values:
            self.rivals.update(record.family("loss"))
        return len(set(self.rivals.values())) > 1

    def _learn(self, record: StepRecord, loss: float) -> None:
        self.recent.push(loss)
        if self.seen == (1 if self.coarse else 5):
            self.first_level = self.recent.median
        # Every few losses only: the spread costs a sort, and early on each median is a new best.
        due = self.seen >= self._values(10) and (self.coarse or self.seen % 5 == 0)
        if due and self.recent.median < self.best:
            self.best_step = record.step
            self._refer_to(self.recent.values)

    def _refer_to(self, losses: list[float]) -> None:
        """Take the median of these losses for the best level."""
        self.best = median_low(losses)
        progress = self.first_level - self.best
        if min(losses) > 0:
            self.spread = scatter([math.log(loss) for loss in losses])
            reach = max(self.limits.sigmas * self.spread, math.log(NARROWEST))
            self.band = self.best * math.exp(min(reach, 700))
            real = max(2 * self.spread, math.log(NARROWEST))
            self.progressed = self.first_level > self.best * math.exp(min(real, 700))
        else:
            self.spread = scatter(losses)
            self.band = self.best + max(self.limits.sigmas * self.spread, progress / 4)
            self.progressed = progress > 2 * self.spread
        if self.progressed:
            # However noisy: a loss that has lost half of it is not at the best level.
            self.band = min(self.band, self.best + progress * self.limits.lost)

    def _climb(self, record: StepRecord, loss: float) -> None:
        if self.onset is None:
            self.onset = moment_of(record)
            self.seen_before = self.seen
            self.above = self.touches = 0
            self.first_jump = self.worst = loss
            self.peak = -math.inf
            self.rise.clear()
        self.above += 1
        self.worst = max(self.worst, loss)
        self.rise.push(self.seen, loss)
        self.inside = self.inside + 1 if loss <= self.band else 0
        self.touches += loss <= self.band

    def _come_back(self) -> None:
        self.onset = None
        self.inside = 0
        self.told = False

    def _diverged(self, least: int, patience: int) -> bool:
        if self.onset is None or self.told or self.above < least:
            return False
        losses = [loss for _, loss in self.rise.points]
        third = len(losses) // 3
        early, middle, late = losses[:third], losses[third:-third], losses[-third:]
        level = median(late)
        # New data are hardest in their first step; damaged weights make it worse from there.
        self_made = self.worst - self.best > GROWN * (self.first_jump - self.best)
        if self_made and level > BLOWN_UP * self.first_level > 0:
            return True
        if self.above < patience or self.touches > self.above / 20:
            return False
        self.peak = max(self.peak, median(early), level)
        if not self_made and level < self.peak - (self.peak - self.best) / 4:
            self._new_reference(late)
            return False
        before = median(middle if self_made else early)
        falling = level < before - (before - self.best) / 20
        progress = self.first_level - self.best
        lost_enough = level >= self.first_level - progress * self.limits.lost
        return lost_enough and not falling and self._far_above(level, late)

    def _far_above(self, level: float, late: list[float]) -> bool:
        """Whether the rise is large against the best level and against the noise."""
        limits = self.limits
        if self.signed or self.best <= 0 or min(late) <= 0:
            # Signed losses (policy gradients, critics) wander: they must be worse than ever.
            progress = self.first_level - self.best
            return level - self.best > max(8 * scatter(late), 8 * self.spread, 2 * progress)
        noise = scatter([math.log(loss) for loss in late])
        rise = math.log(level / self.best)
        if self.progressed:
            return rise > max(math.log(limits.ratio), 3 * self.spread, 5 * noise)
        least = math.log(limits.ratio_without_progress)
        return rise > max(least, 8 * self.spread, 8 * noise)

    def _new_reference(self, late: list[float]) -> None:
        """The run learns again, from a new start: a curriculum, a restart."""
        self.recent.clear()
        for loss in late:
            self.recent.push(loss)
        self.first_level = self.peak
        self._refer_to(late)
        self._come_back()

    def _finding(self, ending: str) -> Finding:
        assert self.onset is not None
        self.told = True
        losses = [loss for _, loss in self.rise.points]
        level = median(losses[-(len(losses) // 3) :])
        return self.find(
            record_at(self.onset),
            f"loss left its best level of {say(self.best)} (step {self.best_step}) here, rose to "
            f"{say(level)} over {self.above} values {ending}; the run began at "
            f"{say(self.first_level)}",
            remedies=[
                "Go on from a checkpoint before this step, with a lower learning rate or past the "
                "batches that began it; later checkpoints are worse.",
                "Look at the gradient norm and the learning rate at this step: a spike points to a "
                "batch, the peak of the warm-up to the rate.",
            ],
            best=self.best,
            best_step=self.best_step,
            level=level,
            start=self.first_level,
            onset=self.onset[2],
            steps=self.above,
        )


def scatter(values: list[float]) -> float:
    """Robust standard deviation about the trend, from the differences of neighbours."""
    moves = [later - earlier for earlier, later in pairwise(values)]
    if not moves:
        return 0.0
    usual = median(moves)
    return MAD_TO_SIGMA / math.sqrt(2) * median(abs(move - usual) for move in moves)
