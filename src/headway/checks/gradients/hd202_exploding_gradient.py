"""HD202: exploding gradients, judged over the whole run in a bounded number of points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Moment, StepRecord, moment_of, record_at
from headway.core.state import remember

# A whole run in a few points, all of them for equally many steps: how it went from its beginning.

# Windows of the latest steps forget how a run began, and histories that thin out the past compare
# with something else each time. Here the oldest tenth is always as plain as the latest.

MOST_POINTS = 64
"""Points that are kept; when full, two become one. At least half as many are there."""
PARTS = 8

Era = tuple[Moment, float, float]
"""Where it ended, and the medians of two numbers over it."""


@remember
@dataclass
class Eras:
    """The points, and what the next one is being made of."""

    points: list[Era] = field(default_factory=list)
    waiting: list[Era] = field(default_factory=list)
    each: int = 1
    """Medians that a point stands for."""

    def add(self, era: Era) -> bool:
        """One more median; whether it completed a point."""
        self.waiting.append(era)
        if len(self.waiting) < self.each:
            return False
        self.points.append(_join_points(self.waiting))
        self.waiting.clear()
        if len(self.points) >= MOST_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [_join_points(list(pair)) for pair in pairs]
            self.each *= 2
        return True

    def parts(self) -> list[list[Era]]:
        """The run in eighths, the first one first."""
        count = len(self.points)
        bounds = [count * part // PARTS for part in range(PARTS + 1)]
        return [self.points[a:b] for a, b in pairwise(bounds)]

    def to_state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: Any) -> Eras:
        return cls(**state)


def _join_points(eras: list[Era]) -> Era:
    """One for several; what is not known (NaN) of one of them is not known of all."""
    ends, firsts, seconds = zip(*eras, strict=True)
    unknown = any(math.isnan(value) for value in seconds)
    return ends[-1], median(firsts), math.nan if unknown else median(seconds)


BLOCK = 16
"""The run is looked at in medians of so many steps: one spike makes no growth."""
POINTS = 64
"""So many medians are kept; when full, every second one goes, so the far past gets sparser."""
MEDIANS, NORMS = 4, 5
"""So many medians, or so many single norms in a row, make a growth."""
LEAP = 1.5
"""Of single norms each must be so many times the one before: a bad batch or two make no growth."""
WIGGLE = 2.0
"""A median may be so many times a later one and the growth still count as unbroken."""

Point = tuple[Moment, float, float]
"""Where, the gradient norm, the loss (NaN where it is not known)."""

RECENT = 64
"""So many rows of another tool's log are looked back at when a number is no number any more."""
BARELY = 1.3
LEFT, ENDED, RAN_OUT = 3.0, 50.0, 200.0
"""There: times the usual norm that have left it, end an explosion in NaN, and without one."""


