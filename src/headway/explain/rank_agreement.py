"""What all ranks agree on while they investigate a step together.

Every rank asks the same questions in the same order.

Every rank asks the same questions in the same order. Alone, a rank agrees with itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headway.explain.explanation import Origin, Spike
from headway.explain.failing_step import FAILED_ON_OTHER_RANK, Outcome

T = TypeVar("T")
GatherFromRanks = Callable[[T], Sequence[T]]
"""What every rank says, in their order; alone, what it is given."""

STANDS_OUT = 2.0
"""Times the next largest from which one rank's gradient is the one that leapt."""


class RankAgreement:
    """The ranks, seen from one of them."""

    def __init__(self, agree: GatherFromRanks[Any], rank: int) -> None:
        self._agree = agree
        self._rank = rank
        self._alone = len(agree(None)) == 1
        self.guilty: int | None = None
        """The rank that made the bad number, of several; None: it is not known, or all did."""
        self.also: dict[int, Origin] = {}
        """Other ranks that made one of their own at the same time."""

    @property
    def speaks(self) -> bool:
        """Whether what is found here is what all say."""
        return self._rank == (self.guilty or 0)

    @property
    def blamed(self) -> bool:
        """Whether a bad number was made here."""
        return self.guilty in (None, self._rank) or self._rank in self.also

    @property
    def own_origin(self) -> Origin | None:
        """The one of this rank, where another speaks of its own."""
        return self.also.get(self._rank)

    @property
    def one_is_to_blame(self) -> bool:
        """Whether the samples of one rank alone can be guilty."""
        return self._alone or (self.guilty is not None and not self.also)

    def everywhere(self, said: bool) -> bool:
        return all(self._agree(said))

    def as_spoken(self, value: T) -> T:
        """What the rank says that speaks for all."""
        said: Sequence[T] = self._agree(value)
        return said[0] if len(said) == 1 else said[self.guilty or 0]

    def well(self, outcome: Outcome, limit: float | None) -> bool:
        """Whether the step would have been taken."""
        return self.everywhere(outcome.cured(limit))

    def an_error(self, outcome: Outcome) -> str:
        """Why the step did not come to its end, on the first rank that knows."""
        errors = sorted(filter(None, self._agree(outcome.error)), key=FAILED_ON_OTHER_RANK.__eq__)
        return errors[0] if errors else "it computed no loss"

    def agree_on_origins(self, births: tuple[Origin, ...], outcome: Outcome) -> tuple[Origin, ...]:
        """Those of the rank that made the bad number; it is guilty from here on."""
        bad = not all(map(math.isfinite, (*outcome.losses, outcome.made)))
        said: Sequence[tuple[tuple[Origin, ...], bool]] = self._agree((births, bad))
        if len(said) == 1:
            return births
        # Memory that a collective writes is filled out of sight: an innocent rank may find births.
        certain = [rank for rank, (_, theirs) in enumerate(said) if theirs] or range(len(said))
        made = [rank for rank in certain if said[rank][0]]
        if made or len(certain) == 1:
            self.guilty = [*made, *certain][0]
        self.also = {rank: said[rank][0][0] for rank in made[1:]}
        return said[self.guilty or 0][0] if made else ()

    def find_spike(self, spike: Spike | None, made: float) -> Spike | None:
        """That of the rank whose own gradient was by far the largest, if there is one."""
        said: Sequence[tuple[Spike | None, float]] = self._agree((spike, made))
        if len(said) == 1:
            return spike
        second, first = sorted(norm for _, norm in said)[-2:]
        largest = max(range(len(said)), key=lambda rank: said[rank][1])
        if first > STANDS_OUT * second:
            self.guilty = largest
            return said[largest][0]
        found = said[0][0]  # no sample of one rank explains what happens on all
        return None if found is None else Spike(found.component, (), 0, found.layers, found.growth)
