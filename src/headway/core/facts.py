"""Reads set-up facts that may contain anything: typed access, the model's parameters, and which of
them are trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from headway.core.findings import Where
from headway.core.records import EventRecord, SetupRecord, StepRecord, TensorRecord

# Reading facts that may contain anything. A set-up record comes from an observer, from a run
# directory of another version, or from an edited file. A check asks for what it can use and gets
# None for anything of another type.


class Facts:
    """Typed access to a mapping."""

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
        """Whether it exists and is true."""
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
        """The strings of a list."""
        return [item for item in self._list(key) if isinstance(item, str)]

    def lists(self, key: str) -> list[list[float]]:
        """The lists of finite numbers within a list; others are ignored."""
        found = []
        for item in self._list(key):
            inner = Facts({"item": item})
            if isinstance(item, (list, tuple)) and len(inner.numbers("item")) == len(item):
                found.append(inner.numbers("item"))
        return found

    def raw(self, key: str) -> Any:
        """The value of any type, or None."""
        return self._data.get(key)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """A mapping within it; empty if there is none."""
        return self.table(key)._data

    def table(self, key: str) -> Facts:
        """The mapping as a `FactTable`, for typed access."""
        return Facts(self._data.get(key))

    def tables(self, key: str) -> list[Facts]:
        """The mappings of a list."""
        return [Facts(item) for item in self._list(key) if isinstance(item, Mapping)]

    def _list(self, key: str) -> list[Any]:
        value = self._data.get(key)
        return list(value) if isinstance(value, (list, tuple)) else []


# Typed facts: one frozen class per topic of a `SetupRecord`, for the observers that write them and
# the checks that read them; the JSON of a record has the same keys. A fact that is missing or has
# another type reads as None, False or empty: a run directory may come from another version.
# The classes are in `loss_facts.py`, `optimizer_facts.py`, `model_facts.py` and `data_facts.py`;
# `docs/signals.md` explains their fields, and a test compares both.

F = TypeVar("F", bound="FactTable")

Text: TypeAlias = str | None
Number: TypeAlias = float | None
"""A finite number."""
Whole: TypeAlias = int | None
Names: TypeAlias = list[str]
Numbers: TypeAlias = list[float]
Rows: TypeAlias = list[list[float]]
Table: TypeAlias = Mapping[str, Any]
Tables: TypeAlias = list[Table]


@dataclass(frozen=True)
class FactTable:
    """A JSON object with known keys: the facts of a topic, or a part of them."""

    @classmethod
    def read(cls: type[F], data: Any) -> F:
        """The facts in a JSON object; anything that is not of its type is left out."""
        facts = Facts(data)
        kind: Any = cls  # mypy takes no type variable for hashable
        return cls(**{name: read(facts, name) for name, read in _readers(kind).items()})

    @classmethod
    def of(cls: type[F], record: SetupRecord) -> F:
        """The facts of a record."""
        return cls.read(record.facts)


@dataclass(frozen=True)
class Place(FactTable):
    """A line of the user's code."""

    file: Text
    line: Whole
    function: Text

    def where(self, *, rank: int = 0, **known: Any) -> Where:
        """The location for a finding, with what else is known (module, op, sample)."""
        return Where(self.file, self.line, self.function, rank=rank or None, **known)


@dataclass(frozen=True)
class TopicFacts(FactTable):
    """Base of the facts of one topic."""

    topic: ClassVar[str]
    place: Place
    first_step: Whole
    """Where the facts sum up several steps: the first of them."""

    def locate(self, *, rank: int = 0, place: Place | None = None, **known: Any) -> Where:
        """The location for a finding: `place` if its file is known, else the topic's own place."""
        line = self.place if place is None or place.file is None else place
        return line.where(rank=rank, **known)


def _nested(kind: type[FactTable]) -> Callable[[Facts, str], Any]:
    return lambda facts, name: kind.read(facts.raw(name))