class ExplodingGradient(Check):
    """The gradient norm grows without bound.

    ## What it checks
    The global gradient norm before clipping, from step to step in the first steps and in medians of
    16 steps over the whole run.

    ## Why it matters
    A norm that grows by orders of magnitude feeds itself: larger updates lead to places with larger
    gradients. It ends in Inf, or in weights that are useless long before.

    ## How it is measured
    Going back from the latest median the growth lasts as long as the norm gets smaller. It is an
    explosion when it spans a factor of 1000 over at least four medians, stands 100 times above
    the run's first medians and above everything before, and the loss did not get better by a
    tenth over it. Five single norms in a row, each half as large again as the one before, that
    rise by a factor of 10000 are one as well. Without a loss to ask, the factors are 1000 times
    larger. In another tool's log, three rows or more that end in NaN or Inf at 50 times the usual
    norm are one too, and medians at 100 times, whatever the loss did; and so are five rows at the
    log's end, at 200 times, with a worse loss. A slow growth, with ups and downs, is told where
    every norm of the run's last eighth is 10000 times those of the first, each eighth of its second
    half is at least twice the one before, and the loss is a tenth worse than it was at its best.

    ## False alarms
    One spike changes no median. A norm that grows while the loss falls is a run that learns. Coming
    back from a plateau to the level of the first steps is no explosion.

    ## What to do
    Lower the rate or lengthen the warm-up; clip the norm at what is usual early in the run. In
    recurrent nets clip always. If the very first norms are huge, look at the initial weights, the
    scale of inputs and targets, and a loss that is summed. Check that gradients are cleared.

    ## References
    Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks";
    TheDeepChecker (above 1e6, or growing by 2 a check).
    """

    code = "HD202"
    name = "exploding-gradient"
    severity = Severity.ERROR
    summary = "norm grows without bound (not one spike)"
    needs = Needs(signals=("grad_norm",))
    explains = ("HD104", "HD101", "HD201", "HD208", "HD207", "HD308", "HD602", "HD509", "HD403")
    yields_to = ("HD403",)

    @dataclass(frozen=True)
    class Limits:
        ratio: float = 1e3
        """Growth of the medians."""
        ratio_at_once: float = 1e4
        """Growth of single norms, each above the one before."""
        ratio_slow: float = 1e4
        """Growth from the run's first eighth to its last."""
        above_start: float = 100.0
        """Times the run's first medians, or the largest norm before."""
        unseen_loss: float = 1e3
        """Factor on the first two where no loss is logged; on the third a tenth of it."""

    def start(self) -> None:
        self.blocks: dict[str, list[tuple[float, float]]] = {}
        """The norms and losses since the latest median."""
        self.points: dict[str, list[Point]] = {}
        self.eras: dict[str, Eras] = {}
        """The whole run, evenly."""
        self.streaks: dict[str, list[Point]] = {}
        """The latest norms, each far above the one before (of many: the first and the latest)."""
        self.largest: dict[str, float] = {}
        """The largest norm before the streak."""
        self.told: dict[str, float] = {}
        """The level a growth that was told began at."""
        self.rows: list[Point] = []
        """The latest rows of another tool's log."""

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        if record.held:
            return
        if self.context.header.foreign:
            yield from self._note_row(record)
        for name, norm in record.family("grad_norm"):
            if not 0 < norm < math.inf:
                continue
            values = record.values
            loss = values.get(name.replace("grad_norm", "loss"), values.get("loss", math.nan))
            at = moment_of(record)
            growth = self._leap(name, (at, norm, loss)) or self._trend(name, (at, norm, loss))
            slow = [] if growth or self.blocks.get(name) else self._slow_growth(name)
            if (growth or slow) and name not in self.told:
                self.told[name] = (growth or slow)[0][1]
                yield self._finding(name, growth or slow, slow=bool(slow))

    def finish(self) -> Iterable[Finding]:
        yield from self._ending(3 + 2, RAN_OUT, lasted=True)

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
        if len(self.rows) < least + 3 or "grad_norm" in self.told:
            return
        usual = sorted(norm for _, norm, _ in self.rows)[len(self.rows) // 4]
        begin = len(self.rows)
        while begin and self.rows[begin - 1][1] > LEFT * usual:
            begin -= 1
        # It may have begun before it left the usual: go back as long as each is below the next.
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
        if lasted and not worse:  # where it ends in NaN, the loss may have fallen to the last
            return
        self.told["grad_norm"] = usual
        yield self._finding("grad_norm", [growth[0], growth[-1]])

    def _long_growth(self) -> Iterable[Finding]:
        """The growth of the medians before a NaN, whatever the loss did over it."""
        points = self.points.get("grad_norm", [])
        if points and self.rows and "grad_norm" not in self.told:
            growth = self._unbroken(points, ended=True)
            if growth:
                self.told["grad_norm"] = growth[0][1]
                yield self._finding("grad_norm", growth)

    def _leap(self, name: str, point: Point) -> list[Point]:
        """The streak of ever larger norms this one ends, if that is an explosion."""
        streak = self.streaks.setdefault(name, [])
        if streak and point[1] < LEAP * streak[-1][1]:
            self.largest[name] = max(self.largest.get(name, 0.0), streak[-1][1])
            streak.clear()
        streak.append(point)
        if len(streak) > NORMS:
            del streak[1]
        unprecedented = point[1] > self.limits.above_start * self.largest.get(name, 0.0)
        exploded = (
            len(streak) == NORMS
            and unprecedented
            and self._without_progress(streak, self.limits.ratio_at_once)
        )
        return list(streak) if exploded else []

    def _trend(self, name: str, point: Point) -> list[Point]:
        """The growth of the medians, if this norm completes one and they have exploded."""
        block = self.blocks.setdefault(name, [])
        block.append(point[1:])
        if len(block) < BLOCK:
            return []
        losses = [loss for _, loss in block if math.isfinite(loss)]
        points = self.points.setdefault(name, [])
        norm = median(norm for norm, _ in block)
        points.append((point[0], norm, median(losses) if losses else math.nan))
        block.clear()
        self.eras.setdefault(name, Eras()).add(points[-1])
        if points[-1][1] < WIGGLE * self.told.get(name, 0.0):
            del self.told[name]
        growth = self._unbroken(points)
        if len(points) >= POINTS:
            self.points[name] = points[::2]
        return growth

    def _unbroken(self, points: list[Point], *, ended: bool = False) -> list[Point]:
        """The growth that ends in the latest point, if it is an explosion; `ended`: in NaN."""
        lowest = latest = points[-1][1]
        begin = len(points) - 1
        while begin and points[begin - 1][1] <= WIGGLE * lowest:
            begin -= 1
            lowest = min(lowest, points[begin][1])
        # It begins where the norm was at that level for the last time.
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
        """The growth from the run's beginning, ups and downs and all, if it goes on and on."""
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

    def _without_progress(self, growth: list[Point], ratio: float) -> bool:
        """Whether the norm grew that much and the loss is none the better for it."""
        (_, norm, loss), (_, later_norm, later_loss) = growth[0], growth[-1]
        if math.isnan(loss + later_loss):
            ratio *= self.limits.unseen_loss
        elif later_loss < loss - abs(loss) / 10:
            return False
        return later_norm > ratio * norm

    def _finding(self, name: str, growth: list[Point], *, slow: bool = False) -> Finding:
        (onset, norm, loss), (end, later_norm, later_loss) = growth[0], growth[-1]
        known = not math.isnan(loss + later_loss)
        how = "and still growing" if slow else "without a break"
        then = f", while the loss went from {say(loss)} to {say(later_loss)}" if known else ""
        return self.find(
            record_at(onset),
            f"{name} has grown from {say(norm)} here to {say(later_norm)} at step {end[2]}, by a "
            f"factor of {say(later_norm / norm)} {how}{then}",
            subject=name,
            remedies=[
                "Lower the learning rate or lengthen the warm-up, and clip the norm at what is "
                "usual early in the run.",
                "If it grows from the first step on, look at the initial weights, at the scale of "
                "inputs and targets, and whether gradients are cleared before each backward.",
            ],
            before=norm,
            after=later_norm,
            factor=later_norm / norm,
            onset=onset[2],
            seen_at=end[2],
            loss_before=loss if known else None,
            loss_after=later_loss if known else None,
        )
