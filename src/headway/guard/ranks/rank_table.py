"""The table of a step with one row per rank, and the checksums that ranks compare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headway.core.numbers import round_digits
from headway.core.records import Column
from headway.torch_adapters.tensor_values import batch_tensors

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
# Beyond 64 ranks the table has 64 rows, which the ranks fill one group after the other, so that
# the reduction stays as small as it is; sums over all ranks then carry the verdict, and name up to
# two ranks by the count, the sum and the sum of squares of their numbers.

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


_WIDTH = len(RankField)

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


MAX_TABLE_RANKS = 64
"""Rows of the table."""
_PASSES = 8
"""Backward passes of a step that are distinguished beyond 64 ranks."""
_BAD_LOSS, _POISONED = 0, _PASSES + 1
"""Sets of ranks that are named by sums: a bad loss, bad from pass 1 … 8 on, poisoned."""
_SETS = _PASSES + 2


class TableLayout:
    """The positions of each rank's numbers in the vector that the ranks reduce."""

    def __init__(self, size: int, rank: int, *, alike: bool = True) -> None:
        """`alike`: all ranks have the same parameters, so a replicated norm is that of all."""
        self.size = size
        self.complete = size <= MAX_TABLE_RANKS
        """Whether every rank has a row at every step."""
        # The sum of up to 2**29 equal float32 is exact in float64, and so is their mean.
        self.dtype = torch.float32 if self.complete else torch.float64
        self.floats = size * _WIDTH if self.complete else (MAX_TABLE_RANKS + 1) * _WIDTH + 3 * _SETS
        self.row_floats = min(size, MAX_TABLE_RANKS) * _WIDTH
        self._rank = rank
        self._alike = alike

    def members(self, turn: int) -> Sequence[int]:
        """The ranks that have a row in the reduction of this number; rank 0 always has one."""
        if self.complete:
            return range(self.size)
        others = MAX_TABLE_RANKS - 1
        begin = 1 + turn % -(-(self.size - 1) // others) * others
        return [0, *range(begin, min(begin + others, self.size))]

    def row(self, vector: Tensor) -> Tensor:
        """Where this rank writes its row."""
        if self.complete:
            return vector[self._rank * _WIDTH :][:_WIDTH]
        return vector.new_zeros(_WIDTH, dtype=torch.float32)

    def write(self, vector: Tensor, row: Tensor, turn: int) -> None:
        """Complete a vector of zeros with what the row of this rank says."""
        if self.complete:
            return
        members = self.members(turn)
        if self._rank in members:
            vector[members.index(self._rank) * _WIDTH :][:_WIDTH] = row
        sums = vector[MAX_TABLE_RANKS * _WIDTH :]
        row = row.to(self.dtype)
        for slot in (RankField.LOSS, RankField.SKIPPED, RankField.LOSSES):
            sums[slot] = row[slot]
        sums[CALLS] = row[CALLS]
        sums[RankField.PLAIN] = row[RankField.PLAIN].pow(1 if self._alike else 2)
        sums[RankField.SHARD] = row[RankField.SHARD].square()
        sets = row.new_zeros(_SETS)
        sets[_BAD_LOSS] = ~torch.isfinite(row[RankField.LOSS])
        passes = torch.arange(1, _PASSES + 1, device=row.device)
        sets[1 : _PASSES + 1] = passes == row[RankField.FIRST].clamp(max=_PASSES)
        sets[_POISONED] = row[RankField.POISONED]
        powers = torch.tensor([1.0, self._rank, self._rank**2], dtype=self.dtype)
        powers = powers.to(row.device, non_blocking=True)
        sums[_WIDTH : _WIDTH + 3 * _SETS] = (sets[:, None] * powers).reshape(-1)

    def verdict(self, vector: Tensor, *, sharded: bool) -> dict[str, Tensor]:
        """`total`, the sum of all losses and their number, `skip` and the sums of `CALLS`."""
        if self.complete:
            table = vector[: self.floats].view(self.size, _WIDTH)
            total = table[:, RankField.PLAIN].amax()
            if sharded:
                shards = table[:, RankField.SHARD]
                total = torch.linalg.vector_norm(torch.cat([total[None], shards]))
            return {
                "total": total,
                "loss": table[:, RankField.LOSS].sum(),
                "losses": table[:, RankField.LOSSES].sum(),
                "skip": table[:, RankField.SKIPPED].amax() > 0,
                "calls": table[:, CALLS].sum(dim=0),
            }
        sums = vector[MAX_TABLE_RANKS * _WIDTH :]
        plain = sums[RankField.PLAIN]
        if self._alike:
            plain = (plain / (self.size - sums[RankField.IDLE]).clamp(min=1)).square()
        total = plain.sqrt()
        if sharded:
            total = (plain + sums[RankField.SHARD]).sqrt()
        elif self._alike:  # a root of a square is not exact
            total = sums[RankField.PLAIN] / (self.size - sums[RankField.IDLE]).clamp(min=1)
        return {
            "total": total.to(torch.float32),
            "loss": sums[RankField.LOSS].to(torch.float32),
            "losses": sums[RankField.LOSSES].to(torch.float32),
            "skip": sums[RankField.SKIPPED] > 0,
            "calls": sums[CALLS].to(torch.float32),
        }


class RankTable:
    """The reports of all ranks at one step."""

    def __init__(
        self,
        calls: Sequence[float],
        numbers: Tensor | Sequence[float],
        layout: TableLayout | None = None,
        turn: int = 0,
        rows: Sequence[float] | None = None,
    ) -> None:
        """`calls` are the sums of those columns; `numbers` may still be on the device, while `rows`
        are their first part on the host.

        `turn` is the number of the reduction; without a layout every rank has a row.
        """
        self._calls = calls
        self._numbers = numbers
        self._rows = rows
        self._layout = layout
        self._turn = turn

    @cached_property
    def _flat(self) -> Sequence[float]:
        """Waits for the device, where the numbers are still there."""
        numbers = self._numbers
        flat: Sequence[float] = (
            numbers.reshape(-1).tolist() if isinstance(numbers, Tensor) else numbers
        )
        return flat

    @cached_property
    def rows(self) -> Mapping[int, Sequence[float]]:
        """The row of each rank that has one."""
        layout, flat = self._layout, self._flat if self._rows is None else self._rows
        members = range(len(flat) // _WIDTH) if layout is None else layout.members(self._turn)
        return {rank: flat[at * _WIDTH : (at + 1) * _WIDTH] for at, rank in enumerate(members)}

    @property
    def _complete(self) -> bool:
        return self._layout is None or self._layout.complete

    def _named(self, which: int) -> tuple[int, list[int] | None]:
        """How many ranks are in a set, and which, if there are at most two."""
        start = (MAX_TABLE_RANKS + 1) * _WIDTH + 3 * which
        count, total, squares = map(round, self._flat[start : start + 3])
        if count == 1:
            return 1, [total]
        if count == 2:  # a + b and a² + b² give a and b
            apart = math.isqrt(max(2 * squares - total * total, 0))
            return 2, [(total - apart) // 2, (total + apart) // 2]
        return count, None if count else []

    def count(self, call: RankField) -> int:
        """How many ranks have set this column."""
        return int(self._calls[call - RankField.LEAVE])

    def who(self, call: RankField) -> list[int]:
        """The known ranks that have set this column."""
        if not self.count(call):
            return []
        if not self._complete and call is RankField.POISONED:
            _, named = self._named(_POISONED)
            if named is not None:
                return named
        return [at for at, row in self.rows.items() if row[call]]

    def culprits(self) -> list[int]:
        """The ranks that made something non-finite by themselves, in the first pass that did.

        With more than 64 ranks and more than two culprits, those that have a row.
        """
        if not self._complete:
            named = self._culprits_by_sums()
            if named is not None:
                return named
        passes = [row[RankField.FIRST] for row in self.rows.values() if row[RankField.FIRST] > 0]
        first = min(passes, default=0.0)
        return [
            at
            for at, row in self.rows.items()
            if not math.isfinite(row[RankField.LOSS]) or (first and row[RankField.FIRST] == first)
        ]

    def _culprits_by_sums(self) -> list[int] | None:
        sets = [self._named(_BAD_LOSS)]
        earliest = next((at for at in range(1, _PASSES + 1) if self._named(at)[0]), None)
        if earliest is not None:
            sets.append(self._named(earliest))
        found: set[int] = set()
        for _, ranks in sets:
            if ranks is None:
                return None
            found.update(ranks)
        return sorted(found)

    def columns(self, ranks: Sequence[int]) -> dict[str, Column]:
        """The measurements of those of these ranks that have a row."""
        found = {}
        for name, slot in COLUMNS.items():
            known = [at for at in ranks if at in self.rows and self._known(at, slot)]
            if known:
                found[name] = Column([_written(self.rows[at][slot], slot) for at in known], known)
        return found

    def nonfinite(self, ranks: Sequence[int]) -> dict[str, Column]:
        """The column that names the culprits; nothing where they cannot be known."""
        culprits = set(self.culprits())
        blind = not culprits and any(row[RankField.MADE] == UNKNOWN for row in self.rows.values())
        shown = [at for at in ranks if at in self.rows or at in culprits]
        if blind or not shown:
            return {}
        return {NONFINITE: Column([float(at in culprits) for at in shown], shown)}

    def _known(self, at: int, slot: RankField) -> bool:
        row = self.rows[at]
        return bool(row[RankField.LOSSES]) if slot is RankField.LOSS else row[slot] != UNKNOWN


def _written(number: float, slot: RankField) -> float:
    return number if slot in (RankField.BATCH, RankField.WEIGHTS) else round_digits(number)
