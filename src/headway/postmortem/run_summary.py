"""What was seen of a run, and several runs of a store or folder in one line each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from headway.core.findings import Severity
from headway.core.records import Record, StepRecord
from headway.report import Report, RunSummary

MAX_RUNS = 50
"""Runs of a store or folder that are diagnosed: the newest ones."""
MIN_LOSSES, MIN_EPOCHS = 8, 5
"""Losses of single steps, and means over epochs, below which nothing can be said of a run."""
BADNESS = ("failed", "findings", "unknown", "interrupted", "healthy")
"""Verdicts, the worst first."""


class LossCollector:
    """Collects the losses and the last segment of a stream of records."""

    def __init__(self) -> None:
        self.segment = 0
        self.steps: list[int] = []
        self.losses: list[float] = []
        self.terms: dict[str, list[int]] = {}
        """The steps of each loss term (`loss/generator`), for runs that have no single loss."""
        self._rank: int | None = None

    def through(self, records: Iterator[Record]) -> Iterator[Record]:
        """The same records, noted on the way."""
        for record in records:
            self.segment = record.segment
            if isinstance(record, StepRecord):
                self._note(record)
            yield record

    def _note(self, record: StepRecord) -> None:
        # Ranks that train together record the same steps.
        if self._rank is not None and record.rank != self._rank:
            return
        if "loss" in record.values:
            self._rank = record.rank
            self.steps.append(record.step)
            self.losses.append(record.values["loss"])
        elif not self.steps:
            for name in record.values:
                if name.startswith("loss/"):
                    self._rank = record.rank
                    self.terms.setdefault(name.removeprefix("loss/"), []).append(record.step)

    def looked_at(self) -> str:
        """How many losses of which steps were read; empty without any."""
        steps, of = self.steps, ""
        if not steps and self.terms:
            names = list(self.terms)
            of = f" of {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
            steps = max(self.terms.values(), key=len)
        if not steps:
            return ""
        losses = "1 loss" if len(steps) == 1 else f"{len(steps)} losses"
        return f"{losses}{of}, steps {min(steps)} to {max(steps)}"

    def too_little(self, *, epochs: bool = False) -> str:
        """Why nothing can be said of a run without findings; empty if enough losses were read."""
        count = len(self.steps) or max(map(len, self.terms.values()), default=0)
        if not count:
            return "no loss was read, so nothing shows whether the run learns"
        if count >= (MIN_EPOCHS if epochs else MIN_LOSSES):
            return ""
        return f"only {self.looked_at()}, were read, too few to judge a run"


K = TypeVar("K")


def _rank(report: Report) -> tuple[int, int]:
    return BADNESS.index(report.verdict), -int(report.worst)


def worst_run(reports: dict[K, Report]) -> K:
    """The key of the worst report; of several, the newest, which is last."""
    return min(reversed(list(reports)), key=lambda key: _rank(reports[key]))


def worst_first(reports: dict[K, Report], lines: dict[K, RunSummary]) -> list[RunSummary]:
    """The lines of all runs, the worst first; of equal ones, the newest first."""
    newest_first = reversed(list(reports))
    return [lines[key] for key in sorted(newest_first, key=lambda key: _rank(reports[key]))]


def summarize_run(name: str, path: Path, report: Report) -> RunSummary:
    """One run in one line."""
    root = report.causes[0].root if report.causes else None
    # A note about the log is no cause of anything.
    loud = root is not None and (root.severity > Severity.INFO or report.verdict == "interrupted")
    return RunSummary(
        name=name,
        verdict=report.verdict,
        steps=max(report.curve[0], default=None) if report.curve else None,
        cause=f"{root.code} {root.name}" if root is not None and loud else "",
        step=root.step if root is not None and loud else None,
        path=str(path),
    )


def count_note(count: int, read: int, shown: str) -> str:
    """How many runs there are, and which of them is shown."""
    left = "" if read == count else f", of which the newest {read} were read"
    return f"{count} runs found{left}; the findings below are those of the worst, {shown}"
