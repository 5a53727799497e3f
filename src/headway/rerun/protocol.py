"""The interface of a strategy that runs a bad step again.

The controller creates each strategy for one bad step at one moment, in a fixed order, and takes the
first whose `prepare()` succeeds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor

from headway.explain.failing_step import Outcome
from headway.rerun.host import RerunHost

if TYPE_CHECKING:
    from headway.rerun.bad_step import BadStep
    from headway.rerun.strategies.loop_body import FoundLoop
    from headway.rerun.strategies.self_fed_loop import SelfFedLoop


class RerunMoment(Enum):
    """When the guard offers the controller to run a bad step again."""

    AFTER_STEP = auto()
    """`optimizer.step()` has just returned; the loop body may still be running."""
    STEP_COMPLETE = auto()
    """The loop body is complete, and no frame of the loop is known."""
    NEXT_BATCH = auto()
    """The loop asks for its next batch: it can be given others instead."""
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
    self_fed_loop: SelfFedLoop
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
        """Run forward and backward over these batches; the result is handed to the user's loop."""

    def undo(self) -> None:
        """Restore what the runs have changed outside of the sandbox."""
        if self._undo is not None:
            self._undo()

    def proof(self, outcome: Outcome) -> str:
        """Why the pass that has just run is not the step that failed; empty: it is."""
        return ""

    def inputs(self) -> Mapping[str, Tensor]:
        """Tensors from which the step builds its batch, where it does so itself."""
        return {}

    def bad_inputs(self) -> Mapping[str, Tensor]:
        """The first of the step's own inputs that is non-finite."""
        return {}
