"""The table of a step with one row per rank, and the checksums that ranks compare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headway.core.numbers import round_digits
from headway.core.records import Column
from headway.torch_adapters.nonfinite_scan import batch_tensors

# Checksums that ranks compare: of weights that must be equal, of batches that must not be.

# Bit for bit and order-blind within a tensor: the bits of the elements as integers, added up. The
# last 24 bits are kept, which is what a float32 carries exactly, so a checksum travels among the
# other numbers of a step. No device is waited for.

WEIGHT_CHECK_INTERVAL = 100
"""Steps between two comparisons of the weights: each is a pass over them."""
MAX_CHECKSUM_ELEMENTS = 1 << 16
"""Of a batch's tensor, so many elements are looked at: enough to tell two batches apart."""
_BITS = (1 << 24) - 1
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum_tensors(tensors: Iterable[Tensor], device: torch.device) -> Tensor | None:
    """One number for all of them, a float32 on the device; None when there is nothing to add."""
    sums = [total for tensor in tensors if (total := _bit_sum(tensor)) is not None]
    if not sums:
        return None
    stacked = torch.stack([total.to(device, non_blocking=True) for total in sums])
    # Odd factors, so that two tensors that changed places are noticed.
    factors = torch.arange(1, 2 * len(sums), 2, dtype=torch.int64)
    mixed = (stacked * factors.to(device, non_blocking=True)).sum()
    return torch.bitwise_and(mixed ^ (mixed >> 24), _BITS).to(torch.float32)


def checksum_batches(batches: Sequence[Any], device: torch.device) -> Tensor | None:
    """One number for the batches of a step; None when they hold no tensor."""
    return checksum_tensors(
        (_head(tensor) for batch in batches for tensor in batch_tensors(batch)), device
    )


def _head(tensor: Tensor) -> Tensor:
    if tensor.is_sparse or tensor.numel() <= MAX_CHECKSUM_ELEMENTS or not tensor.is_contiguous():
        return tensor
    return tensor.view(-1)[:MAX_CHECKSUM_ELEMENTS]


def _bit_sum(tensor: Tensor) -> Tensor | None:
    values = tensor.detach()
    if values.is_sparse:
        values = values.coalesce().values()
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.dtype is torch.bool:
        values = values.to(torch.int8)
    integer = _INTEGERS.get(values.element_size())
    if integer is None or values.numel() == 0 or values.layout is not torch.strided:
        return None
    return values.contiguous().view(integer).sum(dtype=torch.int64)


# The table of a step: a row per rank, read by the host.

# Each rank fills the row that is its own; the reduction of `ballot.py` brings the rows together.
# The host needs the table only now and then and when something is wrong; at every other step the
# last columns, summed up, are enough.

UNKNOWN = -1.0
"""In a place whose number was not measured; none of those that may be missing is negative."""


class RankField(IntEnum):
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


MISSING = {RankField.MADE, RankField.CLIP, RankField.BATCH, RankField.WEIGHTS, RankField.SECONDS}
"""Places that hold `UNKNOWN` where nothing was measured; the others hold 0 then."""
CALLS = slice(RankField.LEAVE, RankField.OFF + 1)
"""What the host must hear of at every step, added up over the ranks."""

COLUMNS = {
    "rank/loss": RankField.LOSS,
    "rank/grad_norm": RankField.MADE,
    "rank/step_time_s": RankField.SECONDS,
    "rank/weights_hash": RankField.WEIGHTS,
    "rank/batch_hash": RankField.BATCH,
    "rank/clip_norm": RankField.CLIP,
}
NONFINITE = "rank/nonfinite"


class RankTable:
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
        width = len(RankField)
        return [flat[at : at + width] for at in range(0, len(flat), width)]

    def count(self, call: RankField) -> int:
        """How many ranks said so."""
        return int(self._calls[call - RankField.LEAVE])

    def who(self, call: RankField) -> list[int]:
        """The ranks that said so."""
        if not self.count(call):
            return []
        return [at for at, row in enumerate(self.rows) if row[call]]

    def culprits(self) -> list[int]:
        """The ranks that made something non-finite, by themselves and before anybody else."""
        passes = [row[RankField.FIRST] for row in self.rows if row[RankField.FIRST] > 0]
        first = min(passes, default=0.0)
        return [
            at
            for at, row in enumerate(self.rows)
            if not math.isfinite(row[RankField.LOSS]) or (first and row[RankField.FIRST] == first)
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
        blind = not culprits and any(row[RankField.MADE] == UNKNOWN for row in self.rows)
        if blind or not ranks:
            return {}
        return {NONFINITE: Column([float(at in culprits) for at in ranks], list(ranks))}

    def _known(self, at: int, slot: RankField) -> bool:
        row = self.rows[at]
        return bool(row[RankField.LOSSES]) if slot is RankField.LOSS else row[slot] != UNKNOWN


def _written(number: float, slot: RankField) -> float:
    return number if slot in (RankField.BATCH, RankField.WEIGHTS) else round_digits(number)
