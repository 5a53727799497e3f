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

# Ranks compare checksums of weights, which must be equal, and of batches, which must differ. A
# checksum is the sum of the elements' bits as integers. Its last 24 bits fit a float32 exactly, so
# that it travels with the other numbers of a step, without a wait for the device.

WEIGHT_CHECK_INTERVAL = 100
"""Steps between two comparisons of the weights: each is a pass over them."""
MAX_CHECKSUM_ELEMENTS = 1 << 16
"""Number of elements of a batch's tensor that are read: enough to distinguish two batches."""
_BITS = (1 << 24) - 1
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum_tensors(tensors: Iterable[Tensor], device: torch.device) -> Tensor | None:
    """One number for all tensors, a float32 on the device; None without any elements."""
    sums = [total for tensor in tensors if (total := _bit_sum(tensor)) is not None]
    if not sums:
        return None
    stacked = torch.stack([total.to(device, non_blocking=True) for total in sums])
    # Odd factors, so that the order of the tensors matters.
    factors = torch.arange(1, 2 * len(sums), 2, dtype=torch.int64)
    mixed = (stacked * factors.to(device, non_blocking=True)).sum()
    return torch.bitwise_and(mixed ^ (mixed >> 24), _BITS).to(torch.float32)


def checksum_batches(batches: Sequence[Any], device: torch.device) -> Tensor | None:
    """One number for the batches of a step; None when they contain no tensor."""
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


# Each rank fills its own row; the reduction in `rank_vote.py` joins the rows. The host needs the
# table only at samples and at bad steps; otherwise the sums of the last columns are enough.

UNKNOWN = -1.0
"""Stands for a number that was not measured; no number that may be missing is negative."""


class RankField(IntEnum):
    """The columns of the table. The host knows those from `SECONDS` on."""

    LOSS = 0
    PLAIN = 1
    """Norm of the gradients that every rank has in full, after they were averaged; non-finite
    also where the user's clipping is."""
    SHARD = 2
    """Norm of the shards of gradients on this rank."""
    MADE = 3
    """Norm of this rank's own gradient, before it was averaged."""
    FIRST = 4
    """The first backward pass of the step, from 1, that made it non-finite; 0: none."""
    SKIPPED = 5
    """A GradScaler found an overflow."""
    CLIP = 6
    """The norm that the user's clipping used."""
    BATCH = 7
    WEIGHTS = 8
    SECONDS = 9
    """The time this rank needed, before it waited for the others."""
    LOSSES = 10
    """1 where there was a loss. The columns below are 0 or 1 too."""
    LEAVE = 11
    """This rank has received a signal to leave."""
    SAVE = 12
    """A snapshot on disk is due."""
    POISONED = 13
    """The rank has found a non-finite weight or moment."""
    IDLE = 14
    """No parameter had a gradient."""
    ONCE_ONLY = 15
    """The rank could not run this step again if it were bad."""
    OFF = 16
    """The guard of the rank has failed."""


MISSING = {RankField.MADE, RankField.CLIP, RankField.BATCH, RankField.WEIGHTS, RankField.SECONDS}
"""Columns that are `UNKNOWN` where nothing was measured; the others are 0 then."""
CALLS = slice(RankField.LEAVE, RankField.OFF + 1)
"""Columns whose sums over the ranks the host reads at every step."""

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
    """What the ranks reported at one step."""

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
        """How many ranks have set this column."""
        return int(self._calls[call - RankField.LEAVE])

    def who(self, call: RankField) -> list[int]:
        """The ranks that have set this column."""
        if not self.count(call):
            return []
        return [at for at, row in enumerate(self.rows) if row[call]]

    def culprits(self) -> list[int]:
        """The ranks that made something non-finite by themselves, in the first pass that did."""
        passes = [row[RankField.FIRST] for row in self.rows if row[RankField.FIRST] > 0]
        first = min(passes, default=0.0)
        return [
            at
            for at, row in enumerate(self.rows)
            if not math.isfinite(row[RankField.LOSS]) or (first and row[RankField.FIRST] == first)
        ]

    def columns(self, ranks: Sequence[int]) -> dict[str, Column]:
        """The measurements of these ranks."""
        found = {}
        for name, slot in COLUMNS.items():
            known = [at for at in ranks if self._known(at, slot)]
            if known:
                found[name] = Column([_written(self.rows[at][slot], slot) for at in known], known)
        return found

    def nonfinite(self, ranks: Sequence[int]) -> dict[str, Column]:
        """The column that names the culprits; nothing where they cannot be known."""
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
