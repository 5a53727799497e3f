"""What a remedy is: a change that is active while the failing step runs once more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from headway.explain.failing_step import FailingStep


class StepRemedy(ABC):
    """A change to the step that the user could make, made for one pass from outside.

    Subclasses fill in `key` and `text`; nothing of `applied` may be left when it is exited, also
    after an exception.
    """

    key: str
    keepable: bool = False
    """It can stay in force for the rest of the training at little cost."""
    safe: bool = False
    """It cannot raise in the user's code: shapes and dtypes stay what they were."""
    why_not: str = ""
    """Why it cannot be tried on this step; empty where it can."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What the user would do, in the imperative and with the user's own names."""

    @property
    def engaged(self) -> bool:
        """Whether it changed anything in the pass: a step that is fine without it proves
        nothing."""
        return True

    @abstractmethod
    def applied(self, scene: FailingStep) -> AbstractContextManager[None]:
        """In force for one pass."""

    def batches(self, scene: FailingStep) -> Sequence[Any]:
        """The batches of the pass."""
        return scene.batches

    def keep(self, scene: FailingStep) -> Callable[[], None]:
        """In force from now on; what is returned takes it back. Only if `keepable`."""
        raise ValueError(f"{self.key} cannot stay in force")


class Advice(StepRemedy):
    """What is worth doing and cannot be tried on the failing step."""

    def __init__(self, key: str, text: str, why_not: str) -> None:
        self.key = key
        self.why_not = why_not
        self._text = text

    @property
    def text(self) -> str:
        return self._text

    def applied(self, scene: FailingStep) -> AbstractContextManager[None]:
        return nullcontext()
