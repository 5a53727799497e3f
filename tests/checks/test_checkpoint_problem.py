"""What is told of a checkpoint that could not be read."""

from __future__ import annotations

from headway.checks.checkpoints._shared import CheckpointProblem
from headway.core.records import EventRecord


def test_all_that_can_be_named_is_evidence() -> None:
    data = {"path": "a.pt", "message": "it is torn", "part": "index", "odd key": 1, "7": 2}
    trouble = CheckpointProblem.of(EventRecord(0, 1, 0, "unreadable-checkpoint", data))
    assert trouble.evidence == {"path": "a.pt", "part": "index"}
    assert trouble.subject == "a.pt it is torn"


def test_an_event_that_tells_nothing() -> None:
    trouble = CheckpointProblem.of(EventRecord(0, 1, 0, "unsafe-pickle", {"path": 3}))
    assert (trouble.path, trouble.message) == (None, None)