def _nested_list(kind: type[FactTable]) -> Callable[[Facts, str], Any]:
    return lambda facts, name: [kind.read(item._data) for item in facts.tables(name)]


def _maybe(read: Callable[[Facts, str], Any]) -> Callable[[Facts, str], Any]:
    return lambda facts, name: read(facts, name) if name in facts else None


_READERS: dict[Any, Callable[[Facts, str], Any]] = {
    Text: Facts.text,
    Number: Facts.number,
    Whole: Facts.whole,
    bool: Facts.flag,
    bool | None: _maybe(Facts.flag),
    Names: Facts.texts,
    Numbers: Facts.numbers,
    Numbers | None: _maybe(Facts.numbers),
    Rows: Facts.lists,
    Table: Facts.mapping,
    Tables: lambda facts, name: [item._data for item in facts.tables(name)],
}


@cache
def _readers(kind: Any) -> dict[str, Callable[[Facts, str], Any]]:
    hints = get_type_hints(kind)
    found = {}
    for item in fields(kind):
        hint = hints[item.name]
        inner = get_args(hint)[0] if get_origin(hint) is list else hint
        if isinstance(inner, type) and issubclass(inner, FactTable):
            found[item.name] = _nested(inner) if inner is hint else _nested_list(inner)
        else:
            found[item.name] = _READERS[hint]
    return found


# Facts that summarise many steps: the finding is placed at the first of these steps.


def onset_record(record: SetupRecord) -> StepRecord:
    """An empty record at the `first_step` of these facts, or at the position of the record."""
    first = Facts.of(record).whole("first_step")
    step = record.step if first is None or first < 0 else min(first, record.step)
    return StepRecord(record.segment, record.seq, step, rank=record.rank)


# The model's parameters as the set-up facts describe them (topic `parameters`).

LISTED = 20
"""Maximum length of a list of names in a finding, which also has the full count."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Names, sizes and roles of the parameters. A role that the source did not record is None."""

    names: Sequence[str]
    numel: Sequence[int]
    trainable: frozenset[int] | None
    optimized: frozenset[int] | None
    norm_or_bias: frozenset[int] | None

    @classmethod
    def of(cls, record: SetupRecord) -> Parameters | None:
        """The parameters that a set-up record describes; None for another topic."""
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
        """The name of a parameter; its position if the source has no name."""
        return self.names[position] if position < len(self.names) else f"param[{position}]"

    def listed(self, positions: Iterable[int]) -> list[str]:
        """The first names, for the evidence."""
        return [self.name(position) for position in sorted(positions)[:LISTED]]

    def elements(self, positions: Iterable[int]) -> int:
        """Number of elements of the tensors whose sizes are known."""
        return sum(self.numel[position] for position in positions if position < len(self.numel))


def say_list(items: Collection[Any], most: int = 3) -> str:
    """A list for a message: `a, b, c and 4 more`."""
    shown = ", ".join(str(item) for item in list(items)[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def _positions(value: Any) -> frozenset[int] | None:
    return None if value is None else frozenset(value)


# Which parameters the optimizer trains, as plain data that a check can store.


def trained_positions(parameters: Parameters) -> list[int]:
    """Positions of parameters that are trainable and in an optimizer, in the order of the axis."""
    roles = (parameters.trainable, parameters.optimized)
    known = [role for role in roles if role is not None]
    return [
        position
        for position in range(len(parameters.names) or len(parameters.numel))
        if all(position in role for role in known)
    ]


def trained_weights(parameters: Parameters) -> dict[int, int]:
    """Position → number of elements of every trained parameter except biases and gains of norms.

    Biases and gains may start at 0 and may have hardly any gradient in a healthy run, so checks of
    sizes use only the weights. Empty if the source does not record the sizes.
    """
    apart = parameters.norm_or_bias or frozenset()
    return {
        position: parameters.numel[position]
        for position in trained_positions(parameters)
        if position not in apart and position < len(parameters.numel)
    }
