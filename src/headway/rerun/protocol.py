"""What a re-run needs from the guard (`RerunHost`), and what a strategy is (`Rerun`).

`rerun` never imports `guard`: the guard implements `RerunHost`. The controller creates each
strategy for one bad step at one moment, in a fixed order, and takes the first whose `prepare()`
succeeds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.explain.failing_step import Outcome
from headway.policy import Policy
from headway.torch_adapters.optimizer_adapter import LossScaling
from headway.torch_adapters.process_groups.local_collectives import in_a_group
from headway.torch_adapters.process_groups.rank_agreement import SingleProcess
from headway.torch_adapters.saved_state import BufferBackup

if TYPE_CHECKING:
    from headway.rerun.bad_step import BadStep
    from headway.rerun.recorded_batch import RecordedBatch
    from headway.rerun.rerun_group import RerunGroup
    from headway.rerun.strategies.loop_body import FoundLoop


RAN_ALONE = (
    "run again without the other ranks it is finite, so one of them computed the non-finite value: "
    "see its incident"
)


class RerunHost(Protocol):
    """The part of a guarded training that re-runs use."""

    # Fixed for the life of the guard.

    @property
    def models(self) -> Sequence[nn.Module]: ...

    @property
    def optimizers(self) -> Sequence[Optimizer]: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def scaling(self) -> LossScaling: ...

    @property
    def buffers(self) -> BufferBackup:
        """Copies of the buffers from the beginning of the step."""

    @property
    def agreement(self) -> SingleProcess:
        """Rare agreements among the ranks; trivial in a single process."""

    @property
    def rerun_group(self) -> RerunGroup | None:
        """The ranks that run a step again together; None in a single process."""

    # The current step.

    @property
    def step(self) -> int:
        """Number of the current step, counted from 0."""

    @property
    def latest(self) -> RecordedBatch | None:
        """The last batch that was yielded to the loop."""

    @property
    def run_dir(self) -> Path | None:
        """Where incidents are written; None: nowhere."""

    def parameter_names(self) -> Mapping[int, str]:
        """Names of the parameters by their `id`."""

    def usual(self) -> Mapping[str, float]:
        """Loss, its components and gradient norms of the last good step."""

    def stateful(self) -> Iterable[Any]:
        """Objects with a `state_dict` that the user passed to the guard, without the models."""

    def capture_state(self) -> Mapping[str, Any] | None:
        """The training state for an incident file; None where it is sharded."""

    def older_weights(self, step: int) -> Callable[[], AbstractContextManager[None]] | None:
        """Switches to the weights of a snapshot from before this step; None: there is none."""

    # Effects.

    def record_event(self, step: int, kind: str, data: Mapping[str, Any]) -> None:
        """Write an event into the record of the run."""

    def inspect_batches(self, step: int, batches: Sequence[RecordedBatch]) -> None:
        """Report which samples of these batches are non-finite."""

    def exclude_time(self, seconds: float) -> None:
        """Leave this time out of the duration of the step."""


def trained_parameters(host: RerunHost) -> list[Tensor]:
    """Every parameter of the optimizers and the models, each once."""
    groups = [group["params"] for item in host.optimizers for group in item.param_groups]
    models = [list(model.parameters()) for model in host.models]
    return list({id(p): p for parameters in [*groups, *models] for p in parameters}.values())


def why_inexact(host: RerunHost) -> str:
    """Why a step that is run again may differ from the one that failed; empty: it cannot."""
    if host.rerun_group is not None:
        return host.rerun_group.inexact
    return RAN_ALONE if in_a_group() else ""


class ProtectedCalls(Protocol):
    """Runs code of headway so that a defect in it does not stop the training."""

    tripped: bool
    """Whether the guard has switched itself off."""

    def __call__(self, work: Callable[..., Any], *args: Any) -> Any:
        """The result; an error switches the guard off."""

    def spare(self, what: str, work: Callable[..., Any], *args: Any) -> bool:
        """Whether the work succeeded; an error is reported, and the guard continues."""


class RerunMoment(Enum):
    """The moments at which the guard lets the controller run a bad step again."""

    AFTER_STEP = auto()
    """`optimizer.step()` has just returned; the loop body may still be running."""
    STEP_COMPLETE = auto()
    """The loop body is complete, and no frame of the loop is known."""
    NEXT_BATCH = auto()
    """The loop requests its next batch: the guard can yield others instead."""
    NEXT_STEP = auto()
    """The next `optimizer.step()` begins; after it, the weights are different."""
    LAST_STEP = auto()
    """No other step follows."""


class Readiness(NamedTuple):
    """The answer of `Rerun.prepare`."""

    can: bool = False
    why_not: str = ""
    """Why this strategy cannot run the step, for the user; empty: it does not apply."""
    later: bool = False
    """It can, or may, at a later moment: no other strategy is tried now."""


CAN = Readiness(can=True)
LATER = Readiness(later=True)
NOT_APPLICABLE = Readiness()


@dataclass(slots=True)
class RerunCase:
    """A bad step, and the moment at which it may be run again."""

    bad_step: BadStep
    moment: RerunMoment
    frame: FrameType | None
    """A frame inside the training loop; None where it is not known."""
    host: RerunHost
    found_loop: FoundLoop | None = None
    """The loop around `frame`, once a strategy has looked for it."""


class Rerun(ABC):
    """One way to run a bad step again."""

    may_raise: ClassVar[bool] = True
    """Whether the sandbox catches what the step raises; otherwise only safe remedies are tried."""
    needs_proof: ClassVar[bool] = False
    """Whether a first pass must prove that the step which runs is the one that failed."""

    def __init__(self, case: RerunCase) -> None:
        self._case = case
        self._undo: Callable[[], None] | None = None

    @abstractmethod
    def prepare(self) -> Readiness:
        """Find out whether the step can be run, and save what a run would change."""

    @abstractmethod
    def run(self, batches: Sequence[Any]) -> Iterable[Any]:
        """Run forward and backward over these batches; yields the result to the user's loop."""

    @property
    def frame_to_try(self) -> FrameType | None:
        """The frame that has just made the step, if the code that was run is not the whole step."""
        return None

    def undo(self) -> None:
        """Restore what the runs have changed outside of the sandbox."""
        if self._undo is not None:
            self._undo()

    def proof(self, outcome: Outcome) -> str:
        """Why the pass that has just run is not the step that failed; empty: it is."""
        return ""

    def correct_start(self) -> bool:
        """Whether the step may have begun in another state, in which the next run begins."""
        return False

    def inputs(self) -> Mapping[str, Tensor]:
        """Tensors from which the step builds its batch, where it does so itself."""
        return {}

    def bad_inputs(self) -> Mapping[str, Tensor]:
        """The first of the step's own inputs that is non-finite."""
        return {}
