"""Statistics of the tensors in a checkpoint, computed by several threads in bounded memory.

A large tensor is cut into pieces and small tensors of one file are put together, so that each task
reads about the same number of bytes. `value_counts.py` counts the values of a chunk.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from headway.checkpoints.checkpoint_info import SavedTensor
from headway.checkpoints.tensor_bytes import is_dense, is_one_range, read_exactly, tensor_bytes
from headway.checkpoints.value_counts import (
    CHUNK,
    COMPLEX_PARTS,
    MAX_BAD_ROWS,
    WORD,
    ChunkCounter,
    CountBuffers,
    ValueCounts,
)
from headway.errors import UnreadableInput

TASK = 1 << 24
"""Bytes that a thread reads in one task."""
THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """The statistics of one tensor."""

    numel: int
    nan: int
    inf: int
    zero: int
    """An estimate if the tensor has more than `EXACT_ZEROS` bytes."""
    min: float
    """Of the finite elements; NaN if there is none."""
    max: float
    """Of the finite elements; NaN if there is none."""
    norm: float | None
    """Of the finite elements; None if it was not requested."""
    digest: int | None
    """Equal bytes give equal digests; None if it was not requested."""
    first_bad: tuple[int, ...] | None = None
    """Index of the first non-finite element."""
    bad_rows: list[int] = field(default_factory=list)
    """The first indices along the first axis that have a non-finite element."""
    negative_inf: int = 0
    """How many of `inf` are negative. A saved attention mask has only these."""


def measure(tensor: SavedTensor) -> TensorStatistics:
    """The statistics of a tensor."""
    return next(measure_all([tensor], threads=1))


def measure_all(
    tensors: Iterable[SavedTensor],
    *,
    threads: int = THREADS,
    digest: Callable[[SavedTensor], bool] | None = None,
) -> Iterator[TensorStatistics]:
    """The statistics of each tensor, in order.

    `digest` says for which tensors the digest and the norm are computed; None for all.
    """
    queue: list[SavedTensor] = list(tensors)
    flat: list[tuple[int, SavedTensor, bool]] = []
    for owner, tensor in enumerate(queue):
        wanted = digest is None or digest(tensor)
        parts_of = [part.tensor for part in tensor.parts] or [tensor]
        flat += [(owner, part, wanted) for part in parts_of]
    unfinished: dict[int, list[TensorStatistics]] = {}
    counts = ValueCounts()
    for piece, found in _run(_tasks(_pieces(flat)), threads):
        counts.add(found)
        if not piece.ends:
            continue
        statistics = _statistics(piece.tensor, counts, piece.digest)
        unfinished.setdefault(piece.owner, []).append(statistics)
        counts = ValueCounts()
        whole = queue[piece.owner]
        if len(unfinished[piece.owner]) == max(len(whole.parts), 1):
            parts = unfinished.pop(piece.owner)
            yield _join_parts(whole, parts) if whole.parts else parts[0]
    assert not unfinished


def _statistics(tensor: SavedTensor, counts: ValueCounts, digest: bool) -> TensorStatistics:
    indices = [_index(tensor, place) for place in counts.bad]
    empty = counts.least > counts.most
    return TensorStatistics(
        numel=tensor.numel,
        nan=counts.nan,
        inf=counts.inf,
        zero=_zeros(tensor, counts),
        min=math.nan if empty else counts.least,
        max=math.nan if empty else counts.most,
        norm=math.sqrt(counts.square) if digest else None,
        digest=counts.digest if digest else None,
        first_bad=min(indices, default=None),
        bad_rows=sorted({index[0] for index in indices if index})[:MAX_BAD_ROWS],
        negative_inf=counts.negative_inf,
    )


def _zeros(tensor: SavedTensor, counts: ValueCounts) -> int:
    """The zeros of the whole tensor: the exact count, and the sampled rate times the rest."""
    rest = tensor.numel * (2 if tensor.dtype in COMPLEX_PARTS else 1) - counts.exact
    if not counts.sampled_zero or counts.sampled >= rest:
        return counts.zero + counts.sampled_zero
    return counts.zero + round(counts.sampled_zero / counts.sampled * rest)


def _index(tensor: SavedTensor, place: int) -> tuple[int, ...]:
    """The index of an element from its place in the order of reading."""
    if tensor.dtype in COMPLEX_PARTS:
        place //= 2
    shape = tensor.shape
    if tensor.stride is not None and is_dense(tensor):
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


def _join_parts(tensor: SavedTensor, parts: list[TensorStatistics]) -> TensorStatistics:
    """The statistics of a tensor that several ranks saved in parts."""
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
        bad_rows=sorted(rows)[:MAX_BAD_ROWS],
        negative_inf=sum(found.negative_inf for found in parts),
    )


@dataclass(slots=True)
class _Piece:
    """Some chunks of a tensor, or the whole tensor."""

    owner: int
    tensor: SavedTensor
    first: int | None = None
    """Number of the first chunk; None for the whole tensor."""
    last: int = 0
    ends: bool = True
    """Whether it is the last piece of the tensor."""
    digest: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        if self.first is None:
            return self.tensor.nbytes
        return (self.last - self.first) * CHUNK


def _chunks(tensor: SavedTensor) -> int:
    return -(-tensor.span.length // CHUNK)


def _pieces(tensors: Iterable[tuple[int, SavedTensor, bool]]) -> Iterator[_Piece]:
    step = TASK // CHUNK
    for owner, tensor, digest in tensors:
        chunks = _chunks(tensor)
        if chunks <= step or not is_one_range(tensor):
            yield _Piece(owner, tensor, digest=digest)
            continue
        for first in range(0, chunks, step):
            last = min(first + step, chunks)
            yield _Piece(owner, tensor, first, last, ends=last == chunks, digest=digest)


def _tasks(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces of one file, about `TASK` bytes together."""
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


