"""The table of a step: a row per rank, read by the host.

Each rank fills the row that is its own; the reduction of `ballot.py` brings the rows together. The
host needs the table only now and then and when something is wrong; at every other step the last
columns, summed up, are enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property

from torch import Tensor

from headway.core.numbers import round_digits
from headway.core.records import Column

UNKNOWN = -1.0
"""In a place whose number was not measured; none of those that may be missing is negative."""


class Slot(IntEnum):
    """A rank's places in its row. Those from `SECONDS` on are known to the host."""

    LOSS = 0
    PLAIN = 1
    """Norm of the gradients that every rank holds whole, after they were averaged; not finite
    either where the user's clipping was not."""
    SHARD = 2
    """Norm of the pieces of gradients that lie on this rank."""
    MADE = 3
    """Norm of this rank's own gradient, before it was averaged with the others'."""
    FIRST = 4
    """The first backward pass of the step, from 1, that made it non-finite; 0: none did."""
    SKIPPED = 5
    """A GradScaler found an overflow."""
    CLIP = 6
    """The norm by which the user clipped."""
    BATCH = 7
    WEIGHTS = 8
    SECONDS = 9
    """The time this rank needed, before it waited for the others."""
    LOSSES = 10
    """1 where there was a loss. So it is with those below."""
    LEAVE = 11
    """This rank was asked to leave."""
    SAVE = 12
    """It is time to write a snapshot to disk."""
    POISONED = 13
    """It found a weight or a moment non-finite."""
    IDLE = 14
    """No parameter had a gradient."""
    ONCE_ONLY = 15
    """It could not run this step again, should it be bad."""
    OFF = 16
    """Its guard has failed."""


MISSING = {Slot.MADE, Slot.CLIP, Slot.BATCH, Slot.WEIGHTS, Slot.SECONDS}
"""Places that hold `UNKNOWN` where nothing was measured; the others hold 0 then."""
CALLS = slice(Slot.LEAVE, Slot.OFF + 1)
"""What the host must hear of at every step, added up over the ranks."""

COLUMNS = {
    "rank/loss": Slot.LOSS,
    "rank/grad_norm": Slot.MADE,
    "rank/step_time_s": Slot.SECONDS,
    "rank/weights_hash": Slot.WEIGHTS,
    "rank/batch_hash": Slot.BATCH,
    "rank/clip_norm": Slot.CLIP,
}
NONFINITE = "rank/nonfinite"


class Tally:
    """What the ranks said at one step."""

    def __init__(self, calls: Sequence[float], table: Tensor | Sequence[float]) -> None:
        """`calls` are the sums of those columns; `table` may still be on the device."""
        self._calls = calls
        self._table = table

    @cached_property
    def rows(self) -> Sequence[Sequence[float]]:
        """A row per rank. Waits for the device, where the table is still there."""
        table = self._table
        flat = table.reshape(-1).tolist() if isinstance(table, Tensor) else table
        width = len(Slot)
        return [flat[at : at + width] for at in range(0, len(flat), width)]

    def count(self, call: Slot) -> int:
        """How many ranks said so."""
        return int(self._calls[call - Slot.LEAVE])

    def who(self, call: Slot) -> list[int]:
        """The ranks that said so."""
        if not self.count(call):
            return []
        return [at for at, row in enumerate(self.rows) if row[call]]

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
