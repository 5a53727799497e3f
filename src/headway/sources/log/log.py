"""A log that was read: its numbers, what they mean, and how much of it was understood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headway.core.signals import Signal
from headway.sources.log.table import Table

Unit = Literal["step", "epoch", "row"]
"""What the number of a row counts: optimizer steps, epochs, or, where there is none, rows."""


@dataclass(slots=True)
class Happening:
    """Something a log tells between its numbers: an overflow, a restart, a traceback."""

    row: int
    """How many rows came before it."""
    kind: str
    """`scaler-skip`, `restart`, `exception`, `out-of-memory`, `killed`, `note`."""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Log:
    """What a reader hands over."""

    format: str
    """The reader's name: `hf-trainer`, `megatron`, `tensorboard`, …"""
    path: Path
    table: Table
    unit: Unit = "step"
    signals: dict[str, Signal] = field(default_factory=dict)
    """What the reader knows of a column, by the log's own name for it. A column that is not here is
    described from its rows: a value of its own step, present every so many steps."""
    names: dict[str, str] = field(default_factory=dict)
    """The log's own name → ours, where the general vocabulary (`names.py`) would not guess it; an
    empty string: not a signal at all."""
    lines: int = 0
    """Lines (records, points) there are …"""
    used: int = 0
    """… and those that numbers came from."""
    happenings: list[Happening] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Settings the log itself tells: `max_norm`, `precision`, `logging_steps`, …"""
    notes: list[str] = field(default_factory=list)
    """What a reader of the report should know: torn lines, files joined."""

    @property
    def share(self) -> float:
        """The share of the lines that were used."""
        return self.used / self.lines if self.lines else 0.0
