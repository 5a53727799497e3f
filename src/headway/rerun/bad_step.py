"""Data of a step that may be run again, and what becomes of its explanation."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from headway.core.bound import LARGEST
from headway.core.incident_events import INCIDENT
from headway.core.numbers import encode_numbers
from headway.explain import wording
from headway.explain.explanation import Explanation, Trial
from headway.explain.failing_step import FailingStep, SampleNames
from headway.output.notices import Notices, logger
from headway.policy import Policy
from headway.rerun.batch_identity import RecordedBatch
from headway.rerun.host import RerunHost
from headway.torch_adapters.rng import RngState

if TYPE_CHECKING:
    from headway.explain.investigation import InvestigationPlan, InvestigationResult
    from headway.rerun.strategies.self_fed_loop import LoopIteration


# A bad step that can be run again, and how.


@dataclass(slots=True)
class BadStep:
    """A bad step that waits to be looked into."""

    step: int
    symptom: str
    batches: Sequence[RecordedBatch]
    before: RngState | None
    """The random numbers before its first batch; None where nobody handed one out."""
    scale: Tensor | None
    limit: float | None
    parameters: Sequence[Tensor] = ()
    """Those whose gradients were bad; empty: any."""
    inexact: str = ""
    """Why the step cannot be run again just as it was; empty: it can."""
    iteration: LoopIteration | None = None
    """The turn of its loop that it was, where the loop makes its own data."""
    sample_names: SampleNames | None = None
    """What the data set calls the samples; unset, as its loader has told."""

    def named(self) -> SampleNames:
        """What the data set calls the samples."""
        return self.sample_names or _sample_names(self.batches)


def _sample_names(batches: Sequence[RecordedBatch]) -> SampleNames:
    def names(which: int, rows: Sequence[int]) -> Sequence[Any]:
        # A step may have more backward passes than batches.
        indices = batches[min(which, len(batches) - 1)].indices()
        return [indices[row] for row in rows] if rows and max(rows) < len(indices) else ()

    return names


# What becomes of the answer to why a step went bad.

LOOP_KEY = "loop-over-guard"
LOOP_OVER_GUARD = (
    "To have the line named next time, loop over guard(…): over what gives the batches, as in "
    "guard(loader), or over guard(range(n)) where the loop makes them itself."
)


@dataclass(slots=True)
class AppliedRemedy:
    """A remedy that the guard has applied; `undo()` takes it back."""

    step: int
    key: str
    text: str
    undo: Callable[[], None]


class RerunResults:
    """The answers of one guard: told, written down, acted upon."""

    def __init__(self, host: RerunHost, policy: Policy, notices: Notices) -> None:
        self._host = host
        self._policy = policy
        self._notices = notices
        self.found: list[Explanation] = []
        self.cures: list[AppliedRemedy] = []
        self.captured = False
        """Whether the incident is of another run, which has the answer already."""

    def draw(self, incident: BadStep, found: InvestigationResult, scene: FailingStep) -> None:
        """Tell what was found out, write it down, and apply a cure where that is wished."""
        explanation = found.explanation
        self.found.append(explanation)
        if self.captured:
            return
        self._host.record_event(incident.step, INCIDENT, encode_numbers(explanation.to_dict()))
        if self._host.agreement.rank == 0:
            logger.warning("headway: step %s: why: %s", incident.step, explanation.summary)
        self._write_down(incident, explanation)
        if self._policy.cure == "apply":
            self._apply(incident, found, scene)

    def unexplained(self, step: int, why: str) -> None:
        """Tell that a bad step could not be run again, and what would help."""
        if self.captured:
            return
        note = f"the step could not be run again, so its line is not known: {why}"
        help_ = Trial(LOOP_KEY, LOOP_OVER_GUARD)
        told = Explanation(step, "nonfinite", "unknown", notes=(note,), trials=(help_,))
        explanation = wording.add_sentences(told)
        self._host.record_event(step, INCIDENT, encode_numbers(explanation.to_dict()))
        if self._host.agreement.rank == 0:
            said = f"{explanation.headline} {LOOP_OVER_GUARD}"
            logger.warning("headway: step %s: %s", step, said)

    def _write_down(self, incident: BadStep, explanation: Explanation) -> None:
        """The incident into the run directory, where it was born."""
        if incident.before is None:
            return
        folder = self._host.run_dir
        rank = 0 if self._host.rerun_group is None else self._host.agreement.rank
        if folder is None or rank != (explanation.rank or 0):
            return
        capsule = importlib.import_module("headway.explain.incident_file.incident_folder")
        try:
            with ExitStack() as as_given:
                for kept in incident.batches:
                    as_given.enter_context(kept.as_given())
                written = capsule.write_incident(
                    folder,
                    explanation,
                    batches=[kept.batch for kept in incident.batches],
                    rng=incident.before.to_state(),
                    state=self._host.capture_state(),
                    capture=self._policy.capture,
                    rank=rank,
                    limit=incident.limit,
                )
        except (OSError, RuntimeError) as error:
            said = getattr(error, "strerror", None) or str(error).splitlines()[0]
            self._notices.once("incident-disk", f"cannot write the incident down: {said}")
            return
        next_ = "next: headway replay" if incident.batches else "written down:"
        logger.warning("headway: step %s: %s %s", incident.step, next_, written)

    def _apply(self, incident: BadStep, found: InvestigationResult, scene: FailingStep) -> None:
        for remedy in found.cured:
            if remedy.keepable and not any(cure.text == remedy.text for cure in self.cures):
                undo = remedy.keep(scene)
                self.cures.append(AppliedRemedy(incident.step, remedy.key, remedy.text, undo))
                self._host.record_event(
                    incident.step, "cure", {"key": remedy.key, "text": remedy.text}
                )
                logger.warning("headway: step %s: applied: %s", incident.step, remedy.text)
                return


# What the host knows of a step when it launches it.


@dataclass(slots=True)
class StepContext:
    """What the host knows of a step when it launches it."""

    step: int
    parameters: Sequence[Tensor]
    """Those that had a gradient, in the optimizer's order."""
    lr: float
    started: float
    sampled: bool
    limit: float = LARGEST
    """The bound that was enforced on the norm; on the host known only where it was broken."""
    values: dict[str, float] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    updated: Sequence[Tensor] = ()
    buffers: Sequence[int] = ()
    batches: Sequence[RecordedBatch] = ()
    rates: Sequence[float] = ()
    nonfinite_counts: tuple[int, int] | None = None
    unseen: bool = False
    """Something non-finite that neither loss nor norm show: a line search, a clipping by NaN."""
    scale: Tensor | None = None
    """The loss scale of the step, on its device."""
    before: RngState | None = None
    """The random numbers before the step, where somebody may want to run it again."""
    iteration: LoopIteration | None = None
    """The turn of its loop that the step is, where the loop makes its own data."""
    again: bool = True
    """Whether every rank has what it needs to run the step again."""
    held: bool = False
    """The host held the update back; a fused kernel's own verdict comes with the readings."""


@dataclass(frozen=True, slots=True)
class MissedStep:
    """A bad step that could not be run again."""

    step: int
    parameters: Sequence[Tensor] = ()
    why: str = ""
    """Why that is so, where the loop is the reason."""


class PlanResult:
    """A plan's passes, and what it returns when they are done."""

    def __init__(self, plan: InvestigationPlan) -> None:
        self._plan = plan
        self.findings: InvestigationResult | None = None

    def __iter__(self) -> Iterator[Any]:
        self.findings = yield from self._plan

    @property
    def blames_data(self) -> bool:
        """Whether the numbers were bad before the model had them."""
        birth = None if self.findings is None else self.findings.explanation.birth
        return birth is not None and birth.kind == "poisoned-batch"
