"""A trial of one optimizer update (the loss at multiples of it), and the course of the losses
around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Any

from headway.core.check import Check, Needs
from headway.core.facts import Facts, Place
from headway.core.findings import Finding, Where
from headway.core.optimizer_facts import TrialFacts
from headway.core.records import Moment, SetupRecord, record_at
from headway.core.state import register_state_class
from headway.core.window import detrended_sigma

TRIAL, OBJECTIVE = "trial", "objective"
SLOPE_AGREEMENT = (0.5, 2.0)
"""Range of measured slope ÷ slope of the gradient, if the gradient is that of the loss."""


@dataclass(frozen=True, slots=True)
class TriedUpdate:
    """One update: the loss of its own batch at multiples of it."""

    made: int
    """Earlier steps of the optimizer."""
    loss: float
    losses: dict[float, float]
    """Multiple → loss; infinite if it was not finite."""
    noise: float
    slope: float | None
    """Change of the loss by a small part of the update, per update; None: not measurable."""
    facts: TrialFacts
    where: Where

    @classmethod
    def of(cls, record: SetupRecord) -> TriedUpdate | None:
        """The trial in a record; None if there is none."""
        facts = TrialFacts.of(record)
        loss, noise, made = facts.loss, facts.noise, facts.made
        if loss is None or noise is None or made is None:
            return None
        table = Facts(facts.losses)
        losses = {}
        for key in table:
            multiple, value = _number(key), table.number(key)
            if multiple is not None and value is not None:
                losses[multiple] = value
        losses |= dict.fromkeys(facts.nonfinite, math.inf)
        if 1.0 not in losses:
            return None
        return cls(made, loss, losses, noise, facts.slope, facts, facts.locate(rank=record.rank))

    def line(self, place: Place) -> Where:
        """A recorded line: `made_at`, `step_place`, `own_step`; otherwise that of the backward
        pass."""
        return self.where if place.file is None else place.where()

    @property
    def alone(self) -> bool:
        """Whether no other optimizer steps."""
        return (self.facts.optimizers or 1.0) <= 1

    @property
    def after(self) -> float:
        """The loss after the whole update."""
        return self.losses[1.0]

    @property
    def lowest_before(self) -> float:
        """The lowest loss at a part of the update."""
        return min((loss for at, loss in self.losses.items() if at < 1), default=self.loss)

    @property
    def flat(self) -> bool:
        """Whether no tested multiple changes the loss measurably."""
        return all(abs(loss - self.loss) <= self.noise for loss in self.losses.values())

    @property
    def faithful(self) -> bool:
        """Whether the gradient is that of the loss, before anything changes it."""
        return (
            self.agreement is not None
            and SLOPE_AGREEMENT[0] <= self.agreement <= SLOPE_AGREEMENT[1]
        )

    @property
    def agreement(self) -> float | None:
        """Ratio of the measured slope to that of the gradient."""
        expected = self.facts.gradient_slope
        if self.slope is None or not expected:
            return None
        return self.slope / expected

    @property
    def shrinks(self) -> float:
        """Share of the update that only shrinks the weights: the cosine between the two."""
        return self.facts.against_weights or 0.0

    def drop(self, multiple: float) -> float | None:
        """How much lower the loss is there; None if it was not tested."""
        loss = self.losses.get(multiple)
        return None if loss is None else self.loss - loss


@register_state_class
class LossSummary:
    """Summary of the losses of a run: the first, the last, and the number of high ones."""

    __slots__ = ("bad", "count", "first", "high", "highest", "last", "lowest")
    KEPT = 10
    HIGH = 1.5
    """Multiple of the first loss from which a loss is high."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.last: list[float] = []
        self.count = 0
        self.bad = 0
        """Number of non-finite losses."""
        self.high = 0
        self.highest = -math.inf
        self.lowest = math.inf

    def take(self, facts: TrialFacts, values: list[float]) -> None:
        """Add the losses since the last trial."""
        self.first = (self.first + values)[: self.KEPT]
        self.last = (self.last + values)[-self.KEPT :]
        self.count += max(facts.steps or 0, len(values))
        self.bad += facts.bad_losses or 0
        self.lowest = min([self.lowest, *values])
        self.highest = max([self.highest, *values])
        if self.first:
            self.high += sum(value > self.HIGH * abs(self.first[0]) for value in values)

    @property
    def known(self) -> bool:
        """Whether there are losses to judge."""
        return bool(self.first)

    @property
    def start(self) -> float:
        """The first loss: the later ones depend on the updates."""
        return self.first[0] if self.first else math.inf

    @property
    def level(self) -> float:
        """The current level; infinite if there is no finite loss."""
        few = self.last[-max(3, min(self.KEPT, self.count // 2)) :]
        return median(few) if few else math.inf

    def learned(self, share: float) -> bool:
        """Whether the level fell by this share of its start and by more than batches differ."""
        if not self.first or not self.last:
            return False
        few = max(1, min(self.KEPT, self.count // 3))
        start, end = median(self.first[:few]), median(self.last[-few:])
        spread = max(detrended_sigma(self.first), detrended_sigma(self.last)) / math.sqrt(few)
        return start - end > max(share * abs(start), 2 * spread)

    def to_state(self) -> Any:
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_state(cls, state: Any) -> LossSummary:
        summary = cls()
        for name, value in zip(cls.__slots__, state, strict=True):
            setattr(summary, name, value)
        return summary


class TrialCheck(Check):
    """Base of checks that judge trials of updates when the run is over."""

    needs = Needs(kinds=(SetupRecord,), topics=(TRIAL,))

    def start(self) -> None:
        self.onset: Moment | None = None
        """The first trial that shows the fault."""
        self.place: tuple[str | None, int | None, str | None] = (None, None, None)

    def mark_onset(self, record: SetupRecord) -> None:
        """Remember the place of this record, if it is the first."""
        self.onset = self.onset or setup_moment(record)

    def point_at(self, where: Where) -> None:
        """Remember the line that the finding names."""
        self.place = (where.file, where.line, where.function)

    def find_at_onset(self, onset: Moment, message: str, **more: Any) -> Finding:
        """A finding at the first trial that shows the fault."""
        return self.find(record_at(onset), message, where=Where(*self.place), **more)


def setup_moment(record: SetupRecord) -> Moment:
    """The position of a set-up record."""
    return (record.segment, record.seq, record.step, record.rank)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
