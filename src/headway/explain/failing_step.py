"""The failing step: models, batches, passes over it, and agreement among its ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from headway.explain.explanation import Origin, Spike, Trial, Tried
from headway.torch_adapters.optimizer_adapter import gradients_are_scaled

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


class NamedGradients:
    """The gradients of a step by parameter name, without the loss scale."""

    def __init__(self, failing_step: FailingStep) -> None:
        self._failing_step = failing_step

    def parameters(self) -> list[Tensor]:
        """All parameters, each once."""
        of_models = [p for model in self._failing_step.models for p in model.parameters()]
        groups = [g for optimizer in self._failing_step.optimizers for g in optimizer.param_groups]
        of_optimizers = [p for group in groups for p in group["params"]]
        each = {id(p): p for p in (*of_models, *of_optimizers) if not is_lazy(p)}
        return list(each.values())

    def of(self, parameters: Sequence[Tensor]) -> Iterator[tuple[str, Tensor, float]]:
        """(name, gradient, loss scale)."""
        scales = self._scales()
        for position, parameter in enumerate(parameters):
            if parameter.grad is not None:
                name = self._failing_step.names.get(id(parameter), f"parameter {position}")
                yield name, parameter.grad, scales.get(id(parameter), 1.0)

    def _scales(self) -> dict[int, float]:
        """The loss scale, for parameters whose gradients are still scaled."""
        scaler = self._failing_step.scaler
        if scaler is None or not scaler.is_enabled():
            return {}
        factor = scaler.get_scale()
        return {
            id(parameter): factor
            for optimizer in self._failing_step.optimizers
            if gradients_are_scaled(scaler, optimizer)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }


# Agreement among the ranks that investigate a step together. Every rank makes the same calls in the
# same order, and one exchange follows each pass.

T = TypeVar("T")

STANDS_OUT = 2.0
"""A rank causes a spike if its gradient norm exceeds the next one by this factor."""
TRIED: tuple[Tried, ...] = ("not tried", "not cured", "cured")


class RankExchange(Protocol):
    """The exchange among the ranks. A rank computes its value during the exchange: a pass ends
    there, and if it ended early on another rank, it has failed on this one too."""

    def gather(self, value: Callable[[], T]) -> Sequence[T]:
        """What every rank says, in their order."""

    def highest(self, numbers: Callable[[], Sequence[int]]) -> Sequence[int]:
        """The highest of each number."""


class OneRank:
    """A training of one process."""

    def gather(self, value: Callable[[], T]) -> Sequence[T]:
        return [value()]

    def highest(self, numbers: Callable[[], Sequence[int]]) -> Sequence[int]:
        return numbers()


@dataclass(frozen=True, slots=True)
class TraceReport:
    """The traced pass on one rank, and the remedy that this rank would choose."""

    complete: bool
    well: bool
    """Whether the optimizer would step."""
    error: str | None = None
    bad: bool = False
    """Whether a non-finite value originates on this rank."""
    made: float = 0.0
    """Norm of the gradient of this rank alone."""
    origins: tuple[Origin, ...] = ()
    spike: Spike | None = None
    remedies: Sequence[tuple[str, str]] = ()
    """(key, why it is not tried)."""
    bisect: bool = False
    """Whether the failing samples are to be searched for."""
    controls: bool = False
    """Whether there are other weights and batches to run the step with."""


class RankAgreement:
    """The ranks, as seen from one of them."""

    def __init__(self, exchange: RankExchange, rank: int, limit: float | None) -> None:
        self._exchange = exchange
        self._rank = rank
        self._limit = limit
        self.reports: Sequence[TraceReport] = ()
        """Of all ranks, on which every investigation begins."""
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
        return len(self.reports) == 1 or (self.guilty is not None and not self.also)

    @property
    def report(self) -> TraceReport:
        """That of the rank that decides."""
        return self.reports[self.guilty or 0]

    def decide(self, value: T) -> T:
        """The value of the rank that decides."""
        values = self._exchange.gather(lambda: value)
        return values[0] if len(values) == 1 else values[self.guilty or 0]

    def any(self, value: bool) -> bool:
        return bool(self._exchange.highest(lambda: (int(value),))[0])

    def passed(self, outcome: Outcome) -> tuple[bool, bool]:
        """(whether a pass is complete on every rank, whether the optimizer would step)."""
        partial, failing = self._exchange.highest(
            lambda: (int(not outcome.complete), int(not outcome.cured(self._limit)))
        )[:2]
        return not partial, not failing

    def judge(
        self, judged: Callable[[], Trial], outcome: Outcome, *, known: bool
    ) -> tuple[Trial, bool]:
        """(the trial of a remedy as the rank that decides sees it, whether all know the remedy).

        The other ranks only learn whether it worked: the texts come with the explanation.
        """

        def numbers() -> tuple[int, int, int]:
            state = TRIED.index(judged().tried) if self.decides else 0
            return int(not outcome.cured(self._limit)), int(not known), state

        failing, unknown, state = self._exchange.highest(numbers)
        trial = replace(judged(), tried=TRIED[state])
        if failing and trial.tried == "cured":
            trial = replace(trial, tried="not cured", why="another rank still fails")
        return trial, not unknown

    def compare(self, report: Callable[[], TraceReport]) -> None:
        """The reports of all ranks on the traced pass."""
        self.reports = self._exchange.gather(report)

    def an_error(self) -> str:
        """Why the traced pass is not complete, from the first rank that knows."""
        errors = [report.error for report in self.reports if report.error]
        errors.sort(key=FAILED_ON_OTHER_RANK.__eq__)
        return errors[0] if errors else "no loss was computed"

    def find_origins(self) -> tuple[Origin, ...]:
        """The origins of the rank where the non-finite value originates; sets `guilty`."""
        reports = self.reports
        if len(reports) == 1:
            return reports[0].origins
        # Writes of a collective are not traced, so a rank without an origin may find some too.
        everyone = range(len(reports))
        certain = [rank for rank in everyone if reports[rank].bad] or everyone
        made = [rank for rank in certain if reports[rank].origins]
        if made or len(certain) == 1:
            self.guilty = [*made, *certain][0]
        self.also = {rank: reports[rank].origins[0] for rank in made[1:]}
        return self.report.origins if made else ()

    def find_spike(self) -> Spike | None:
        """The spike of the rank whose gradient is by far the largest, if there is one."""
        if len(self.reports) == 1:
            return self.reports[0].spike
        norms = [report.made for report in self.reports]
        second, first = sorted(norms)[-2:]
        if first > STANDS_OUT * second:
            self.guilty = norms.index(first)
            return self.report.spike
        found = self.reports[0].spike  # the samples of one rank do not explain a spike on all
        return None if found is None else Spike(found.component, (), 0, found.layers, found.growth)
