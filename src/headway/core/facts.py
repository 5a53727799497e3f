"""Reads set-up facts that may hold anything: typed access, the model's parameters, and which of
them are trained.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.findings import Where
from headway.core.records import EventRecord, SetupRecord, StepRecord, TensorRecord

# Reading facts that may hold anything.

# A set-up record comes from a probe of ours, from a run directory of another version, or from a
# file somebody edited. A check asks for what it can use and gets None for whatever is not of that
# kind.


class Facts:
    """A mapping read with care."""

    def __init__(self, data: Any) -> None:
        self._data: Mapping[str, Any] = data if isinstance(data, Mapping) else {}

    @classmethod
    def of(cls, record: SetupRecord | TensorRecord | EventRecord) -> Facts:
        """The facts of a record."""
        return cls(record.data if isinstance(record, EventRecord) else record.facts)

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def text(self, key: str) -> str | None:
        """Text, or None."""
        value = self._data.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> float | None:
        """A finite number, or None."""
        value = self._data.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value) if math.isfinite(value) else None

    def whole(self, key: str) -> int | None:
        """A whole number, or None."""
        value = self._data.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, key: str) -> bool:
        """Whether it is there and true."""
        return self._data.get(key) is True

    def numbers(self, key: str) -> list[float]:
        """The finite numbers of a list."""
        listed = self._list(key)
        return [
            float(item)
            for item in listed
            if isinstance(item, (int, float)) and not isinstance(item, bool) and math.isfinite(item)
        ]

    def texts(self, key: str) -> list[str]:
        """The texts of a list."""
        return [item for item in self._list(key) if isinstance(item, str)]

    def lists(self, key: str) -> list[list[float]]:
        """The lists of finite numbers within a list; others are left out."""
        found = []
        for item in self._list(key):
            inner = Facts({"item": item})
            if isinstance(item, (list, tuple)) and len(inner.numbers("item")) == len(item):
                found.append(inner.numbers("item"))
        return found

    def table(self, key: str) -> Facts:
        """A mapping within it; empty where there is none."""
        return Facts(self._data.get(key))

    def tables(self, key: str) -> list[Facts]:
        """The mappings of a list."""
        return [Facts(item) for item in self._list(key) if isinstance(item, Mapping)]

    def where(self, *, rank: int = 0, place: str = "place", **known: Any) -> Where:
        """The line in `place`, with whatever else is known (module, op, sample).

        Another fact may name the line better; where it is missing, `place` does.
        """
        line = self.table(place if self.table(place).text("file") else "place")
        return Where(
            file=line.text("file"),
            line=line.whole("line"),
            function=line.text("function"),
            rank=rank or None,
            **known,
        )

    def _list(self, key: str) -> list[Any]:
        value = self._data.get(key)
        return list(value) if isinstance(value, (list, tuple)) else []


# Facts that sum up many steps: the finding stands where what they tell of began.


def onset_record(record: SetupRecord) -> StepRecord:
    """An empty record at the `first_step` of these facts, or where they were told."""
    first = Facts.of(record).whole("first_step")
    step = record.step if first is None or first < 0 else min(first, record.step)
    return StepRecord(record.segment, record.seq, step, rank=record.rank)


# The model's parameters as the set-up facts describe them (topic `parameters`).

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


def say_list(items: Collection[Any], most: int = 3) -> str:
    """A list for a sentence: `a, b, c and 4 more`."""
    shown = ", ".join(str(item) for item in list(items)[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def _positions(value: Any) -> frozenset[int] | None:
    return None if value is None else frozenset(value)


# Which parameters the optimizer is meant to train, as plain data a check can keep.


def trained_positions(parameters: Parameters) -> list[int]:
    """Positions that are trainable and held by an optimizer, in the order of the axis."""
    roles = (parameters.trainable, parameters.optimized)
    known = [role for role in roles if role is not None]
    return [
        position
        for position in range(len(parameters.names) or len(parameters.numel))
        if all(position in role for role in known)
    ]


def trained_weights(parameters: Parameters) -> dict[int, int]:
    """Position → number of elements of every trained parameter that is no bias and no norm's gain.

    Biases and gains may start at 0 and may have next to no gradient for good reasons, so questions
    about sizes are asked of the weights only. Empty when the source does not tell the sizes.
    """
    apart = parameters.norm_or_bias or frozenset()
    return {
        position: parameters.numel[position]
        for position in trained_positions(parameters)
        if position not in apart and position < len(parameters.numel)
    }
