from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median

from headway.checks.ranks._shared import say_ranks, values_by_rank
from headway.core.check import Check, Needs
from headway.core.facts import LISTED
from headway.core.findings import Finding, Where
from headway.core.numbers import say
from headway.core.records import Header, StepRecord
from headway.core.window import Window

SIGNAL = "rank/step_time_s"
MOVE_TO_SIGMA = math.sqrt(math.pi) / 2
"""Factor from the mean change between two normal values to their standard deviation."""
STALL = math.log(3.0)
"""Cap on a sample: three times the median counts as much as a thousand times."""
RELAPSE = 2
"""Slow samples that one normal sample cancels: slow half of the time is not slow."""


class StragglerRank(Check):
    """One rank is persistently slower than the others, and all of them wait for it.

    ## What it checks
    The time that each rank needs for its own part of a step, before it waits for the others.

    ## Why it matters
    A synchronous step takes as long as that of the slowest rank. One throttled GPU, one slow disk
    or one rank with more work makes a thousand others idle, and from outside all look equally slow.

    ## How it is measured
    Against the median of the ranks, in measured steps. A rank is slow in a step if it needs 1.25
    times the median and 5 ms more. It is a straggler if two conditions hold. For at least 60 steps
    its slow steps have outweighed the others, each of which counts double, by at least 8. And its
    delay exceeds 8 standard deviations of the noise of this run, which is estimated from how the
    relative times of the ranks change between measured steps. It is reported once, until it
    recovers.

    ## False alarms
    The first 30 steps of a segment (compilation, caches) and skipped steps are ignored. Ranks that
    are slow in alternation, as with sequences of different lengths, stay below the limit. Stages of
    a pipeline have different work by design; ignore this finding then.

    ## What to do
    Compare that rank with a fast one: GPU clocks and temperature, other processes on its node, its
    network link, the disk with its data, the lengths of its batches. Move work that only rank 0
    does (logging, evaluation, saving) out of the step or into a thread.

    ## References
    Jiang et al., "MegaScale" (2024), section 5; NVIDIA Resiliency Extension, straggler detection.
    """

    code = "HD604"
    name = "straggler-rank"
    summary = "one rank is persistently slower than the others"
    needs = Needs(signals=(SIGNAL,))
    explains = ()

    @dataclass(frozen=True)
    class Limits:
        ratio: float = 1.25
        """Multiple of the median of the ranks from which a rank is slow."""
        amount_s: float = 0.005
        """Smallest difference from the median, in seconds, of a slow rank."""
        samples: int = 8
        """Number by which slow steps must outweigh the others."""
        steps: int = 60
        """Steps for which slow ones must outweigh the others: an upload also takes a while."""
        sigmas: float = 8.0
        """Distance from the noise in standard deviations: there are many ranks and steps."""
        grace: int = 30
        """First steps of a segment that are ignored."""

    def start(self) -> None:
        self.first: int | None = None
        self.before: dict[int, float] = {}
        """The relative time of each rank in the previous sample."""
        self.noise = Window(64)
        self.slow: dict[int, list[float]] = {}
        """For each rank that was slow recently: since which step, weight, samples and the sum of
        its delays (the logarithm of its ratio). Normal ranks are not included."""
        self.lately: dict[int, Window] = {}
        """The latest delays of the same ranks."""
        self.reported: set[int] = set()

    def begin(self, header: Header) -> None:
        self.start()

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        times = {rank: value for rank, value in values_by_rank(record, SIGNAL).items() if value > 0}
        if len(times) < 2 or record.held:  # a skipped step includes the guard's own analysis
            return
        if self.first is None:
            self.first = record.step
        if record.step - self.first < self.limits.grace:
            return
        self._learn_noise(times)
        self._learn_lateness(times, record.step)
        news = [rank for rank in sorted(self.slow) if self._straggles(rank, record.step)]
        self.reported.update(news)
        if news:
            yield self._finding(record, news, times)

    def _learn_noise(self, times: dict[int, float]) -> None:
        logs = {rank: math.log(seconds) for rank, seconds in times.items()}
        middle = median(logs.values())
        places = {rank: value - middle for rank, value in logs.items()}
        # Use changes, so that a rank that is always slow does not add to the noise.
        moves = [
            min(abs(place - self.before[rank]), STALL)
            for rank, place in places.items()
            if rank in self.before
        ]
        self.before = places
        if len(moves) > 1:
            self.noise.push(MOVE_TO_SIGMA * fmean(moves) * len(times) / (len(times) - 1))

    def _learn_lateness(self, times: dict[int, float], step: int) -> None:
        limits = self.limits
        # The lower median: of two ranks, the faster one.
        pace = sorted(times.values())[(len(times) - 1) // 2]
        threshold = max(pace * limits.ratio, pace + limits.amount_s)
        for rank, seconds in times.items():
            is_slow = seconds >= threshold
            if not is_slow and rank not in self.slow:
                continue
            lateness = math.log(seconds) - math.log(pace)
            since, weight, samples, total = self.slow.get(rank, (float(step), 0.0, 0.0, 0.0))
            # Bounded, so that a recovery is noticed soon.
            weight = min(weight + 1, 2.0 * limits.samples) if is_slow else weight - RELAPSE
            if weight <= 0:
                self.slow.pop(rank, None)
                self.lately.pop(rank, None)
                self.reported.discard(rank)
            else:
                # Capped, because a single stall would outweigh many samples.
                capped = max(-STALL, min(lateness, STALL))
                self.slow[rank] = [since, weight, samples + 1, total + capped]
                self.lately.setdefault(rank, Window(16)).push(lateness)

    def _straggles(self, rank: int, step: int) -> bool:
        """Whether the rank is a straggler that was not reported yet."""
        limits = self.limits
        since, weight, samples, total = self.slow[rank]
        if rank in self.reported or weight < limits.samples or step - since < limits.steps:
            return False
        noise = fmean(self.noise.values) if len(self.noise) else math.inf
        return bool(total >= limits.sigmas * noise * math.sqrt(samples))

    def _finding(self, record: StepRecord, news: list[int], times: dict[int, float]) -> Finding:
        worst = max(news, key=lambda rank: self.lately[rank].median)
        ratio = math.exp(min(self.lately[worst].median, 700.0))
        needs = "needs" if len(news) == 1 else "need up to"
        return self.find(
            record,
            f"{say_ranks(news)} {needs} {say(ratio)} times as long for a step as the "
            f"median of {len(times)} ranks (limit {self.limits.ratio:g}), "
            f"slow since step {self.slow[worst][0]:.0f}; the other ranks wait for it",
            subject=say_ranks(news),
            where=Where(rank=worst),
            remedies=[
                f"Compare rank {worst} with a fast one: GPU clocks and temperature, other "
                f"processes on its node, the disk and the network of its data.",
                "If it is rank 0, move what only rank 0 does (logging, evaluation, saving) out "
                "of the step or into a thread.",
            ],
            stragglers=news[:LISTED],
            straggler_count=len(news),
            ranks=len(times),
            ratio=ratio,
            median_s=median(times.values()),
            seconds=times.get(worst),
            since_step=int(self.slow[worst][0]),
        )
