"""The statistics of a checkpoint's tensors, measured by several threads."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from headway.checkpoints.checkpoint_info import SavedTensor
from headway.checkpoints.tensor_tally import chunks_of, dense, in_one_piece, tally_all, tally_chunks
from headway.checkpoints.value_counts import CHUNK, PARTS, ROWS, WORD, CountBuffers, ValueTally
from headway.errors import UnreadableInput

# What is in a tensor: its numbers, from what was counted.


@dataclass(frozen=True, slots=True)
class TensorStatistics:
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


def statistics_of(tensor: SavedTensor, tally: ValueTally, digest: bool) -> TensorStatistics:
    """The numbers of a whole tensor."""
    indices = [_index(tensor, place) for place in tally.bad]
    first = min(indices) if indices else None
    rows = sorted({index[0] for index in indices if index})[:ROWS]
    empty = tally.least > tally.most
    return TensorStatistics(
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


def _zeros(tensor: SavedTensor, tally: ValueTally) -> int:
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


def join_statistics(tensor: SavedTensor, parts: list[TensorStatistics]) -> TensorStatistics:
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
    return TensorStatistics(
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


# What is in tensors, measured a few pieces at once.

# A large tensor is cut and small ones of a file are put together, so that every worker has as much
# to do. How a piece is counted stands in `tallying.py`.

TASK = 1 << 24
"""Bytes a worker takes at once."""
THREADS = min(4, os.cpu_count() or 1)


def measure(tensor: SavedTensor) -> TensorStatistics:
    """The numbers of a tensor."""
    return next(measure_all([tensor], threads=1))


def measure_all(
    tensors: Iterable[SavedTensor],
    *,
    threads: int = THREADS,
    digest: Callable[[SavedTensor], bool] | None = None,
) -> Iterator[TensorStatistics]:
    """The numbers of each, in order; a few pieces are in work at once.

    `digest` says of which tensors one is wanted, and the norm with it; None: of all.
    """
    queue: list[SavedTensor] = list(tensors)
    flat: list[tuple[int, SavedTensor, bool]] = []
    for owner, tensor in enumerate(queue):
        wanted = digest is None or digest(tensor)
        parts_of = [part.tensor for part in tensor.parts] or [tensor]
        flat += [(owner, part, wanted) for part in parts_of]
    waiting: dict[int, list[TensorStatistics]] = {}
    done = 0
    tally = ValueTally()
    for piece, found in _run(_tasks(_pieces(flat)), threads):
        tally.add(found)
        if not piece.ends:
            continue
        waiting.setdefault(piece.owner, []).append(statistics_of(piece.tensor, tally, piece.digest))
        tally = ValueTally()
        whole = queue[piece.owner]
        if len(waiting[piece.owner]) == max(len(whole.parts), 1):
            parts = waiting.pop(piece.owner)
            yield join_statistics(whole, parts) if whole.parts else parts[0]
            done += 1
    assert done == len(queue)


@dataclass(slots=True)
class _Piece:
    """Some chunks of one tensor, or all of it."""

    owner: int
    tensor: SavedTensor
    first: int | None = None
    last: int = 0
    ends: bool = True
    """Whether it is the tensor's last."""
    digest: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes to be read for it."""
        if self.first is None:
            return self.tensor.nbytes
        return (self.last - self.first) * CHUNK


def _pieces(tensors: Iterable[tuple[int, SavedTensor, bool]]) -> Iterator[_Piece]:
    step = TASK // CHUNK
    for owner, tensor, digest in tensors:
        chunks = chunks_of(tensor)
        if chunks <= step or not in_one_piece(tensor):
            yield _Piece(owner, tensor, digest=digest)
            continue
        for first in range(0, chunks, step):
            last = min(first + step, chunks)
            yield _Piece(owner, tensor, first, last, ends=last == chunks, digest=digest)


def _tasks(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces of one file, about `TASK` bytes of them."""
    task: list[_Piece] = []
    size = 0
    for piece in pieces:
        if task and (size + piece.nbytes > TASK or len(task) >= 512 or _other_file(task, piece)):
            yield task
            task, size = [], 0
        task.append(piece)
        size += piece.nbytes
    if task:
        yield task


def _other_file(task: list[_Piece], piece: _Piece) -> bool:
    return task[0].tensor.span.file != piece.tensor.span.file


def _run(tasks: Iterator[list[_Piece]], threads: int) -> Iterator[tuple[_Piece, ValueTally]]:
    spare: list[CountBuffers] = []
    if threads <= 1:
        for task in tasks:
            yield from zip(task, _work(task, spare), strict=True)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="headway-scan") as pool:
        running: deque[tuple[list[_Piece], Future[list[ValueTally]]]] = deque()
        try:
            for task in tasks:
                running.append((task, pool.submit(_work, task, spare)))
                if len(running) > 2 * threads:
                    first, future = running.popleft()
                    yield from zip(first, future.result(), strict=True)
            while running:
                first, future = running.popleft()
                yield from zip(first, future.result(), strict=True)
        finally:
            for _, future in running:
                future.cancel()


def _work(task: list[_Piece], spare: list[CountBuffers]) -> list[ValueTally]:
    scratch = spare.pop() if spare else CountBuffers()
    try:
        with (
            open(task[0].tensor.span.file, "rb", buffering=0) as file,
            np.errstate(all="ignore"),
        ):
            return [
                tally_all(piece.tensor, scratch, file, piece.digest)
                if piece.first is None
                else tally_chunks(
                    piece.tensor, piece.first, piece.last, scratch, file, piece.digest
                )
                for piece in task
            ]
    except OSError as error:
        file_name = task[0].tensor.span.file
        raise UnreadableInput(f"cannot read {file_name}: {error.strerror}") from error
    finally:
        spare.append(scratch)
