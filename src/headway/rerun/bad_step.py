"""A bad step that may be run again, and what is known when it is launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from headway.core.bound import LARGEST
from headway.explain.explanation import Origin
from headway.explain.failing_step import FailingStep, SampleNames
from headway.rerun.protocol import RerunHost, why_inexact
from headway.rerun.recorded_batch import RecordedBatch
from headway.torch_adapters.rng import RngState

if TYPE_CHECKING:
    from headway.rerun.strategies.loop_follower import LoopIteration


@dataclass(slots=True)
class BadStep:
    """A bad step that waits to be run again."""

    step: int
    symptom: str
    batches: Sequence[RecordedBatch]
    before: RngState | None
    """The random numbers before its first batch; None if no batch was recorded."""
    scale: Tensor | None
    limit: float | None
    parameters: Sequence[Tensor] = ()
    """Parameters whose gradients were bad; empty: any."""
    inexact: str = ""
    """Why the step cannot be run again exactly as it was; empty: it can."""
    iteration: LoopIteration | None = None
    """The iteration of its loop, if the loop makes its own data."""
    by_scaler: bool = False
    """A GradScaler skipped it, perhaps only because it searches for a scale."""
    sample_names: SampleNames | None = None
    """Names of the samples in the data set; unset: the indices that its loader shows."""

    @property
    def framework_runs(self) -> bool:
        """Whether a framework knows how to run every batch of the step."""
        return bool(self.batches) and all(kept.run is not None for kept in self.batches)

    def as_failing_step(
        self, host: RerunHost, *, may_raise: bool = True, data: Mapping[str, Tensor] | None = None
    ) -> FailingStep:
        """The step in the form in which it is investigated."""
        return FailingStep(
            models=host.models,
            optimizers=host.optimizers,
            batches=[kept.batch for kept in self.batches],
            names=host.parameter_names(),
            step=self.step,
            symptom="spike" if self.symptom == "spike" else "nonfinite",
            scaler=host.scaling.scaler,
            limit=self.limit,
            usual=host.usual(),
            data=data or {},
            sample_names=self.sample_names or _sample_names(self.batches),
            gentle=not may_raise,
            inexact=self.inexact or why_inexact(host),
        )


def is_bad_input(origin: Origin) -> bool:
    """Whether no op made the value: it was in the script's data before the step."""
    if origin.output is not None or not origin.inputs:
        return False
    return origin.inputs[0].role in ("carried", "batch")


def _sample_names(batches: Sequence[RecordedBatch]) -> SampleNames:
    def names(which: int, rows: Sequence[int]) -> Sequence[Any]:
        if not batches:
            return ()
        # A step may have more backward passes than batches.
        indices = batches[min(which, len(batches) - 1)].indices()
        return [indices[row] for row in rows] if rows and max(rows) < len(indices) else ()

    return names


@dataclass(frozen=True, slots=True)
class MissedStep:
    """A bad step that was not run again."""

    step: int
    parameters: Sequence[Tensor] = ()
    why: str = ""
    """The reason, if the loop is the reason."""
    lost: bool = False
    """The training halts: no step follows that could explain it."""
    recorded: bool = False
    """Its batches were recorded: the loop is over guard(…) already."""


@dataclass(slots=True)
class StepContext:
    """The facts that the host has about a step when it launches it."""

    step: int
    parameters: Sequence[Tensor]
    """Parameters that had a gradient, in the optimizer's order."""
    lr: float
    started: float
    sampled: bool
    limit: float = LARGEST
    """The bound on the gradient norm; known on the host only if it was exceeded."""
    values: dict[str, float] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    updated: Sequence[Tensor] = ()
    buffers: Sequence[int] = ()
    batches: Sequence[RecordedBatch] = ()
    rates: Sequence[float] = ()
    nonfinite_counts: tuple[int, int] | None = None
    unseen: bool = False
    """Non-finite values that neither loss nor norm shows: a line search, clipping by NaN."""
    scale: Tensor | None = None
    """The loss scale of the step, on its device."""
    before: RngState | None = None
    """The random numbers before the step, if it may be run again."""
    iteration: LoopIteration | None = None
    """The iteration of its loop, if the loop makes its own data."""
    again: bool = True
    """Whether every rank has what it needs to run the step again."""
    held: bool = False
    """The host skipped the update; a fused kernel's own verdict comes with the readings."""

    def as_bad_step(
        self, parameters: Sequence[Tensor], inexact: str, *, spike: bool, by_scaler: bool
    ) -> BadStep:
        return BadStep(
            self.step,
            "spike" if spike else "nonfinite",
            self.batches,
            self.before,
            self.scale,
            self.limit if spike else None,
            parameters,
            inexact,
            self.iteration,
            by_scaler=by_scaler,
        )
