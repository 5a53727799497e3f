"""What a scan notes of each checkpoint as its records go by."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from headway.core.facts import Facts
from headway.core.numbers import say
from headway.core.records import EventRecord, Record, TensorRecord
from headway.core.saved import CHECKPOINT, counted, is_bad, is_step_count, short_name
from headway.postmortem.settings import settings_beside

PROBLEMS = ("unreadable-checkpoint", "unsafe-pickle")
_EPOCH = re.compile(r"ep(?:och)?s?[=_\-.]?(\d{1,9})", re.I)
GROWTH = 10.0
"""Times: a norm of all weights that grew by less between two checkpoints is not worth a note."""


@dataclass
class Scanned:
    """One checkpoint that was looked through."""

    path: str
    format: str = ""
    step: int | None = None
    counts: str = "step"
    """What `step` counts: `epoch` where the file tells nothing else."""
    tensors: int = 0
    bytes: int = 0
    nonfinite: int = 0
    """Elements that are NaN or Inf, of weights, buffers and moments."""
    bad_tensors: int = 0
    problems: list[str] = field(default_factory=list)
    square: float = 0.0
    """Of the norm of all weights."""
    elements: int = 0
    bad_elements: int = 0
    """Of the weights."""

    @property
    def clean(self) -> bool:
        """Whether it was read whole, is safe, and holds finite numbers only."""
        return not self.problems and not self.bad_tensors and self.tensors > 0

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.problems:
            return "unsafe" if "unsafe-pickle" in self.problems else "unreadable"
        if self.bad_tensors:
            return "dead" if 0 < self.elements == self.bad_elements else "NaN or Inf"
        return "clean" if self.tensors else "empty"

    def said(self) -> str:
        """For a sentence: `step 400; 123 tensors, all finite`."""
        step = "" if self.step is None else f"{self.counts} {self.step}; "
        return f"{step}{self.tensors} tensors, all finite"

    def to_dict(self) -> dict[str, Any]:
        """As a source of a report."""
        return {
            "path": self.path,
            "format": self.format,
            "step": self.step,
            "tensors": self.tensors,
            "bytes": self.bytes,
            "nonfinite": self.nonfinite,
            "verdict": self.verdict,
            "clean": self.clean,
        }


def _counts(path: str, step: int | None, epoch: int | None) -> str:
    """Whether a checkpoint's step is one, or the epoch in its place."""
    name = Path(path).name
    named = _EPOCH.search(name)
    by_name = named is not None and int(named[1]) == step and "step" not in name.lower()
    return "epoch" if step is not None and (step == epoch or by_name) else "step"


@dataclass
class Watched:
    """Passes the records of a scan on, with the settings beside them, and takes notes."""

    checkpoints: list[Scanned] = field(default_factory=list)

    def through(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, noted."""
        for record in records:
            if isinstance(record, EventRecord):
                yield self._event(record)
            elif isinstance(record, TensorRecord):
                yield self._tensor(record)
            else:
                yield record

    def _event(self, record: EventRecord) -> EventRecord:
        facts = Facts.of(record)
        if record.kind == CHECKPOINT:
            path = facts.text("path") or ""
            found = Scanned(path, facts.text("format") or "", facts.whole("step"))
            found.counts = _counts(path, found.step, facts.table("facts").whole("epoch"))
            found.bytes = facts.whole("bytes") or 0
            found.tensors = facts.whole("tensors") or 0
            self.checkpoints.append(found)
            settings = settings_beside(Path(path)) if path else {}
            return replace(record, data={**record.data, "settings": settings})
        if record.kind in PROBLEMS and self.checkpoints:
            self.checkpoints[-1].problems.append(record.kind)
        return record

    def _tensor(self, record: TensorRecord) -> TensorRecord:
        if not self.checkpoints:
            return record
        found = self.checkpoints[-1]
        if record.role == "weight":
            norm = record.stats.get("norm", 0.0)
            found.square += norm * norm if math.isfinite(norm) else 0.0
            found.elements += counted(record, "numel")
        if is_bad(record):
            bad = counted(record, "nan") + counted(record, "inf")
            found.bad_tensors += 1
            found.nonfinite += bad
            found.bad_elements += bad if record.role == "weight" else 0
        if record.role == "other" and is_step_count(record.name):
            return replace(record, role="moment")  # the optimizer's state, as a check knows it
        return record

    @property
    def last_clean(self) -> Scanned | None:
        """The last one that is clean, in the order of their steps."""
        return next((item for item in reversed(self.checkpoints) if item.clean), None)

    def notes(self) -> list[str]:
        """What is worth knowing and no fault by itself."""
        told = []
        for before, now in pairwise(self.checkpoints):
            first, second = math.sqrt(before.square), math.sqrt(now.square)
            same = before.clean and not now.problems and now.elements == before.elements
            if same and first > 0 and second > GROWTH * first:
                told.append(
                    f"the norm of all weights grew from {say(first)} in {short_name(before.path)} "
                    f"to {say(second)} in {short_name(now.path)}"
                )
        return told
