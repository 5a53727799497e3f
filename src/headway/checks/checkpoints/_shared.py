"""What is wrong with a checkpoint file, as its reader reports it in an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.facts import Facts
from headway.core.records import EventRecord


@dataclass(frozen=True, slots=True)
class CheckpointProblem:
    """A file, a message, and what else is known."""

    path: str | None
    message: str | None
    evidence: Mapping[str, Any]

    @classmethod
    def of(cls, record: EventRecord) -> CheckpointProblem:
        """The problem that the event describes."""
        facts = Facts.of(record)
        path = facts.text("path")
        more = {
            str(key): value
            for key, value in record.data.items()
            if key not in ("message", "path") and str(key).isidentifier()
        }
        return cls(path, facts.text("message"), {"path": path, **more})

    @property
    def subject(self) -> str:
        """Another message about the same file is another finding."""
        return f"{self.path} {self.message}"
