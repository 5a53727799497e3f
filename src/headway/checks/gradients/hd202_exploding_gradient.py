"""HD202: exploding gradients, judged over the whole run in a bounded number of points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Moment, StepRecord, moment_of, record_at
from headway.core.state import register_state_class

# A whole run in a few points that each cover the same number of steps. A window of the latest
# steps forgets the beginning of the run, and a history that thins out its past has a different
# reference each time. Here the oldest part always has the same resolution as the latest.

MAX_POINTS = 64
"""Maximum number of points. When it is reached, pairs are merged, so half of it remains."""
PARTS = 8

MedianPoint = tuple[Moment, float, float]
"""The end of a stretch of the run, and the medians of norm and loss over it."""


@register_state_class
@dataclass
class RunMedians:
    """The points so far, and the medians that will form the next one."""

    points: list[MedianPoint] = field(default_factory=list)
    waiting: list[MedianPoint] = field(default_factory=list)
    each: int = 1
    """Number of medians that form one point."""

    def add(self, era: MedianPoint) -> bool:
        """Add a median; return whether it completed a point."""
        self.waiting.append(era)
        if len(self.waiting) < self.each:
            return False
        self.points.append(_join_points(self.waiting))
        self.waiting.clear()
        if len(self.points) >= MAX_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [_join_points(list(pair)) for pair in pairs]
            self.each *= 2
        return True

    def parts(self) -> list[list[MedianPoint]]:
        """The run in eighths, in order."""
        count = len(self.points)
        bounds = [count * part // PARTS for part in range(PARTS + 1)]
        return [self.points[a:b] for a, b in pairwise(bounds)]

    def to_state(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_state(cls, state: Any) -> RunMedians:
        return cls(**state)


def _join_points(eras: list[MedianPoint]) -> MedianPoint:
    """Merge several into one; a loss that is unknown (NaN) in one of them is unknown in the
    result."""
    ends, firsts, seconds = zip(*eras, strict=True)
    unknown = any(math.isnan(value) for value in seconds)
    return ends[-1], median(firsts), math.nan if unknown else median(seconds)


BLOCK = 16
"""Number of steps per median, so that one spike does not count as growth."""
POINTS = 64
"""Maximum number of medians. When it is reached, every second one is dropped."""
MEDIANS, NORMS = 4, 5
"""Smallest number of medians, and of consecutive single norms, that form a growth."""
LEAP = 1.5
"""Factor between consecutive single norms, so that one or two bad batches do not count."""
WIGGLE = 2.0
"""A median may be this multiple of a later one without interrupting the growth."""

Point = tuple[Moment, float, float]
"""Position, gradient norm, loss (NaN if unknown)."""

RECENT = 64
"""Number of rows of another tool's log that are inspected before a non-finite value."""
STEADY, STEADILY = 6, 1.25
"""There: medians that grow up to the end of the log, and the mean factor between two of them."""
BARELY = 1.3
LEFT, ENDED, RAN_OUT = 3.0, 50.0, 200.0
"""There: multiples of the usual norm that start a growth, that are an explosion if it ends in NaN,
and that are one if it does not."""


