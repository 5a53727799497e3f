"""The checkpoints of a run one after the other, for checks that compare two of them."""

from __future__ import annotations

from typing import Any

from headway.core.records import EventRecord, TensorRecord
from headway.core.saved import Saved
from headway.core.state import remember


@remember
class Succession:
    """The checkpoint that is being told, and the one before it."""

    __slots__ = ("before", "now")

    def __init__(self) -> None:
        self.before: Saved | None = None
        self.now: Saved | None = None

    def announce(self, event: EventRecord) -> None:
        """Another one begins."""
        self.now = Saved.of(event)

    def add(self, record: TensorRecord) -> None:
        """One of its tensors, or one of the running training, which is no concern of ours."""
        if self.now is not None:
            self.now.add(record)

    def pair(self) -> tuple[Saved, Saved] | None:
        """What is told whole by now and the one before, if both are of one model; only once."""
        now, before = self.now, self.before
        if now is not None and now.weights:
            self.before = now
        self.now = None
        if now is None or before is None or not now.follows(before):
            return None
        return now, before

    def to_state(self) -> Any:
        return [self.before, self.now]

    @classmethod
    def from_state(cls, state: Any) -> Succession:
        found = cls()
        found.before, found.now = state
        return found
