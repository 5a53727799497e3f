"""Facts about a loss that checks of several families read: its call site, why it has no graph,
whether other losses compete with it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from headway.core.loss_facts import (
    BackwardRootFacts,
    LossCallFacts,
    LossFormulaFacts,
    SummedLossFacts,
)
from headway.core.numbers import say
from headway.core.records import Header, Moment, StepRecord, moment_of
from headway.core.window import MAD_TO_SIGMA, BestLevel, drift_sigma, log_sigma

# Logs in which a rising, constant or oscillating loss means nothing: several losses work against
# each other, or the data depend on the policy.

_SIDES = re.compile(
    r"(^|[_/.])(d|g|disc|gen|dis|discriminator|generator|adv|adversarial|policy|pg|actor|critic|"
    r"value|vf|q|q1|q2|qf|qf1|qf2|td|entropy)([_/.0-9]|$)"
)


def has_competing_losses(header: Header) -> bool:
    """Whether a log is that of reinforcement learning or of adversaries."""
    if header.cadence != "rows":
        return False
    return "reward" in header.signals or any(
        name.startswith("loss/") and _SIDES.search(name.removeprefix("loss/"))
        for name in header.signals
    )


# The call site of a loss.


def loss_call_site(facts: LossFormulaFacts | SummedLossFacts) -> str:
    """A key for line and function, so that two findings about one line are one finding."""
    return f"{facts.function or ''} {facts.place.file or ''}:{facts.place.line or 0}"


def format_shape(shape: list[float] | None) -> str:
    """`(32, 10)`; `?` if unknown."""
    if shape is None:
        return "?"
    sizes = [str(int(size)) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def targets_are_not_class_ids(facts: LossCallFacts) -> bool:
    """Whether the dtype and shape of the targets of a classification loss cannot be class
    indices."""
    if facts.target.dtype in (None, "int64", "uint8") or facts.classes is None:
        return False
    return (facts.target.shape or []) != (facts.prediction.shape or [])


# Why a loss has no graph: it was cut, or there never was one. Two checks distinguish these cases
# and must agree.


def missing_graph_reason(facts: BackwardRootFacts) -> Literal["cut", "disabled", "frozen"] | None:
    """The reason for a backward pass; None if its loss depends on parameters."""
    if facts.reached is None or facts.reached > 0:
        return None
    forwards = facts.forwards
    if forwards.with_graph or facts.graph:
        return "cut"
    if forwards.disabled or forwards.inference:
        return "disabled"
    if facts.trainable == 0 and facts.parameters:
        return "frozen"
    if not forwards.without_graph and facts.cut.function == "no_grad":
        return "disabled"
    return "disabled" if facts.grad_enabled is False else "cut"


# Where a loss began to rise.


def rise_begins_after(quiet: list[tuple[Moment, float]]) -> Moment | None:
    """The first of the latest losses that is above the low ones; None if there is none."""
    losses = [loss for _, loss in quiet]
    if len(losses) < 2 or min(losses) <= 0:
        return None
    low = median(sorted(losses)[: max(len(losses) // 3, 1)])
    limit = low * math.exp(min(2 * log_sigma(losses), 1.0))
    after = None
    for moment, loss in reversed(quiet):
        if loss <= limit:
            return after
        after = moment
    return None


def first_risen(quiet: list[tuple[Moment, float]], few: int, slow: int) -> Moment | None:
    """Where a rise began, which may be long before it left the band: after the last low loss
    among the latest `few`, or among `slow` times as many if the rise is slow."""
    found = [rise_begins_after(quiet[-count:]) for count in (few, slow * few)]
    return min((moment for moment in found if moment is not None), default=None)


def split_thirds(losses: list[float]) -> tuple[list[float], list[float], list[float]]:
    """The first, middle and last third."""
    third = max(len(losses) // 3, 1)
    return losses[:third], losses[third:-third] or losses, losses[-third:]


def is_far_above(
    level: float,
    late: list[float],
    before: list[float],
    best: BestLevel,
    ratio: float,
    sigmas: float,
    gradual: bool,
) -> bool:
    """Whether a positive loss has risen by `ratio` and by `sigmas` times its noise and drift."""
    logs = [math.log(loss) for loss in before if loss > 0]
    if gradual:
        # A whole log is enough evidence: the rise need not double a loss of 4 nats.
        calm = max(log_sigma(late), drift_sigma(logs[-20:]))
        return math.log(level / best.level) > max(math.log(ratio), sigmas * calm)
    noise = max(log_sigma(late), drift_sigma(logs))
    return math.log(level) - median(split_thirds(logs)[2]) > max(math.log(ratio), sigmas * noise)


UNBROKEN = 3.0
"""Multiple of the best level that a monotonic rise of coarse values must reach."""
ENDING, RISEN, FLAT = 6, 1.2, 0.95
"""At the end of a log: number of losses above the band that are enough if they lost half of the
progress; ratio of the last to the first of them; and the ratio that is enough if they are also
worse than everything before (they must only not fall)."""


def rises_beyond(
    losses: list[float],
    before: list[float],
    best: BestLevel,
    ratio: float,
    *,
    count: int,
    coarse: bool,
) -> bool:
    """Whether the last losses of a log rise beyond those before them: to `ratio` of the best.

    `losses` stands for `count` losses; `coarse` ones are means over many steps.
    """
    if best.level <= 0:
        return False
    early, _, late = split_thirds(losses)
    level = median(late)
    if coarse and all(one < other for one, other in pairwise(losses)):
        ratio = min(ratio, UNBROKEN)
    if level < ratio * best.level or level < max(losses) / 2 or level < FLAT * median(early):
        return False
    noise = drift_sigma([math.log(loss) for loss in before[-20:] if loss > 0] or [0.0])
    if math.log(level / best.level) < 5 * noise:
        return False
    if level > max([best.first, *before]):
        return True
    # Half of the progress, on a linear or on a logarithmic axis.
    half = min(best.first - best.progress / 2, math.sqrt(best.first * best.level))
    rises = level > RISEN * median(early) and level > max(before[-30:], default=0.0)
    return count >= ENDING and rises and level >= half


# How the printed curve ends: what a person sees at a glance, whatever the single values do.

CURVE_BLOCKS, CURVE_BLOCK = 24, 3
"""Blocks into which a curve is divided, and the smallest number of values in one."""
ENDS_ABOVE = 1.15
"""Ratio of the last level to the best one that is visible in a curve."""
LONG_STRETCH = 0.2
"""Share of the curve that must be above the best level, up to the end."""
LEARNS_AGAIN = 0.25
"""Share of a rise that a run has recovered when it learns again (a curriculum, a restart)."""
CURVE_POINTS = 2048
"""Values of a curve that are kept."""
CURVE_SIGMAS = 6.0
"""The rise in standard deviations of a block's level."""


