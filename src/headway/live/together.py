"""Rare agreements among ranks: which snapshot, which number, whether all is well.

The verdict about a step travels in a reduction of its own (`ballot.py`); this is for what happens
once in a hundred steps or less, always at the same step on every rank.
"""

from __future__ import annotations

from typing import Any, TypeVar

from headway.errors import RankLost
from headway.live.ranks import LOST

T = TypeVar("T")


class Alone:
    """A training of one process."""

    rank = 0
    count = 1
    group: Any = None
    """The process group for what goes through the host; None for one process."""

    def __init__(self, number: int = 0) -> None:
        """`number` tells it from other processes that train for themselves beside it."""
        self.folder = f"snapshots.rank{number}" if number else "snapshots"
        """Where its snapshots go in the run directory."""

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

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        super().__init__()
        self._dist = dist
        self.rank = dist.get_rank(group)
        self.count = dist.get_world_size(group)
        # Through the host, so that no question waits for the device's queue.
        self.group = dist.new_group(
            dist.get_process_group_ranks(group), backend="gloo", use_local_synchronization=True
        )

    def from_first(self, value: T) -> T:
        return self.gathered(value)[0]

    def all_true(self, value: bool) -> bool:
        return all(self.gathered(value))

    def gathered(self, value: T) -> list[T]:
        answers: list[Any] = [None] * self.count
        try:
            self._dist.all_gather_object(answers, value, group=self.group)
        except RuntimeError as error:
            raise RankLost(f"rank {self.rank} of {self.count} lost the others: {LOST}") from error
        return answers
