"""Whether the rows of a batch of sequences end in padding: one id, there and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(slots=True)
class Padding:
    """What was seen of sequences of labels."""

    rows: int = 0
    elements: int = 0
    tails: dict[int, int] = field(default_factory=dict)
    """For each id that rows end in, how much of them it is …"""
    tailed: dict[int, int] = field(default_factory=dict)
    """… in how many rows …"""
    elsewhere: dict[int, int] = field(default_factory=dict)
    """… and how often it is found before that."""
    shortest: dict[int, int] = field(default_factory=dict)
    longest: dict[int, int] = field(default_factory=dict)

    def take(self, grid: Tensor | None, ignored: Any) -> None:
        """Look at rows of labels."""
        if grid is None or grid.ndim != 2 or grid.shape[1] < 3 or self.rows > 4096:
            return
        rows: list[list[int]] = grid[:256].tolist()
        for given in rows:
            # Labels that are shifted by one have one at their end that is left out.
            row = given[:-1] if given[-1] == ignored else given
            last = row[-1]
            if last == ignored:
                continue
            length = 0
            while length < len(row) and row[-1 - length] == last:
                length += 1
            if length == len(row):
                continue
            self.rows += 1
            self.elements += len(row)
            self.tails[last] = self.tails.get(last, 0) + length
            self.tailed[last] = self.tailed.get(last, 0) + 1
            self.shortest[last] = min(self.shortest.get(last, length), length)
            self.longest[last] = max(self.longest.get(last, length), length)
            for label in row[: len(row) - length]:
                if label in self.tails:
                    self.elsewhere[label] = self.elsewhere.get(label, 0) + 1

    def facts(self) -> dict[str, Any]:
        """The id that looks most like padding, if any does."""
        if not self.tails or self.rows < 8:
            return {}
        label = max(self.tails, key=self.tails.__getitem__)
        return {
            "pad_id": label,
            "pad_share": self.tails[label] / self.elements,
            "pad_rows": self.tailed[label] / self.rows,
            "pad_elsewhere": self.elsewhere.get(label, 0) / max(self.elements, 1),
            "pad_shortest": self.shortest[label],
            "pad_longest": self.longest[label],
        }
