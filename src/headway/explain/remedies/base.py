"""The interface of a remedy: a change that is active while the failing step is re-run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from headway.core.findings import SourceEdit
from headway.explain.failing_step import FailingStep


class StepRemedy(ABC):
    """A change that the user could make, applied to one pass from outside.

    Subclasses define `key` and `text`. Leaving `applied` must undo everything, also after an
    exception.
    """

    key: str
    keepable: bool = False
    """It can stay active for the rest of the training at little cost."""
    safe: bool = False
    """It cannot raise in the user's code: shapes and dtypes do not change."""
    why_not: str = ""
    """Why it cannot be tested on this step; empty if it can."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What to do, in the imperative and with the user's names."""

    @property
    def edits(self) -> tuple[SourceEdit, ...]:
        """The same as a change of the source; empty if it cannot be written as one."""
        return ()

    @property
    def engaged(self) -> bool:
        """Whether it changed anything in the pass; otherwise a success proves nothing."""
        return True

    @abstractmethod
    def applied(self, failing_step: FailingStep) -> AbstractContextManager[None]:
        """Active for one pass."""

    def batches(self, failing_step: FailingStep) -> Sequence[Any]:
        """The batches of the pass."""
        return failing_step.batches

    def keep(self, failing_step: FailingStep) -> Callable[[], None]:
        """Active from now on; the returned function undoes it. Only if `keepable`."""
        raise ValueError(f"{self.key} cannot stay active")


class Advice(StepRemedy):
    """Advice that cannot be tested on the failing step."""

    def __init__(self, key: str, text: str, why_not: str) -> None:
        self.key = key
        self.why_not = why_not
        self._text = text

    @property
    def text(self) -> str:
        return self._text

    def applied(self, failing_step: FailingStep) -> AbstractContextManager[None]:
        return nullcontext()
