"""What is in a tensor: its numbers, from what was counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headway.checkpoints.counting import PARTS, ROWS, WORD, Tally
from headway.checkpoints.model import SavedTensor
from headway.checkpoints.tallying import dense


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of one tensor."""

    numel: int
    nan: int
    inf: int
    zero: int
    """Of a tensor of more than `ALL_ZEROS` bytes an estimate."""
    min: float
    max: float
    """Extremes of the finite part; NaN where it is empty."""
    norm: float | None
    """Of the finite part; None where nothing is compared with it, …"""
    digest: int | None
    """… as here. Equal bytes give equal digests."""
    first_bad: tuple[int, ...] | None = None
    """Index of the first element that is not finite."""
    bad_rows: list[int] = field(default_factory=list)
    """The first indices along the first axis that hold one."""
    negative_inf: int = 0
    """How many of `inf` are negative: a mask that was saved has only such."""


def measured(tensor: SavedTensor, tally: Tally, digest: bool) -> Measured:
    """The numbers of a whole tensor."""
    indices = [_index(tensor, place) for place in tally.bad]
    first = min(indices) if indices else None
    rows = sorted({index[0] for index in indices if index})[:ROWS]
    empty = tally.least > tally.most
    return Measured(
        numel=tensor.numel,
        nan=tally.nan,
        inf=tally.inf,
        zero=_zeros(tensor, tally),
        min=math.nan if empty else tally.least,
        max=math.nan if empty else tally.most,
        norm=math.sqrt(tally.square) if digest else None,
        digest=tally.digest if digest else None,
        first_bad=first,
        bad_rows=rows,
        negative_inf=tally.negative_inf,
    )


def _zeros(tensor: SavedTensor, tally: Tally) -> int:
    """The zeros of all of it: those counted, and as many of the rest as of the part looked at."""
    rest = tensor.numel * (2 if tensor.dtype in PARTS else 1) - tally.looked
    if not tally.some_zero or tally.some >= rest:
        return tally.zero + tally.some_zero
    return tally.zero + round(tally.some_zero / tally.some * rest)


def _index(tensor: SavedTensor, place: int) -> tuple[int, ...]:
    """The index of an element from its place in the order it was read in."""
    if tensor.dtype in PARTS:
        place //= 2
    shape = tensor.shape
    if tensor.stride is not None and dense(tensor):
        found = [0] * len(shape)
        for axis in sorted(range(len(shape)), key=lambda a: -tensor.stride[a]):  # type: ignore[index]
            if shape[axis] > 1:
                found[axis], place = divmod(place, tensor.stride[axis])
        return tuple(found)
    back = []
    for size in reversed(shape):
        place, index = divmod(place, max(size, 1))
        back.append(index)
    return tuple(reversed(back))


def joined(tensor: SavedTensor, parts: list[Measured]) -> Measured:
    """A tensor from its pieces."""
    bad: list[tuple[int, ...]] = []
    rows: set[int] = set()
    digest = 0
    for number, (part, found) in enumerate(zip(tensor.parts, parts, strict=True)):
        digest = (digest + (found.digest or 0) * (2 * number + 1)) & WORD
        if found.first_bad is not None:
            bad.append(tuple(a + b for a, b in zip(part.at, found.first_bad, strict=True)))
            rows.update(part.at[0] + row for row in found.bad_rows if part.at)
    norms = [found.norm for found in parts if found.norm is not None]
    low = [found.min for found in parts if not math.isnan(found.min)]
    high = [found.max for found in parts if not math.isnan(found.max)]
    return Measured(
        numel=sum(found.numel for found in parts),
        nan=sum(found.nan for found in parts),
        inf=sum(found.inf for found in parts),
        zero=sum(found.zero for found in parts),
        min=min(low, default=math.nan),
        max=max(high, default=math.nan),
        norm=math.hypot(*norms) if len(norms) == len(parts) else None,
        digest=None if any(found.digest is None for found in parts) else digest,
        first_bad=min(bad, default=None),
        bad_rows=sorted(rows)[:ROWS],
        negative_inf=sum(found.negative_inf for found in parts),
    )
