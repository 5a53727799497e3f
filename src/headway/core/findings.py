"""A finding of a check: what is wrong, where, and what to do."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.numbers import encode_numbers


class Severity(enum.IntEnum):
    """How severe a finding is; ordered, so that a threshold is a comparison."""

    INFO = 10
    WARNING = 20
    ERROR = 30

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> Severity:
        """The severity with this name, in any case."""
        return cls[text.upper()]


@dataclass(frozen=True, slots=True)
class Where:
    """The location of a finding, as far as known."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    module: str | None = None
    """Module or parameter path: `encoder.layers.3.weight`."""
    op: str | None = None
    rank: int | None = None
    sample: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """All seven keys, known or not."""
        return {name: getattr(self, name) for name in self.__slots__}


CELL = "cell ["
"""How the file of a line in a notebook begins: `cell [2]`."""


def say_line(file: str, line: object = None, column: int | None = None) -> str:
    """`train.py:31`, or `cell [2], line 3` in a notebook; with a column, `train.py:31:5`."""
    if not line:
        return file
    if file.startswith(CELL):
        return f"{file}, line {line}"
    return f"{file}:{line}:{column}" if column else f"{file}:{line}"


def say_module(name: str) -> str:
    """The name of a module; `module 0` if it is only a place in a Sequential."""
    return f"module {name}" if name.replace(".", "").isdigit() else name


@dataclass(frozen=True, slots=True)
class SourceEdit:
    """Replaces the characters from `start` up to `end` of a source file by `new`."""

    file: str
    start: int
    end: int
    new: str
    sha256: str = ""
    """Digest of the file that the positions refer to."""
    lines: str | None = None
    """The lines that it changes, as they were: what shows the edit needs no file for it. None if
    they are too long."""
    column: int = 0
    """Characters of `lines` before `start`."""

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, data: Any) -> SourceEdit | None:
        """The edit that a log or a report contains; None if the data is not a valid edit."""
        needed = {"file", "start", "end", "new", "sha256"}
        if not isinstance(data, Mapping) or not needed <= set(data) <= set(cls.__slots__):
            return None
        edit = cls(**data)
        lines = "" if edit.lines is None else edit.lines
        texts = all(isinstance(text, str) for text in (edit.file, edit.new, edit.sha256, lines))
        numbers = all(type(number) is int for number in (edit.start, edit.end, edit.column))
        valid = texts and numbers and 0 <= edit.start <= edit.end
        return edit if valid and 0 <= edit.column <= edit.start else None


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something to do. `tested`: it was tried on the failing step; `cured`: and worked."""

    text: str
    tested: bool = False
    cured: bool | None = None
    edits: tuple[SourceEdit, ...] = ()
    """The same as a change of the source, if it can be written as one."""
    safe: bool = True
    """Whether the edits keep the mathematics that the user intended."""
    same_loss: bool = False
    """Whether the edits leave the loss of a healthy step unchanged."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "tested": self.tested,
            "cured": self.cured,
            "edits": [edit.to_dict() for edit in self.edits],
            "safe": self.safe,
            "same_loss": self.same_loss,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, with the numbers that show it."""

    code: str
    name: str
    severity: Severity
    step: int | None
    message: str
    where: Where = field(default_factory=Where)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    subject: str = ""
    """What it is about (a component, a tensor): distinguishes findings of one check."""
    segment: int = 0
    seq: int = 0
    count: int = 1
    """How often it occurred."""
    steps: tuple[int, ...] = ()
    """The first steps at which it occurred, if it did more than once."""
    later_segment: int | None = None
    """The segment of its last occurrence, where that is a later one."""

    def __str__(self) -> str:
        """On one line: `error HD101 nonfinite-loss at step 6, train.py:15: loss is NaN`."""
        step = "" if self.step is None else f" at step {self.step}"
        place = f", {say_line(self.where.file, self.where.line)}" if self.where.file else ""
        return f"{self.severity} {self.code} {self.name}{step}{place}: {self.message}"

    def _repr_html_(self) -> str:
        # By name: this module is below those that render.
        notebook = importlib.import_module("headway.output.notebook")
        html: str = notebook.finding_html(self)
        return html

    @property
    def order(self) -> tuple[int, int]:
        """Position in the stream."""
        return (self.segment, self.seq)

    @property
    def last_segment(self) -> int:
        """The segment of its last occurrence."""
        return self.segment if self.later_segment is None else self.later_segment

    @property
    def occurred_at(self) -> tuple[int, ...]:
        """The steps at which it occurred; of very many, the first ones."""
        return self.steps or (() if self.step is None else (self.step,))

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain data, schema 1."""
        return {
            "code": self.code,
            "name": self.name,
            "severity": str(self.severity),
            "step": self.step,
            "where": encode_numbers(self.where.to_dict()),
            "message": self.message,
            "occurrences": {"count": self.count, "steps": list(self.occurred_at)},
            "evidence": encode_numbers(dict(self.evidence)),
            "remedies": [remedy.to_dict() for remedy in self.remedies],
        }


class Findings(list[Finding]):
    """A list of findings that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        notebook = importlib.import_module("headway.output.notebook")
        html: str = notebook.findings_html(self)
        return html


@dataclass(frozen=True, slots=True)
class NotRun:
    """A check that could not run, and why: a missing finding does not mean that all is well."""

    code: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        return {"code": self.code, "reason": self.reason}
