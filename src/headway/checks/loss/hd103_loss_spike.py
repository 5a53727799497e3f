from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from headway.checks.loss_context import has_competing_losses
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import StepRecord, moment_of, record_at
from headway.core.window import Window, detrended_sigma

UPPER, UPPER_SIGMAS = 0.95, 1.645
"""Quantile that gives the upper spread of a skewed window, and its z-score in a normal one."""
FIRST = 5
"""Number of first losses whose median is the run's start level."""
TWO_SIDED = 1.96 * math.sqrt(2)
"""The same quantile of the absolute difference of two normal losses, in standard deviations."""
RELEARNED, BACK, JUST = 0.7, 0.9, 3
"""In a log: shares of the first losses below which a run has learned, and above which a jump that
lasts has undone it; rows after a resume in which such a jump begins."""
CALM, SMALLEST = 15.0, 1.2
"""In a log: a rise by this many standard deviations and by this factor is a spike, too."""
BLOCK_LEAST, BLOCK_START = 20.0, 10.0
"""A block of outliers: each step at this multiple of the usual loss, and of the first losses."""
GROWN = 2.0
"""A spike that grows to this multiple of its first step comes from the updates, not a batch."""


class LossSpike(Check):
    """The loss jumps far outside the run's own spread and recovers.

    ## What it checks
    Each loss against the losses of the last 64 good steps of this run.

    ## Why it matters
    A jump of a single step is a hard or a corrupt batch. A jump that grows and lasts many steps
    means that updates damaged the weights. If such spikes come in clusters, the run is close to
    divergence and loses progress with each of them.

    ## How it is measured
    On logarithms if all losses in the window are positive, otherwise on the values. A loss is out
    of bounds if it exceeds the median by more than 6 robust standard deviations, by more than a
    factor of 1.5 and by more than a quarter of all progress since the start. The first 20 steps are
    not judged. In another tool's log the window covers the same number of steps, not rows, and in a
    calm run 15 deviations and a factor of 1.2 are enough. A spike is over when the loss is back
    within the range of the window; until then the window is not updated. After 100 steps the loss
    counts as the run's new level. The spike is then reported, at its first step.

    ## False alarms
    A single spike of any height is information, unless it is a block of at least 3 steps
    that are all 20 times the usual loss and 10 times the first losses, with a peak of 50 times:
    that is a warning, because no new task looks like it. In another tool's log a jump that lasts
    100 rows, leads back to the level of the first losses and begins where the run was resumed is a
    warning, too. The third spike within 500 steps is a warning if each lasted 5 steps, grew after
    its first step and undid half of the progress. New data (a curriculum) are hardest in their
    first step, so such jumps do not count. Skipped steps are ignored, because their batch did no
    damage.

    ## What to do
    Inspect the batch of that step. Against clusters: use a lower peak learning rate or a longer
    warm-up, a smaller `beta2` (0.95) so that Adam's second moment follows the gradient faster, and
    a guard that skips updates whose gradient norm is out of bounds.

    ## References
    Chowdhery et al., "PaLM", section 5.1; Molybog et al., "A Theory on Adam Instability"; the rules
    of llm-foundry and OLMo-core, here with medians so that neither NaN nor a spike disables them.
    """

    code = "HD103"
    name = "loss-spike"
    summary = "one-step or short jump far outside the run's own spread, then recovery"
    needs = Needs(signals=("loss",), span=100)
    scope = "training"
    explains = ()

    @dataclass(frozen=True)
    class Limits:
        sigmas: float = 6.0
        """Robust standard deviations above the median."""
        min_ratio: float = 1.5
        """Smallest factor by which a positive loss must rise."""
        undone: float = 0.25
        """Smallest share of the progress so far that a spike must undo."""
        window: int = 64
        grace: int = 20
        """Losses that are needed before any is judged."""
        patience: int = 100
        """Consecutive losses out of bounds after which they are the new level."""
        lasting: int = 5
        """Steps after which a spike may have damaged the weights."""
        cluster: int = 3
        """Number of spikes with possible damage that is a warning."""
        within: int = 500
        """Steps within which these spikes must occur."""
        block_steps: int = 3
        """Length of a block of outliers that is a warning on its own …"""
        block_ratio: float = 50.0
        """… and its peak, as a multiple of the usual loss."""

    def start(self) -> None:
        self.seen = 0
        self.windows: dict[str, Window] = {}
        self.starts: dict[str, float] = {}
        self.spikes: dict[str, dict[str, Any]] = {}
        """The spike that is open now, for each loss."""
        self.segment = 0
        self.since_resume = 0
        """In a log: rows since the run was resumed; 0 if it was not."""
        self.first_step: int | None = None
        self.damages: dict[str, list[int]] = {}
        """Where the recent damaging spikes ended, in observed steps."""

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        self.seen += 1
        if record.held:
            return
        for name, loss in record.family("loss"):
            if not math.isfinite(loss):
                continue
            window = self.windows.get(name) or self._open(name)
            # A spike is over when the loss is back in the window's range, not when it is below the
            # limit: its tail would widen the window and hide the next spike.
            limit = window.high if name in self.spikes else self._limit(name, window, loss)
            if loss > limit:
                spike = self.spikes.setdefault(
                    name,
                    {"at": moment_of(record), "first": loss, "peak": loss, "least": loss}
                    | {"steps": 0, "resumed": 0 < self.since_resume <= JUST}
                    | {"level": window.median, "limit": limit},
                )
                spike["peak"] = max(spike["peak"], loss)
                spike["least"] = min(spike["least"], loss)
                spike["steps"] += 1
                if spike["steps"] >= self.limits.patience:
                    window.clear()
                    yield self._close(name, "and stays there: this is the new level")
                continue
            if name in self.spikes:
                yield self._close(name, "and recovered")
            window.push(loss)
            if name not in self.starts and len(window) >= FIRST:
                self.starts[name] = window.median

    def observe_row(self, record: StepRecord) -> Iterable[Finding]:
        yield from self._start_new_training(record)
        yield from self.observe(record)

    def finish(self) -> Iterable[Finding]:
        for name in list(self.spikes):
            yield self._close(name, "and has not recovered by the end of the record")

    def _start_new_training(self, record: StepRecord) -> Iterable[Finding]:
        """A log may contain several trainings (folds, seeds): each is judged separately."""
        self.first_step = record.step if self.first_step is None else self.first_step
        if record.segment != self.segment and record.step <= self.first_step:
            yield from self.finish()
            self.windows, self.starts, self.spikes, self.damages = {}, {}, {}, {}
            self.since_resume = 0
        elif record.segment != self.segment:
            self.since_resume = 1
        elif self.since_resume:
            self.since_resume += 1
        self.segment = record.segment

    def _open(self, name: str) -> Window:
        """A window of about the same number of steps. In a log with sparse rows, 64 of them would
        include the initial fall of the loss, whose spread would hide every spike."""
        size, steps = self.limits.window, self.context.header.steps_per_value(name)
        size = min(size, max(size // steps, self.limits.grace))
        return self.windows.setdefault(name, Window(size))

    def _limit(self, name: str, window: Window, loss: float) -> float:
        """The largest loss in bounds; infinite if no computation is needed to see that it is
        fine."""
        limits = self.limits
        if loss <= window.high or name not in self.starts:
            return math.inf
        if len(window) < limits.grace:
            early = max(limits.block_ratio * window.median, BLOCK_START * self.starts[name])
            return early if window.low > 0 and len(window) >= 2 * FIRST else math.inf
        start, level, upper = self.starts[name], window.median, window.quantile(UPPER)
        if window.low > 0 and start > 0:
            over = math.log(upper) - math.log(level)
            spread = max(window.sigma(log=True), over / UPPER_SIGMAS)
            progress = limits.undone * (math.log(start) - math.log(level))
            reach = max(limits.sigmas * spread, math.log(limits.min_ratio), progress)
            limit = level * math.exp(min(reach, 700))
            if self.context.rows:
                limit = min(limit, _calm_run_limit(window.values, progress))
            return limit
        spread = max(window.sigma(log=False), (upper - level) / UPPER_SIGMAS)
        reach = max(limits.sigmas * spread, limits.undone * (start - level))
        return level + reach if reach > 0 else math.inf

    def _close(self, name: str, ending: str) -> Finding:
        spike = self.spikes.pop(name)
        count = self._damages(name, spike)
        clustered = count >= self.limits.cluster
        block = self._is_block(name, spike)
        lost = self._has_lost_everything(name, spike)
        level, peak, steps = spike["level"], spike["peak"], spike["steps"]
        ratio = f", {say(peak / level)} times" if level > 0 else " from"
        again = f"; {count} such spikes in {self.limits.within} steps" if clustered else ""
        if lost:
            again = f"; the first losses were {say(self.starts[name])}, so all progress is lost"
        return self.find(
            record_at(spike["at"]),
            f"{name} jumped to {say(peak)}{ratio} its usual {say(level)} (limit "
            f"{say(spike['limit'])}), was above the limit for {steps} step{'s' * (steps > 1)} "
            f"{ending}{again}",
            subject=name,
            severity=None if clustered or block or lost else Severity.INFO,
            remedies=[LOST] if lost else CLUSTERED if clustered else CLUSTERED[-1:],
            peak=peak,
            median=level,
            limit=spike["limit"],
            steps=steps,
            damaging_spikes=count,
        )

    def _damages(self, name: str, spike: dict[str, Any]) -> int:
        """Number of recent spikes that damaged the weights, with this one; 0 if this one did
        not."""
        level = spike["level"]
        grew = spike["peak"] - level > GROWN * (spike["first"] - level)
        undid_half = spike["peak"] > (self.starts[name] + level) / 2
        if spike["steps"] < self.limits.lasting or not grew or not undid_half:
            return 0
        recent = [at for at in self.damages.get(name, []) if self.seen - at < self.limits.within]
        self.damages[name] = [*recent, self.seen]
        return len(self.damages[name])

    def _has_lost_everything(self, name: str, spike: dict[str, Any]) -> bool:
        """In a log: whether the run resumed at the level of the first losses, as if without its
        weights."""
        level, start = spike["level"], self.starts.get(name, math.inf)
        if not self.context.rows or has_competing_losses(self.context.header):
            return False
        lasts = spike["resumed"] and spike["steps"] >= self.limits.patience
        return bool(lasts and 0 < level <= RELEARNED * start and spike["first"] >= BACK * start)

    def _is_block(self, name: str, spike: dict[str, Any]) -> bool:
        """Whether several batches in a row are of another kind than all others."""
        limits, level, start = self.limits, spike["level"], self.starts.get(name, math.inf)
        if level <= 0 or spike["steps"] < limits.block_steps:
            return False
        far = spike["least"] >= BLOCK_LEAST * level and spike["least"] >= BLOCK_START * start
        return bool(far and spike["peak"] >= limits.block_ratio * level)


def _calm_run_limit(losses: list[float], progress: float) -> float:
    """In a log: the limit above the latest losses, from how much consecutive losses differ."""
    logs = [math.log(loss) for loss in losses]
    moves = sorted(abs(later - earlier) for earlier, later in pairwise(logs))
    spread = max(detrended_sigma(logs), moves[int(UPPER * len(moves))] / TWO_SIDED)
    reach = max(CALM * spread, math.log(SMALLEST), progress)
    return math.exp(min(median(logs[-5:]) + reach, 700))


LOST = (
    "Check that the checkpoint was found and loaded, weights and optimizer state: a run that "
    "resumes without them starts at the loss of a new model."
)
CLUSTERED = (
    "Lower the peak learning rate or lengthen the warm-up: the run is close to divergence.",
    "With Adam, try beta2 = 0.95: a second moment that lags behind the gradient causes such "
    "spikes.",
    "Inspect the batch of this step for a corrupt sample, an empty mask or an unusual length.",
)