class ExplodingGradient(Check):
    """The gradient norm grows without bound.

    ## What it checks
    The global gradient norm before clipping, from step to step in the first steps and in medians of
    16 steps over the whole run.

    ## Why it matters
    A norm that grows by orders of magnitude reinforces itself: larger updates lead to regions with
    larger gradients. It ends in Inf, or in weights that are useless long before.

    ## How it is measured
    Backwards from the latest median, the growth lasts as long as the norm gets smaller. It is an
    explosion if it spans a factor of 1000 over at least four medians, is 100 times above the run's
    first medians and above everything before, and the loss did not improve by a tenth over it. Five
    single norms in a row, each at least 1.5 times the one before, that rise by a factor of 10000
    are an explosion as well. Without a loss, the factors are 1000 times larger. In another tool's
    log, three rows or more that end in NaN or Inf at 50 times the usual norm also count, and
    medians at 100 times, whatever the loss did; and so do five rows at the end of the log, at 200
    times, with a worse loss. Slow, uneven growth is reported if every norm of the run's last eighth
    is 10000 times those of the first, each eighth of its second half is at least twice the one
    before, and the loss is a tenth worse than its best. At the end of another tool's log, six
    medians in a row that grow, by a quarter each on average, to 100 times the usual norm before,
    are a warning even if the loss falls.

    ## False alarms
    One spike changes no median. A norm that grows while the loss falls means that the run learns. A
    return from a plateau to the level of the first steps is not an explosion.

    ## What to do
    Lower the learning rate or lengthen the warm-up; clip at a norm that is typical of the early
    steps. In recurrent nets, always clip. If the first norms are already huge, check the initial
    weights, the scale of inputs and targets, and whether the loss is summed. Check that gradients
    are cleared.

    ## References
    Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks";
    TheDeepChecker (above 1e6, or growing by 2 a check).
    """

    code = "HD202"
    name = "exploding-gradient"
    severity = Severity.ERROR
    summary = "norm grows without bound (not one spike)"
    needs = Needs(signals=("grad_norm",))
    scope = "training"
    explains = ("HD104", "HD101", "HD201", "HD208", "HD207", "HD308", "HD602", "HD509", "HD403")
    yields_to = ("HD403",)

    @dataclass(frozen=True)
    class Limits:
        ratio: float = 1e3
        """Growth of the medians."""
        ratio_at_once: float = 1e4
        """Growth of consecutive single norms, each above the one before."""
        ratio_slow: float = 1e4
        """Growth from the run's first eighth to its last."""
        above_start: float = 100.0
        """Multiple of the run's first medians, or of the largest norm before."""
        unseen_loss: float = 1e3
        """Factor on `ratio` and `ratio_at_once` if no loss is logged; a tenth of it on
        `ratio_slow`."""

    def start(self) -> None:
        self.blocks: dict[str, list[tuple[float, float]]] = {}
        """The norms and losses since the latest median."""
        self.points: dict[str, list[Point]] = {}
        self.eras: dict[str, RunMedians] = {}
        """The whole run, at even resolution."""
        self.streaks: dict[str, list[Point]] = {}
        """The latest norms, each far above the one before (the first and the latest of them)."""
        self.largest: dict[str, float] = {}
        """The largest norm before the streak."""
        self.reported: dict[str, float] = {}
        """The start level of each reported growth."""
        self.rows: list[Point] = []
        """The latest rows of another tool's log."""

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        if record.held:
            return
        for name, norm in record.family("grad_norm"):
            if not 0 < norm < math.inf:
                continue
            values = record.values
            loss = values.get(name.replace("grad_norm", "loss"), values.get("loss", math.nan))
            at = moment_of(record)
            growth = self._leap(name, (at, norm, loss)) or self._trend(name, (at, norm, loss))
            slow = [] if growth or self.blocks.get(name) else self._slow_growth(name)
            if (growth or slow) and name not in self.reported:
                self.reported[name] = (growth or slow)[0][1]
                yield self._finding(name, growth or slow, slow=bool(slow))

    def observe_row(self, record: StepRecord) -> Iterable[Finding]:
        yield from self._note_row(record)
        yield from self.observe(record)

    def finish(self) -> Iterable[Finding]:
        yield from self._ending(3 + 2, RAN_OUT, lasted=True)
        growth = self._steady_growth()
        if growth:
            self.reported["grad_norm"] = growth[0][1]
            yield self._finding("grad_norm", growth, slow=True, severity=Severity.WARNING)

    def _note_row(self, record: StepRecord) -> Iterable[Finding]:
        norm, loss = (record.values.get(name, math.nan) for name in ("grad_norm", "loss"))
        known = [record.values[name] for name in ("grad_norm", "loss") if name in record.values]
        if any(not math.isfinite(value) for value in known):
            yield from self._ending(3, ENDED, lasted=False)
            yield from self._long_growth()
            self.rows.clear()
        elif norm > 0:
            self.rows.append((moment_of(record), norm, loss))
            if len(self.rows) > 4 * RECENT:
                del self.rows[:-RECENT]

    def _ending(self, least: int, times: float, *, lasted: bool) -> Iterable[Finding]:
        """The growth in the last rows before a NaN, or before the end of the log."""
        del self.rows[:-RECENT]
        if len(self.rows) < least + 3 or "grad_norm" in self.reported:
            return
        usual = sorted(norm for _, norm, _ in self.rows)[len(self.rows) // 4]
        begin = len(self.rows)
        while begin and self.rows[begin - 1][1] > LEFT * usual:
            begin -= 1
        # The growth may start below that limit: go back as long as each norm is below the next.
        middle = median(norm for _, norm, _ in self.rows[:begin]) if begin else math.inf
        while 0 < begin < len(self.rows):
            norm = self.rows[begin - 1][1]
            if not BARELY * middle < norm < self.rows[begin][1]:
                break
            begin -= 1
        growth = self.rows[begin:]
        if begin == 0 or len(growth) < least:
            return
        half = len(growth) // 2
        early, late = (
            median(norm for _, norm, _ in part) for part in (growth[:half], growth[half:])
        )
        top = max(norm for _, norm, _ in growth[-2:])
        if top < times * usual or late < WIGGLE * early:
            return
        before = median(loss for _, _, loss in self.rows[:begin])
        after = median(loss for _, _, loss in growth[-2:])
        worse = after > before + abs(before) / 10
        if lasted and not worse:  # if it ends in NaN, the loss may have fallen until then
            return
        self.reported["grad_norm"] = usual
        yield self._finding("grad_norm", [growth[0], growth[-1]])

    def _long_growth(self) -> Iterable[Finding]:
        """The growth of the medians before a NaN, regardless of the loss."""
        points = self.points.get("grad_norm", [])
        if points and self.rows and "grad_norm" not in self.reported:
            growth = self._unbroken(points, ended=True)
            if growth:
                self.reported["grad_norm"] = growth[0][1]
                yield self._finding("grad_norm", growth)

    def _leap(self, name: str, point: Point) -> list[Point]:
        """The streak of increasing norms that ends here, if it is an explosion."""
        streak = self.streaks.setdefault(name, [])
        if streak and point[1] < LEAP * streak[-1][1]:
            self.largest[name] = max(self.largest.get(name, 0.0), streak[-1][1])
            streak.clear()
        streak.append(point)
        if len(streak) > NORMS:
            del streak[1]
        exploded = (
            len(streak) == NORMS
            and point[1] > self.limits.above_start * self.largest.get(name, 0.0)
            and self._without_progress(streak, self.limits.ratio_at_once)
        )
        return list(streak) if exploded else []

    def _trend(self, name: str, point: Point) -> list[Point]:
        """The growth of the medians, if this norm completes one and it is an explosion."""
        block = self.blocks.setdefault(name, [])
        block.append(point[1:])
        if len(block) < BLOCK:
            return []
        losses = [loss for _, loss in block if math.isfinite(loss)]
        points = self.points.setdefault(name, [])
        norm = median(norm for norm, _ in block)
        points.append((point[0], norm, median(losses) if losses else math.nan))
        block.clear()
        self.eras.setdefault(name, RunMedians()).add(points[-1])
        if points[-1][1] < WIGGLE * self.reported.get(name, 0.0):
            del self.reported[name]
        growth = self._unbroken(points)
        if len(points) >= POINTS:
            self.points[name] = points[::2]
        return growth

    def _unbroken(self, points: list[Point], *, ended: bool = False) -> list[Point]:
        """The growth up to the latest point, if it is an explosion; `ended`: it ends in NaN."""
        lowest = latest = points[-1][1]
        begin = len(points) - 1
        while begin and points[begin - 1][1] <= WIGGLE * lowest:
            begin -= 1
            lowest = min(lowest, points[begin][1])
        # It starts where the norm was at that level for the last time.
        last_low = max(at for at in range(begin, len(points)) if points[at][1] <= WIGGLE * lowest)
        growth = points[last_low:]
        unprecedented = latest > max([norm for _, norm, _ in points[:begin]], default=0.0)
        exploded = (
            len(growth) >= MEDIANS
            and unprecedented
            and latest > self.limits.above_start * points[0][1]
            and (
                growth[-1][1] > self.limits.above_start * growth[0][1]
                if ended
                else self._without_progress(growth, self.limits.ratio)
            )
        )
        return growth if exploded else []

    def _slow_growth(self, name: str) -> list[Point]:
        """The uneven growth since the beginning of the run, if it continues."""
        eras = self.eras.get(name)
        if eras is None or eras.waiting or len(eras.points) < 2 * PARTS:
            return []
        parts = eras.parts()
        early = max(norm for _, norm, _ in parts[0])
        late = min(norm for _, norm, _ in parts[-1])
        levels = [median(norm for _, norm, _ in part) for part in parts[PARTS // 2 - 1 :]]
        rising = all(after >= WIGGLE * before for before, after in pairwise(levels))
        ratio = self.limits.ratio_slow
        losses = [loss for part in parts for _, _, loss in part]
        if any(math.isnan(loss) for loss in losses):
            ratio *= self.limits.unseen_loss / 10
        else:
            middles = [median(loss for _, _, loss in part) for part in parts]
            rising = rising and middles[-1] > min(middles) + abs(min(middles)) / 10
        if not rising or late < ratio * early:
            return []
        last_low = max(at for at, (_, norm, _) in enumerate(eras.points) if norm <= WIGGLE * early)
        return eras.points[last_low:]

    def _steady_growth(self) -> list[Point]:
        """For a log: medians that grow up to its end and never fall, whatever the loss does."""
        points = self.points.get("grad_norm", [])
        if not self.context.rows or "grad_norm" in self.reported or len(points) <= STEADY:
            return []
        begin = len(points) - 1
        while begin and points[begin][1] > points[begin - 1][1]:
            begin -= 1
        growth, latest = points[begin:], points[-1][1]
        before = [norm for _, norm, _ in points[: begin + 1]]
        grown = latest > max(self.limits.above_start * median(before), *before)
        steady = latest >= STEADILY ** (len(growth) - 1) * growth[0][1]
        return growth if grown and steady and len(growth) > STEADY else []

    def _without_progress(self, growth: list[Point], ratio: float) -> bool:
        """Whether the norm grew by this factor while the loss did not improve."""
        (_, norm, loss), (_, later_norm, later_loss) = growth[0], growth[-1]
        if math.isnan(loss + later_loss):
            ratio *= self.limits.unseen_loss
        elif later_loss < loss - abs(loss) / 10:
            return False
        return later_norm > ratio * norm

    def _finding(
        self,
        name: str,
        growth: list[Point],
        *,
        slow: bool = False,
        severity: Severity | None = None,
    ) -> Finding:
        (onset, norm, loss), (end, later_norm, later_loss) = growth[0], growth[-1]
        known = not math.isnan(loss + later_loss)
        how = "and is still growing" if slow else "without interruption"
        then = f", while the loss went from {say(loss)} to {say(later_loss)}" if known else ""
        return self.find(
            record_at(onset),
            f"{name} has grown from {say(norm)} to {say(later_norm)} at step {end[2]}, by a "
            f"factor of {say(later_norm / norm)}, {how}{then}",
            subject=name,
            severity=severity,
            remedies=[
                "Lower the learning rate or lengthen the warm-up, and clip at a norm that is "
                "typical of the early steps.",
                "If it grows from the first step on, check the initial weights, the scale of "
                "inputs and targets, and that gradients are cleared before each backward pass.",
            ],
            before=norm,
            after=later_norm,
            factor=later_norm / norm,
            onset=onset[2],
            seen_at=end[2],
            loss_before=loss if known else None,
            loss_after=later_loss if known else None,
        )
