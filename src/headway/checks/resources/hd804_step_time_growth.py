from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from headway.checks.growth import Growth, GrowthRule
from headway.checks.resources._shared import SegmentGrowth
from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.records import Header, StepRecord, record_at
from headway.core.window import Window

SIGNAL = "step_time_s"
RATES = {"tokens_per_s": "tokens/s", "samples_per_s": "samples/s", "steps_per_s": "steps/s"}
"""In a log without the time of a step: the throughput, and its unit."""
TOGETHER = 8
"""Steps per median, so that a checkpoint, a validation or a log line has no effect."""


class StepTimeGrowth(Check):
    """Steps get slower and slower.

    ## What it checks
    The wall time of a step, over the whole segment of the run. In a log without it, the
    throughput: tokens, samples or steps per second.

    ## Why it matters
    A step does the same work every time. If it takes longer and longer, the work itself grows: a
    graph that reaches back over all earlier steps, a list that is traversed in every step. The run
    never ends, and memory usually grows, too.

    ## How it is measured
    Medians of 8 steps, thinned to at most 256 points and divided into eight blocks. It is growth if
    the median rises from every block to the next, no block adds less than 40 % of the mean rise,
    the later blocks add at least 85 % of what the earlier ones did, and the steps have become at
    least 1.5 times as long and 2 ms longer. Nothing is reported while the times within such groups
    of 8 steps differ much: then the work varies from step to step. A throughput is growth if the
    time per token grows like that, or if the throughput itself falls at a constant rate. Tokens or
    samples per second that fall to 55 % or less between two steady levels, and stay there for the
    last quarter of the log or longer, are reported, too; if they fall bit by bit, 25 %.

    ## False alarms
    Noise, single slow steps, a slower machine from some step on, and a longer sequence length from
    some step on are not steady growth. A sequence length or image size that is raised a little in
    every step for hundreds of steps looks the same; ignore this finding then. So do longer samples
    from some step on, in a log of samples per second.

    ## What to do
    Look for a recurrent state or a loss carried over without `.detach()`, for `retain_graph=True`,
    for hooks that are registered again in each step, and for lists that are appended to and
    traversed. If `loader_wait_s` grows, check the dataset and its workers.

    ## References
    pytorch/pytorch#2198 (a hidden state that keeps its graph).
    """

    code = "HD804"
    name = "step-time-growth"
    summary = "steps get slower and slower"
    needs = Needs(any_of=(SIGNAL, *RATES))
    scope = "training"
    explains = ()

    @dataclass(frozen=True)
    class Limits(GrowthRule):
        ratio: float = 1.5
        amount: float = 0.002
        grace: int = 20
        horizon: int = 180
        scatter: float = 0.2
        """Robust deviation (of logarithms) above which eight steps do not do the same work."""

    def start(self) -> None:
        self.growth = SegmentGrowth()
        self.fall = SegmentGrowth()
        """Throughput that falls at a constant rate, as what is missing from its first value."""
        self.rate = ""
        """The throughput that is judged instead of the time of a step."""
        self.first = 0.0
        self.lately = Window(TOGETHER)
        self.scatters = Window(32)

    def begin(self, header: Header) -> None:
        # A new process may be on another machine, with another speed.
        known = next((name for name in RATES if name in header.signals), "")
        self.rate = known if header.cadence == "rows" and SIGNAL not in header.signals else ""
        self.first = 0.0
        self.growth.begin(header, self.rate or SIGNAL)
        self.fall.begin(header, self.rate or SIGNAL)
        # A row of a log may already be a mean over many steps.
        self.lately = Window(max(TOGETHER // header.steps_per_value(self.rate or SIGNAL), 1))

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        seconds = record.values.get(self.rate or SIGNAL)
        # A skipped step includes the guard's own analysis.
        if seconds is None or record.held or not seconds > 0:
            return
        lately = self.lately
        lately.push(seconds)
        if not lately.full:
            return
        pace = lately.median
        self.scatters.push(lately.sigma(log=True))
        lately.clear()
        if self.scatters.median > self.limits.scatter:
            return  # the work varies from step to step: a growing episode, not a growing graph
        if self.rate:
            self.first = self.first or pace
            self.fall.admit(record, 2 - pace / self.first, self.limits)
            pace = self.first / pace
        growth = self.growth.admit(record, pace, self.limits)
        if growth is not None:
            yield self._finding(record, growth)

    def finish(self) -> Iterable[Finding]:
        for record, growth in self.growth.at_the_end(self.limits):
            ends = (self.first / growth.before, self.first / growth.after)
            yield self._slowed(record, *ends) if self.rate else self._finding(record, growth)
            return
        for record, growth in self.fall.at_the_end(self.limits):
            yield self._slowed(
                record, *(self.first * (2 - v) for v in (growth.before, growth.after))
            )

        latest = self.growth.latest
        if latest is None or self.rate not in DROPS or not self.context.rows:
            return
        if (drop := _drop(self.growth)) is not None:
            (step, slow), fast = drop
            at = replace(record_at(latest), step=int(step))
            yield self._slowed(at, self.first / fast, self.first / slow, dropped=True)

    def _slowed(
        self, record: StepRecord, before: float, after: float, *, dropped: bool = False
    ) -> Finding:
        """The finding about a throughput, dated by where it began to fall."""
        times = before / after if after > 0 else math.inf
        unit = RATES[self.rate]
        return self.find(
            record,
            f"throughput fell from {say(before)} to {say(after)} {unit}, a step takes {say(times)} "
            f"times as long (limit {self.limits.ratio:g}), and "
            + ("it stays there" if dropped else "it is still falling"),
            remedies=[DROPPED] if dropped else REMEDIES,
            before=before,
            after=after,
            times=times,
            signal=self.rate,
        )

    def _finding(self, record: StepRecord, growth: Growth) -> Finding:
        times = growth.after / growth.before
        return self.find(
            record,
            f"a step took {say(growth.before)} s around step {growth.start:.0f} and takes "
            f"{say(growth.after)} s now, {say(times)} times as long (limit "
            f"{self.limits.ratio:g}), and the time per step is still growing",
            remedies=REMEDIES,
            before_s=growth.before,
            after_s=growth.after,
            times=times,
            per_step_s=growth.per_step,
            since_step=int(growth.start),
        )


def _drop(growth: SegmentGrowth) -> tuple[tuple[float, float], float] | None:
    """The first point of a new, slower level that lasts to the end of a log, and the level before.

    A point is a time per token or sample. Both levels must be steady, or the work itself varies.
    """
    points = growth.watch.series.points
    paces = [pace for _, pace in points]
    if len(paces) < 4 * LEVEL:
        return None
    quarter = max(LEVEL, len(paces) // 4)
    fast, slow = median(paces[:LEVEL]), median(paces[-quarter:])
    # The fast level lasts until `left`, the slow one begins at `settled`.
    left = next((at for at, pace in enumerate(paces) if pace > fast * UNEVEN), 0)
    settled = len(paces)
    while settled and paces[settled - 1] >= slow / UNEVEN:
        settled -= 1
    fast = median(paces[:left] or paces)
    steady = min(paces) >= fast / UNEVEN and len(paces) - settled >= quarter
    enough = SLOWER if settled - left <= LEVEL else GRADUAL
    if left < LEVEL or not steady or slow < enough * fast or max(paces[:left]) > fast * UNEVEN:
        return None
    middle = math.sqrt(fast * slow)
    onset = next(at for at in range(left, len(paces)) if paces[at] > middle)
    return (points[onset][0], slow), fast


DROPS = ("tokens_per_s", "samples_per_s")
LEVEL, SLOWER, GRADUAL, UNEVEN = 6, 1.8, 4.0, 1.2
"""Points at either side of a drop; the factor on the time per token or sample, of a drop at once
and of one in many small steps; the largest factor between two points of one level."""
DROPPED = (
    "Compare the machine at this step with before: another job on the same GPU or disk, a clock "
    "limited by heat or power, one slow rank, a data set read from a slower place."
)
REMEDIES = [
    "Look for a graph that reaches back over earlier steps: a recurrent state or a loss carried "
    "over without `.detach()`, `retain_graph=True`.",
    "Otherwise profile a late step: look for a list that is appended to and traversed, hooks that "
    "are registered again in each step, or, if `loader_wait_s` grows, the dataset.",
]
