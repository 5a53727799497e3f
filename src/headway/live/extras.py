"""What others than the guard have measured about the step that is being made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.core.records import Column


@dataclass(slots=True)
class Extras:
    """Values and columns that join the record of the coming step."""

    values: dict[str, float] = field(default_factory=dict)
    members: dict[str, dict[str, float]] = field(default_factory=dict)
    """Column → name along its axis → value."""
    axes: dict[str, list[str]] = field(default_factory=dict)
    """Names along axes that only extras run along, in the order they came."""

    def value(self, name: str, value: float) -> None:
        """One number of the step; the last one said counts."""
        self.values[name] = value

    def column(self, name: str, members: Mapping[str, float]) -> None:
        """Numbers along an axis (`act/…`), by name."""
        self.members.setdefault(name, {}).update(members)

    def take(self) -> tuple[dict[str, float], dict[str, Column]]:
        """Everything said since the last step."""
        values, members = self.values, self.members
        self.values, self.members = {}, {}
        columns = {}
        for name, found in members.items():
            names = self.axes.setdefault(name.partition("/")[0], [])
            names += [member for member in found if member not in names]
            columns[name] = Column(list(found.values()), [names.index(member) for member in found])
        return values, columns