def _run(tasks: Iterator[list[_Piece]], threads: int) -> Iterator[tuple[_Piece, ValueCounts]]:
    spare: list[CountBuffers] = []
    if threads <= 1:
        for task in tasks:
            yield from zip(task, _work(task, spare), strict=True)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="headway-scan") as pool:
        running: deque[tuple[list[_Piece], Future[list[ValueCounts]]]] = deque()
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


def _work(task: list[_Piece], spare: list[CountBuffers]) -> list[ValueCounts]:
    name = task[0].tensor.span.file
    buffers = spare.pop() if spare else CountBuffers()
    try:
        with open(name, "rb", buffering=0) as file, np.errstate(all="ignore"):
            return [_count(piece, buffers, file) for piece in task]
    except OSError as error:
        raise UnreadableInput(f"cannot read {name}: {error.strerror}") from error
    finally:
        spare.append(buffers)


def _count(piece: _Piece, buffers: CountBuffers, file: BinaryIO) -> ValueCounts:
    tensor = piece.tensor
    if not tensor.numel:
        return ValueCounts()
    counter = ChunkCounter(tensor, buffers, piece.digest)
    if not is_one_range(tensor):
        _count_stream(counter, buffers, tensor_bytes(tensor, file))
        return counter.result()
    first = piece.first or 0
    last = piece.last if piece.first is not None else _chunks(tensor)
    file.seek(tensor.span.offset + first * CHUNK)
    chunk, end = buffers.view[:CHUNK], tensor.span.length // CHUNK
    for number in range(first, min(last, end)):
        read_exactly(file, chunk, tensor)
        counter.add(CHUNK, number)
    if last > end:
        nbytes = tensor.span.length - end * CHUNK
        read_exactly(file, buffers.view[:nbytes], tensor)
        counter.add(nbytes, end)
    return counter.result()


def _count_stream(
    counter: ChunkCounter, buffers: CountBuffers, stream: Iterator[memoryview | bytes]
) -> None:
    """Counts bytes that come in pieces of any length, a chunk at a time."""
    number = filled = 0
    for data in stream:
        start = 0
        while start < len(data):
            count = min(len(data) - start, CHUNK - filled)
            buffers.view[filled : filled + count] = data[start : start + count]
            filled, start = filled + count, start + count
            if filled == CHUNK:
                counter.add(CHUNK, number)
                number, filled = number + 1, 0
    if filled:
        counter.add(filled, number)
