"""The step that failed: what it trains, its batches, how to run it again, and what its ranks agree
on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.explain.explanation import Origin, Spike

# The step that failed (models, optimizers, batches), one more pass over it, and the outcome of
# that pass.

# One more run of the failing step, and what came of it.

Purpose = Literal["trace", "again", "trial"]
FAILED_ON_OTHER_RANK = "it could not be completed on another rank"
"""The error of a pass that ended here because it ended there."""


@dataclass(slots=True)
class Outcome:
    """Filled in by whoever runs the pass."""

    losses: list[float] = field(default_factory=list)
    """One for each backward, unscaled."""
    components: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    """Gradient norms by parameter, unscaled and before any clipping."""
    made: float = 0.0
    """With several ranks, the norm of the gradient that this one made alone."""
    error: str | None = None
    """The pass could not be completed: the exception, in one line."""

    @property
    def norm(self) -> float:
        return math.sqrt(sum(norm * norm for norm in self.norms.values()))

    @property
    def complete(self) -> bool:
        return self.error is None and bool(self.losses or self.norms)

    @property
    def finite(self) -> bool:
        return self.complete and all(map(math.isfinite, (*self.losses, *self.norms.values())))

    def cured(self, limit: float | None = None) -> bool:
        """Whether the step would have been taken."""
        return self.finite and (limit is None or self.norm <= limit)


@dataclass(slots=True)
class StepPass:
    """Run the step over these batches with these in force, and fill in the outcome."""

    purpose: Purpose
    batches: Sequence[Any]
    within: Sequence[AbstractContextManager[Any]] = ()
    observer: PassObserver | None = None
    outcome: Outcome = field(default_factory=Outcome)


class PassObserver:
    """Hears of the two moments of a pass that only its runner sees."""

    def backward_begins(self, roots: Sequence[Tensor], components: Mapping[str, Tensor]) -> None:
        """The forward is over; these are the losses (scaled, if a scaler is used)."""

    def gradients_ready(self, parameters: Sequence[Tensor]) -> None:
        """Just before the optimizer would step (and before any clipping)."""


# The step that went bad: what it trains, its batches, and how to run it again.

SampleNames = Callable[[int, Sequence[int]], Sequence[Any]]
"""(which batch, rows) → what the data set calls them; nothing where it is not known."""


@dataclass(slots=True)
class FailingStep:
    """Everything an investigation may look at. Whoever runs the passes puts state back itself:
    random numbers, buffers, scaler, schedules and gradients are, before every pass, as they were
    before the step; the optimizers never move a weight."""

    models: Sequence[nn.Module]
    optimizers: Sequence[Optimizer]
    batches: Sequence[Any]
    """What the loader gave for this step: one, or several under accumulation."""
    names: Mapping[int, str]
    """Paths of the parameters in the model, by identity (`id`)."""
    step: int = 0
    symptom: Literal["nonfinite", "spike"] = "nonfinite"
    scaler: GradScaler | None = None
    limit: float | None = None
    """For a spike: the gradient norm that was allowed."""
    usual: Mapping[str, float] = field(default_factory=dict)
    """What was normal before, where somebody knows: `loss`, `loss/<component>`, and
    `grad_norm/<parameter>`."""
    data: Mapping[str, Tensor] = field(default_factory=dict)
    """What a loop that makes its own batches makes them of, by the user's names."""
    sample_names: SampleNames | None = None
    inexact: str = ""
    """Why a pass may not be quite the step that failed; empty: it is. A pass that goes well then
    tells nothing."""
    gentle: bool = False
    """A pass that raises would end the training: only what cannot raise may be tried."""


# What all ranks agree on while they investigate a step together.

# Every rank asks the same questions in the same order.

# Every rank asks the same questions in the same order. Alone, a rank agrees with itself.

T = TypeVar("T")
GatherFromRanks = Callable[[T], Sequence[T]]
"""What every rank says, in their order; alone, what it is given."""

STANDS_OUT = 2.0
"""Times the next largest from which one rank's gradient is the one that leapt."""


class RankAgreement:
    """The ranks, seen from one of them."""

    def __init__(self, agree: GatherFromRanks[Any], rank: int) -> None:
        self._agree = agree
        self._rank = rank
        self._alone = len(agree(None)) == 1
        self.guilty: int | None = None
        """The rank that made the bad number, of several; None: it is not known, or all did."""
        self.also: dict[int, Origin] = {}
        """Other ranks that made one of their own at the same time."""

    @property
    def speaks(self) -> bool:
        """Whether what is found here is what all say."""
        return self._rank == (self.guilty or 0)

    @property
    def blamed(self) -> bool:
        """Whether a bad number was made here."""
        return self.guilty in (None, self._rank) or self._rank in self.also

    @property
    def own_origin(self) -> Origin | None:
        """The one of this rank, where another speaks of its own."""
        return self.also.get(self._rank)

    @property
    def one_is_to_blame(self) -> bool:
        """Whether the samples of one rank alone can be guilty."""
        return self._alone or (self.guilty is not None and not self.also)

    def everywhere(self, said: bool) -> bool:
        return all(self._agree(said))

    def as_spoken(self, value: T) -> T:
        """What the rank says that speaks for all."""
        said: Sequence[T] = self._agree(value)
        return said[0] if len(said) == 1 else said[self.guilty or 0]

    def well(self, outcome: Outcome, limit: float | None) -> bool:
        """Whether the step would have been taken."""
        return self.everywhere(outcome.cured(limit))

    def an_error(self, outcome: Outcome) -> str:
        """Why the step did not come to its end, on the first rank that knows."""
        errors = sorted(filter(None, self._agree(outcome.error)), key=FAILED_ON_OTHER_RANK.__eq__)
        return errors[0] if errors else "it computed no loss"

    def agree_on_origins(self, origins: tuple[Origin, ...], outcome: Outcome) -> tuple[Origin, ...]:
        """Those of the rank that made the bad number; it is guilty from here on."""
        bad = not all(map(math.isfinite, (*outcome.losses, outcome.made)))
        said: Sequence[tuple[tuple[Origin, ...], bool]] = self._agree((origins, bad))
        if len(said) == 1:
            return origins
        # Memory that a collective writes is filled out of sight: an innocent rank may find origins.
        certain = [rank for rank, (_, theirs) in enumerate(said) if theirs] or range(len(said))
        made = [rank for rank in certain if said[rank][0]]
        if made or len(certain) == 1:
            self.guilty = [*made, *certain][0]
        self.also = {rank: said[rank][0][0] for rank in made[1:]}
        return said[self.guilty or 0][0] if made else ()

    def find_spike(self, spike: Spike | None, made: float) -> Spike | None:
        """That of the rank whose own gradient was by far the largest, if there is one."""
        said: Sequence[tuple[Spike | None, float]] = self._agree((spike, made))
        if len(said) == 1:
            return spike
        second, first = sorted(norm for _, norm in said)[-2:]
        largest = max(range(len(said)), key=lambda rank: said[rank][1])
        if first > STANDS_OUT * second:
            self.guilty = largest
            return said[largest][0]
        found = said[0][0]  # no sample of one rank explains what happens on all
        return None if found is None else Spike(found.component, (), 0, found.layers, found.growth)
