"""Reading facts that may hold anything.

A set-up record comes from a probe of ours, from a run directory of another version, or from a file
somebody edited. A check asks for what it can use and gets None for whatever is not of that kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from headway.core.findings import Where
from headway.core.records import EventRecord, SetupRecord, TensorRecord


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
