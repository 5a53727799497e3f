"""Rare agreements among ranks: which snapshot, which number, whether all is well.

The verdict about a step travels in a reduction of its own; this is for what happens once in a
hundred steps or less.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class Alone:
    """A training of one process."""

    rank = 0
    count = 1

    def from_first(self, value: T) -> T:
        """What rank 0 says."""
        return value

    def all_true(self, value: bool) -> bool:
        """Whether every rank says yes."""
        return value

    def gathered(self, value: T) -> list[T]:
        """What every rank says, in their order."""
        return [value]


class Together(Alone):
    """A training of several processes. Every rank must ask the same questions in the same order."""

    def __init__(self, group: Any = None) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._group = group
        self.rank = dist.get_rank(group)
        self.count = dist.get_world_size(group)

    def from_first(self, value: T) -> T:
        return self.gathered(value)[0]

    def all_true(self, value: bool) -> bool:
        return all(self.gathered(value))

    def gathered(self, value: T) -> list[T]:
        answers: list[Any] = [None] * self.count
        self._dist.all_gather_object(answers, value, group=self._group)
        return answers
