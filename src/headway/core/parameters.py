"""The model's parameters as the set-up facts describe them (topic `parameters`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.records import SetupRecord

LISTED = 20
"""No list of names in a finding is longer; its full length is given beside it."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Names, sizes, and who is what. A role that the source did not look at is None."""

    names: Sequence[str]
    numel: Sequence[int]
    trainable: frozenset[int] | None
    optimized: frozenset[int] | None
    norm_or_bias: frozenset[int] | None

    @classmethod
    def of(cls, record: SetupRecord) -> Parameters | None:
        """The parameters a set-up record describes; None when it is about something else."""
        if record.topic != "parameters":
            return None
        facts = record.facts
        return cls(
            names=facts.get("names", ()),
            numel=facts.get("numel", ()),
            trainable=_positions(facts.get("trainable")),
            optimized=_positions(facts.get("optimized")),
            norm_or_bias=_positions(facts.get("norm_or_bias")),
        )

    def name(self, position: int) -> str:
        """One parameter's name; its position where the source gave none."""
        return self.names[position] if position < len(self.names) else f"param[{position}]"

    def listed(self, positions: Iterable[int]) -> list[str]:
        """The names of the first few, for the evidence."""
        return [self.name(position) for position in sorted(positions)[:LISTED]]

    def elements(self, positions: Iterable[int]) -> int:
        """How many numbers they hold, as far as the sizes are known."""
        return sum(self.numel[position] for position in positions if position < len(self.numel))


def some(items: Collection[Any], most: int = 3) -> str:
    """A list for a sentence: `a, b, c and 4 more`."""
    shown = ", ".join(str(item) for item in list(items)[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def _positions(value: Any) -> frozenset[int] | None:
    return None if value is None else frozenset(value)
