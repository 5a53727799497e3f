"""The failing step: models, batches, passes over it, and agreement among its ranks."""

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

# One more pass over the failing step, and its outcome.

Purpose = Literal["trace", "again", "trial"]
FAILED_ON_OTHER_RANK = "the pass did not complete on another rank"
"""Error of a pass that ended because it failed on another rank."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a pass, filled in by its runner."""

    losses: list[float] = field(default_factory=list)
    """One for each backward, without the loss scale."""
    components: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    """Gradient norms by parameter, without the loss scale and before clipping."""
    made: float = 0.0
    """With several ranks: norm of the gradient of this rank alone."""
    error: str | None = None
    """The exception that ended the pass, in one line."""

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
        """Whether the optimizer would step."""
        return self.finite and (limit is None or self.norm <= limit)


@dataclass(slots=True)
class StepPass:
    """A request to run the step over `batches` inside `within`, and to fill in `outcome`."""

    purpose: Purpose
    batches: Sequence[Any]
    within: Sequence[AbstractContextManager[Any]] = ()
    observer: PassObserver | None = None
    outcome: Outcome = field(default_factory=Outcome)


class PassObserver:
    """Receives the two events of a pass that only its runner sees."""

    def backward_begins(self, roots: Sequence[Tensor], components: Mapping[str, Tensor]) -> None:
        """The forward pass is complete; `roots` are the losses (scaled, with a scaler)."""

    def gradients_ready(self, parameters: Sequence[Tensor]) -> None:
        """Called before the optimizer steps and before clipping."""


# The failing step itself.

SampleNames = Callable[[int, Sequence[int]], Sequence[Any]]
"""(batch, rows) → their data set indices; empty if unknown."""


@dataclass(slots=True)
class FailingStep:
    """Everything an investigation may read. The runner of the passes restores random state,
    buffers, scaler, schedules and gradients before each pass; the optimizers never update a
    weight."""

    models: Sequence[nn.Module]
    optimizers: Sequence[Optimizer]
    batches: Sequence[Any]
    """The batches of this step: several with gradient accumulation."""
    names: Mapping[int, str]
    """Paths of the parameters in the model, by `id`."""
    step: int = 0
    symptom: Literal["nonfinite", "spike"] = "nonfinite"
    scaler: GradScaler | None = None
    limit: float | None = None
    """For a spike: the gradient norm that was allowed."""
    usual: Mapping[str, float] = field(default_factory=dict)
    """Usual values, if known: `loss`, `loss/<component>` and `grad_norm/<parameter>`."""
    data: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors from which a loop without a loader builds its batches, by the user's names."""
    sample_names: SampleNames | None = None
    inexact: str = ""
    """Why a pass may differ from the step that failed, so that a success proves nothing; empty if
    it does not differ."""
    gentle: bool = False
    """An exception in a pass would end the training: only remedies that cannot raise are tried."""


# Agreement among the ranks that investigate a step together. Every rank makes the same calls in the
# same order.

T = TypeVar("T")
GatherFromRanks = Callable[[T], Sequence[T]]
"""Gathers a value from every rank, in rank order; with one rank, a list of the value."""

STANDS_OUT = 2.0
"""A rank causes a spike if its gradient norm exceeds the next one by this factor."""


class RankAgreement:
    """The ranks, as seen from one of them."""

    def __init__(self, agree: GatherFromRanks[Any], rank: int) -> None:
        self._agree = agree
        self._rank = rank
        self.ranks = 1
        """Number of ranks; known from the first answer, on which every investigation begins."""
        self.guilty: int | None = None
        """The rank where the non-finite value originates; None: unknown, or all ranks."""
        self.also: dict[int, Origin] = {}
        """Origins of other ranks in the same step."""

    @property
    def decides(self) -> bool:
        """Whether all ranks take over the results of this one."""
        return self._rank == (self.guilty or 0)

    @property
    def blamed(self) -> bool:
        """Whether this rank has an origin."""
        return self.guilty in (None, self._rank) or self._rank in self.also

    @property
    def own_origin(self) -> Origin | None:
        """The origin of this rank, if another rank decides."""
        return self.also.get(self._rank)

    @property
    def one_is_to_blame(self) -> bool:
        """Whether the samples of a single rank can be the cause."""
        return self.ranks == 1 or (self.guilty is not None and not self.also)

    def everywhere(self, value: bool) -> bool:
        answers = self._agree(value)
        self.ranks = len(answers)
        return all(answers)

    def decide(self, value: T) -> T:
        """The value of the rank that decides."""
        values: Sequence[T] = self._agree(value)
        return values[0] if len(values) == 1 else values[self.guilty or 0]

    def well(self, outcome: Outcome, limit: float | None) -> bool:
        """Whether the optimizer would step."""
        return self.everywhere(outcome.cured(limit))

    def an_error(self, outcome: Outcome) -> str:
        """Why the step did not complete, from the first rank that knows."""
        errors = sorted(filter(None, self._agree(outcome.error)), key=FAILED_ON_OTHER_RANK.__eq__)
        return errors[0] if errors else "no loss was computed"

    def agree_on_origins(self, origins: tuple[Origin, ...], outcome: Outcome) -> tuple[Origin, ...]:
        """The origins of the rank where the non-finite value originates; sets `guilty`."""
        bad = not all(map(math.isfinite, (*outcome.losses, outcome.made)))
        gathered: Sequence[tuple[tuple[Origin, ...], bool]] = self._agree((origins, bad))
        if len(gathered) == 1:
            return origins
        # Writes of a collective are not traced, so a rank without an origin may find some too.
        certain = [rank for rank, (_, theirs) in enumerate(gathered) if theirs] or range(
            len(gathered)
        )
        made = [rank for rank in certain if gathered[rank][0]]
        if made or len(certain) == 1:
            self.guilty = [*made, *certain][0]
        self.also = {rank: gathered[rank][0][0] for rank in made[1:]}
        return gathered[self.guilty or 0][0] if made else ()

    def find_spike(self, spike: Spike | None, made: float) -> Spike | None:
        """The spike of the rank whose gradient is by far the largest, if there is one."""
        gathered: Sequence[tuple[Spike | None, float]] = self._agree((spike, made))
        if len(gathered) == 1:
            return spike
        second, first = sorted(norm for _, norm in gathered)[-2:]
        largest = max(range(len(gathered)), key=lambda rank: gathered[rank][1])
        if first > STANDS_OUT * second:
            self.guilty = largest
            return gathered[largest][0]
        found = gathered[0][0]  # the samples of one rank do not explain a spike on all
        return None if found is None else Spike(found.component, (), 0, found.layers, found.growth)
