"""The table of a step: a row per rank, read by the host.

Each rank fills the row that is its own; the reduction of `ballot.py` brings the rows together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from holdfast.core.numbers import round_digits
from holdfast.core.records import Column

UNKNOWN = -1.0
"""In a place whose number was not measured; none of those that may be missing is negative."""


class Slot(IntEnum):
    """A rank's places in its row. Those from `SECONDS` on are known to the host."""

    LOSS = 0
    PLAIN = 1
    """Norm of the gradients that every rank holds whole, after they were averaged."""
    SHARD = 2
    """Norm of the pieces of gradients that lie on this rank."""
    WHOLE = 3
    """Norm of everything here; not finite where anything is, the user's clipping included."""
    MADE = 4
    """Norm of this rank's own gradient, before it was averaged with the others'."""
    FIRST = 5
    """The first backward pass of the step, from 1, that made it non-finite; 0: none did."""
    SKIPPED = 6
    """A GradScaler found an overflow."""
    CLIP = 7
    """The norm by which the user clipped."""
    BATCH = 8
    WEIGHTS = 9
    SECONDS = 10
    """The time this rank needed, before it waited for the others."""
    LOSSES = 11
    """1 where there was a loss."""
    CALL = 12


MISSING = {Slot.MADE, Slot.CLIP, Slot.BATCH, Slot.WEIGHTS, Slot.SECONDS}
"""Places that hold `UNKNOWN` where nothing was measured; the others hold 0 then."""


class Call(IntFlag):
    """What a rank has to say besides numbers. `OFF` is the largest: so much a device can read."""

    LEAVE = 1
    POISONED = 2
    """A weight or a moment was found non-finite."""
    IDLE = 4
    """No parameter had a gradient."""
    OFF = 8
    """The guard has failed."""


COLUMNS = {
    "rank/loss": Slot.LOSS,
    "rank/grad_norm": Slot.MADE,
    "rank/step_time_s": Slot.SECONDS,
    "rank/weights_hash": Slot.WEIGHTS,
    "rank/batch_hash": Slot.BATCH,
    "rank/clip_norm": Slot.CLIP,
}
NONFINITE = "rank/nonfinite"


@dataclass(frozen=True, slots=True)
class Tally:
    """What the ranks said at one step."""

    rows: Sequence[Sequence[float]]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Tally:
        """From the rows, one behind the other."""
        width = len(Slot)
        return cls([numbers[at : at + width] for at in range(0, len(numbers), width)])

    def who(self, call: Call) -> list[int]:
        """The ranks that said so."""
        return [at for at, row in enumerate(self.rows) if int(row[Slot.CALL]) & call]

    @property
    def all_idle(self) -> bool:
        """Whether the step was none."""
        return len(self.who(Call.IDLE)) == len(self.rows)

    def culprits(self) -> list[int]:
        """The ranks that made something non-finite, by themselves and before anybody else."""
        passes = [row[Slot.FIRST] for row in self.rows if row[Slot.FIRST] > 0]
        first = min(passes, default=0.0)
        return [
            at
            for at, row in enumerate(self.rows)
            if not math.isfinite(row[Slot.LOSS]) or (first and row[Slot.FIRST] == first)
        ]

    def columns(self, ranks: Sequence[int]) -> dict[str, Column]:
        """What was measured on these ranks."""
        found = {}
        for name, slot in COLUMNS.items():
            known = [at for at in ranks if self._known(at, slot)]
            if known:
                found[name] = Column([_written(self.rows[at][slot], slot) for at in known], known)
        return found

    def nonfinite(self, ranks: Sequence[int]) -> dict[str, Column]:
        """The column that names the culprits; nothing where it cannot be known who they are."""
        culprits = set(self.culprits())
        blind = not culprits and any(row[Slot.MADE] == UNKNOWN for row in self.rows)
        if blind or not ranks:
            return {}
        return {NONFINITE: Column([float(at in culprits) for at in ranks], list(ranks))}

    def _known(self, at: int, slot: Slot) -> bool:
        row = self.rows[at]
        return bool(row[Slot.LOSSES]) if slot is Slot.LOSS else row[slot] != UNKNOWN


def _written(number: float, slot: Slot) -> float:
    return number if slot in (Slot.BATCH, Slot.WEIGHTS) else round_digits(number)
