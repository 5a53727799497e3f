"""What is wrong with a checkpoint file, as its reader reports it in an event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from headway.core.check import Check
from headway.core.facts import Facts
from headway.core.findings import Finding, Where
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


class CheckpointProblemCheck(Check):
    """Base of checks that report what the reader of a checkpoint found wrong with the file.

    The event has the kind of the check's name.
    """

    unsaid: ClassVar[str]
    """The message of an event without one; `{}` stands for the file."""
    remedies: ClassVar[tuple[str, ...]]

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if record.kind != self.name:
            return
        problem = CheckpointProblem.of(record)
        yield self.find(
            record,
            problem.message or self.unsaid.format(problem.path or "the checkpoint"),
            subject=problem.subject,
            where=Where(file=problem.path),
            remedies=self.remedies,
            **problem.evidence,
        )
