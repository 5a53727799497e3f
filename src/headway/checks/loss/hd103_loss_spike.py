from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import StepRecord, moment_of, record_at
from headway.core.signals import Signal
from headway.core.window import Window, detrended_sigma

UPPER, UPPER_SIGMAS = 0.95, 1.645
"""The quantile a skewed window's upper spread is taken from, and where a normal one has it."""
FIRST = 5
"""The run's start level is the median of so many first losses."""
TWO_SIDED = 1.96 * math.sqrt(2)
"""Where the differences of two normal losses have that quantile of their size."""
CALM, SMALLEST = 15.0, 1.2
"""In a log a rise of so many standard deviations and by such a factor is a spike, too."""
GROWN = 2.0
"""A spike so many times as high as in its first step was made by the updates, not by a batch."""


class LossSpike(Check):
    """The loss jumped far outside the run's own spread, and came back.

    ## What it checks
    Each loss against the losses of this run's last 64 good steps.

    ## Why it matters
    A jump of a single step is a hard or a corrupt batch. One that grows and takes many steps to
    heal means that updates damaged the weights; when such spikes come in clusters, the run is at
    the edge of divergence and pays for each of them.

    ## How it is measured
    On logarithms where all losses of the window are positive, else on the values: out of bounds is
    a loss above the median by more than 6 robust standard deviations, by more than a factor of 1.5
    and by more than a quarter of all progress since the start. Nothing is judged in the first 20
    steps. In another tool's log the window holds as many steps, not rows, and in a calm run 15
    deviations and a factor of 1.2 suffice. A spike is over when the loss is back among those of the
    window; until then nothing is learned, and after 100 steps it is the run's new level. It is told
    then, at its first step.

    ## False alarms
    One spike is information, whatever its height. It is a warning from the third one within 500
    steps that lasted 5 steps, grew after its first step and undid half of the progress. New data (a
    curriculum) are hardest in their first step, so such jumps do not count. Steps the guard held
    back are left out: their batch did no damage.

    ## What to do
    Look at the step's batch. Against clusters: a lower peak rate or a longer warm-up, a smaller
    `beta2` (0.95) so that Adam's second moment follows the gradient faster, and a guard that holds
    back updates whose gradient norm is out of bounds.

    ## References
    Chowdhery et al., "PaLM", section 5.1; Molybog et al., "A Theory on Adam Instability"; the rules
    of llm-foundry and OLMo-core, here with medians so that neither NaN nor a spike blinds them.
    """

    code = "HD103"
    name = "loss-spike"
    summary = "one-step or short jump far outside the run's own spread, then recovery"
    needs = Needs(signals=("loss",), span=100)
    explains = ()

    @dataclass(frozen=True)
    class Limits:
        sigmas: float = 6.0
        """Robust standard deviations above the median."""
        min_ratio: float = 1.5
        """A smaller rise of a positive loss is never a spike."""
        undone: float = 0.25
        """Nor is one that undoes less than this share of the progress so far."""
        window: int = 64
        grace: int = 20
        """So many losses must have been seen first."""
        patience: int = 100
        """So many out of bounds in a row are the new level."""
        lasting: int = 5
        """A spike of so many steps may have been damage to the weights; …"""
        cluster: int = 3
        """… so many of those …"""
        within: int = 500
        """… within so many steps are a warning."""

    def start(self) -> None:
        self.seen = 0
        self.windows: dict[str, Window] = {}
        self.starts: dict[str, float] = {}
        self.spikes: dict[str, dict[str, Any]] = {}
        """The spike each loss is in now."""
        self.segment = 0
        self.first_step: int | None = None
        self.damages: dict[str, list[int]] = {}
        """When the recent damaging spikes ended, in steps seen."""

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        self.seen += 1
        if record.held:
            return
        if self.context.header.foreign:
            yield from self._start_new_training(record)
        for name, loss in record.family("loss"):
            if not math.isfinite(loss):
                continue
            window = self.windows.get(name) or self._open(name)
            # A spike is over when the loss is back among the others, not when it is under a limit:
            # its tail would widen the window and hide the next one.
            limit = window.high if name in self.spikes else self._limit(name, window, loss)
            if loss > limit:
                spike = self.spikes.setdefault(
                    name,
                    {"at": moment_of(record), "first": loss, "peak": loss, "steps": 0}
                    | {"level": window.median, "limit": limit},
                )
                spike["peak"] = max(spike["peak"], loss)
                spike["steps"] += 1
                if spike["steps"] >= self.limits.patience:
                    window.clear()
                    yield self._close(name, "and has stayed up: this is its new level")
                continue
            if name in self.spikes:
                yield self._close(name, "and came back by itself")
            window.push(loss)
            if name not in self.starts and len(window) >= FIRST:
                self.starts[name] = window.median

    def finish(self) -> Iterable[Finding]:
        for name in list(self.spikes):
            yield self._close(name, "and the record ends before it came back")

    def _start_new_training(self, record: StepRecord) -> Iterable[Finding]:
        """A log may hold several trainings (folds, seeds): each is judged by itself."""
        self.first_step = record.step if self.first_step is None else self.first_step
        if record.segment != self.segment and record.step <= self.first_step:
            yield from self.finish()
            self.windows, self.starts, self.spikes, self.damages = {}, {}, {}, {}
        self.segment = record.segment

    def _open(self, name: str) -> Window:
        """A window of about as many steps: in a log whose rows lie far apart, 64 of them would hold
        the fall from the start on, and its spread would hide every spike."""
        size, header = self.limits.window, self.context.header
        if header.foreign:
            steps = header.signals.get(name, Signal()).steps
            size = min(size, max(size // steps, self.limits.grace))
        return self.windows.setdefault(name, Window(size))

    def _limit(self, name: str, window: Window, loss: float) -> float:
        """The largest loss in bounds; infinite where the answer is plain without computing it."""
        limits = self.limits
        if len(window) < limits.grace or loss <= window.high:
            return math.inf
        start, level, upper = self.starts[name], window.median, window.quantile(UPPER)
        if window.low > 0 and start > 0:
            over = math.log(upper) - math.log(level)
            spread = max(window.sigma(log=True), over / UPPER_SIGMAS)
            progress = limits.undone * (math.log(start) - math.log(level))
            reach = max(limits.sigmas * spread, math.log(limits.min_ratio), progress)
            limit = level * math.exp(min(reach, 700))
            if self.context.header.foreign:
                limit = min(limit, _limit_of_a_calm_run(window.values, progress))
            return limit
        spread = max(window.sigma(log=False), (upper - level) / UPPER_SIGMAS)
        reach = max(limits.sigmas * spread, limits.undone * (start - level))
        return level + reach if reach > 0 else math.inf

    def _close(self, name: str, ending: str) -> Finding:
        spike = self.spikes.pop(name)
        count = self._damages(name, spike)
        clustered = count >= self.limits.cluster
        level, peak, steps = spike["level"], spike["peak"], spike["steps"]
        ratio = f", {say(peak / level)} times" if level > 0 else " from"
        again = f"; {count} such spikes in {self.limits.within} steps" if clustered else ""
        return self.find(
            record_at(spike["at"]),
            f"{name} jumped to {say(peak)}{ratio} its usual {say(level)} (limit "
            f"{say(spike['limit'])}), was out of bounds for {steps} step{'s' * (steps > 1)} "
            f"{ending}{again}",
            subject=name,
            severity=None if clustered else Severity.INFO,
            remedies=CLUSTERED if clustered else CLUSTERED[-1:],
            peak=peak,
            median=level,
            limit=spike["limit"],
            steps=steps,
            damaging_spikes=count,
        )

    def _damages(self, name: str, spike: dict[str, Any]) -> int:
        """How many spikes damaged the weights of late, this one included; 0 if it did not."""
        level = spike["level"]
        grew = spike["peak"] - level > GROWN * (spike["first"] - level)
        undid_half = spike["peak"] > (self.starts[name] + level) / 2
        if spike["steps"] < self.limits.lasting or not grew or not undid_half:
            return 0
        recent = [at for at in self.damages.get(name, []) if self.seen - at < self.limits.within]
        self.damages[name] = [*recent, self.seen]
        return len(self.damages[name])


def _limit_of_a_calm_run(losses: list[float], progress: float) -> float:
    """In a log: from the latest losses on, by what they differ from one to the next."""
    logs = [math.log(loss) for loss in losses]
    moves = sorted(abs(later - earlier) for earlier, later in pairwise(logs))
    spread = max(detrended_sigma(logs), moves[int(UPPER * len(moves))] / TWO_SIDED)
    reach = max(CALM * spread, math.log(SMALLEST), progress)
    return math.exp(min(median(logs[-5:]) + reach, 700))


CLUSTERED = (
    "Lower the peak learning rate or lengthen the warm-up: the run is at the edge of divergence.",
    "With Adam, try beta2 = 0.95: a second moment that lags behind the gradient makes such spikes.",
    "Look at this step's batch: a corrupt sample, an empty mask, a rare length.",
)