@dataclass(frozen=True, slots=True)
class CurveEnd:
    """A curve that ends above its best level: where the best was, where it rose, and how far."""

    best: float
    level: float
    first: float
    best_at: int
    """Position of the best level among the values."""
    rises_at: int
    """Position from which the values stay above it."""

    @property
    def lost(self) -> float:
        """The share of the progress since the start that was lost."""
        progress = self.first - self.best
        return (self.level - self.best) / progress if progress > 0 else math.inf


def keep_curve(
    curve: list[tuple[Moment, float]], moment: Moment, loss: float
) -> list[tuple[Moment, float]]:
    """The curve with one more loss, and every second one dropped when it gets long."""
    curve.append((moment, loss))
    return curve if len(curve) < CURVE_POINTS else curve[::2]


def ends_above_best(losses: list[float]) -> CurveEnd | None:
    """How far above its best a positive loss ends, if a long stretch up to the end is above it."""
    count = min(CURVE_BLOCKS, len(losses) // CURVE_BLOCK)
    if count < 5 or min(losses) <= 0:
        return None
    edges = [len(losses) * at // count for at in range(count + 1)]
    blocks = [losses[begin:end] for begin, end in pairwise(edges)]
    levels = [median(block) for block in blocks]
    best = min(levels)
    place = levels.index(best)
    last = median(levels[-3:])
    halfway = math.sqrt(best * last)
    begin = count
    while begin > place + 1 and levels[begin - 1] > halfway:
        begin -= 1
    tail = levels[begin:]
    if last < ENDS_ABOVE * best or len(tail) < max(3, LONG_STRETCH * count):
        return None
    # The noise of a level: that of single values, and the drift from one level to the next.
    single = MAD_TO_SIGMA * median(
        abs(math.log(loss / level))
        for block, level in zip(blocks, levels, strict=True)
        for loss in block
    )
    drift = log_sigma(levels)
    noise = max(single / math.sqrt(len(losses) / count), min(drift, single))
    peak = max(tail)
    if math.log(last / best) < CURVE_SIGMAS * noise or last < peak - LEARNS_AGAIN * (peak - best):
        return None
    # It began to rise after the last block that had lost less than a fifth of the way.
    low = best * (last / best) ** 0.2
    onset = max(at for at in range(place, begin) if at == place or levels[at] <= low) + 1
    return CurveEnd(best, last, levels[0], edges[place], edges[onset])


# Validation in a log: the model overfits if its loss rises while that of the training falls.

ValidationPoint = tuple[Moment, float, float]
"""Where, the validation loss, and the latest training loss."""
LEAST_EVALUATIONS = 6
OVERFITTING = (
    "Add data or augmentation, or regularise: weight decay, dropout, a smaller model, fewer "
    'epochs. `headway explain "validation much worse than training"` lists the other causes.',
)


@dataclass(frozen=True, slots=True)
class Overfitting:
    """A validation loss that has risen from its best, and the training loss meanwhile."""

    at: Moment
    best: float
    level: float
    message: str

    def as_finding(self) -> dict[str, Any]:
        """Its message, remedies and evidence."""
        use = f"Use the checkpoint of step {self.at[2]}, and stop there."
        evidence = {"best": self.best, "best_step": self.at[2], "level": self.level}
        return {"message": self.message, "remedies": [use, *OVERFITTING], **evidence}


def note_validation(
    points: list[ValidationPoint], record: StepRecord, curve: list[tuple[Moment, float]]
) -> None:
    """Add the evaluation in a row of a log; long lists are thinned."""
    value = record.values.get("eval/loss", math.nan)
    training = record.values.get("loss", curve[-1][1] if curve else math.nan)
    if 0 < value < math.inf and math.isfinite(training):
        points.append((moment_of(record), value, training))
        if len(points) >= CURVE_POINTS:
            del points[1::2]


def find_overfitting(points: list[ValidationPoint]) -> Overfitting | None:
    """Whether the last third of the evaluations is above the best one while training improved."""
    if len(points) < LEAST_EVALUATIONS:
        return None
    values = [value for _, value, _ in points]
    few = max(len(points) // 12, 1)  # evaluations that give a level, so that noise does not
    levels = [median(values[at : at + few]) for at in range(len(values) - few + 1)]
    best = min(levels)
    place = levels.index(best) + few // 2
    level = median(values[-max(few, 3) :])
    after = values[-max(len(values) // 3, 3) :]
    if place >= len(values) - len(after) or min(after) < 1.05 * best or level < ENDS_ABOVE * best:
        return None
    then, now = points[place][2], median(training for _, _, training in points[-3:])
    if now > 0.97 * then:
        return None
    at = points[place][0]
    message = (
        f"validation loss has risen from its best, {say(best)} at step {at[2]}, to {say(level)}, "
        f"while the training loss fell from {say(then)} to {say(now)}: the model "
        f"overfits, and the weights of step {at[2]} were the best"
    )
    return Overfitting(at, best, level, message)
