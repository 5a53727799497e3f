"""What is in a tensor, from one pass over its bytes in bounded memory.

A chunk is read into a buffer that stays in the processor's cache, so several passes over it cost
less than fetching it. Floats are compared as the integers their bits are: among positive ones the
order is the same, among negative ones it is reversed, and NaN and infinity lie beyond all others.
So the greatest as signed and the greatest as unsigned integer give the extremes and show whether
all is finite; only a chunk that is not is looked at again, element by element.

Every pass counts: a pass over the chunk costs a fifth of fetching it. So digests and norms are made
only where somebody compares them, and the zeros of a large tensor counted in one chunk of eight.
"""

from __future__ import annotations

import math
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from holdfast.checkpoints import dtypes
from holdfast.checkpoints.counting import (
    CHUNK,
    FLOAT8,
    GREATEST,
    KINDS,
    ONE,
    PARTS,
    ROWS,
    SIGNED,
    SMALLEST_SQUARES,
    UNSIGNED,
    WORD,
    Array,
    Scratch,
    Tally,
    count_floats,
    count_whole,
    digest_of,
    halves,
    swap,
    value_of,
)
from holdfast.checkpoints.model import SavedTensor
from holdfast.errors import UnreadableInput

TASK = 1 << 24
"""Bytes a worker takes at once."""
THREADS = min(4, os.cpu_count() or 1)
ALL_ZEROS = 1 << 22
"""Bytes up to which all of a tensor is searched for zeros; of a larger one, one chunk of …"""
SOME_ZEROS = 8
STRIDED = 1 << 24
"""Bytes of a strided tensor gathered at once."""


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


def _take(
    scratch: Scratch, nbytes: int, number: int, tensor: SavedTensor, into: Tally, digest: bool
) -> None:
    """One chunk, by its number."""
    if digest:
        into.digest = (into.digest + digest_of(scratch, nbytes, number)) & WORD
    if tensor.byteorder == "big":
        swap(scratch, nbytes, tensor.dtype)
    dtype = PARTS.get(tensor.dtype, tensor.dtype)
    if dtype not in KINDS and dtype not in FLOAT8:
        count_whole(scratch, nbytes, dtype, into)
        return
    each = 2 if tensor.dtype in PARTS else 1
    row = max(tensor.numel // tensor.shape[0], 1) if tensor.shape and tensor.shape[0] else 1
    if tensor.stride is not None:
        row = 1  # in memory order; rows are found from the indices
    zeros = tensor.nbytes <= ALL_ZEROS or number % SOME_ZEROS == 0
    at = number * (CHUNK // dtypes.SIZES[dtype])
    count_floats(scratch, nbytes, dtype, into, at, row * each, zeros)


def _read(file: BinaryIO, view: memoryview, tensor: SavedTensor) -> None:
    got = 0
    while got < len(view):
        count = file.readinto(view[got:])  # type: ignore[attr-defined]
        if not count:
            raise UnreadableInput(
                f"{tensor.span.file} ended while {tensor.name} was read: it was changed meanwhile"
            )
        got += count


def _measure_flat(
    tensor: SavedTensor,
    first: int,
    last: int,
    scratch: Scratch,
    file: BinaryIO,
    digest: bool,
) -> Tally:
    """The chunks from `first` up to `last` of a tensor that lies in one piece."""
    tally = Tally()
    file.seek(tensor.span.offset + first * CHUNK)
    plain = tensor.dtype in KINDS and tensor.byteorder == "little" and tensor.nbytes > CHUNK
    if plain:
        whole = min(last, tensor.span.length // CHUNK)
        _count_whole_chunks(tensor, range(first, whole), scratch, file, tally, digest)
        first = whole
    for number in range(first, last):
        nbytes = min(CHUNK, tensor.span.length - number * CHUNK)
        _read(file, scratch.view[:nbytes], tensor)
        _take(scratch, nbytes, number, tensor, tally, digest)
    return tally


def _count_whole_chunks(
    tensor: SavedTensor,
    numbers: range,
    scratch: Scratch,
    file: BinaryIO,
    into: Tally,
    digest: bool,
) -> None:
    """The same as `_take` of each, for the bulk of a checkpoint: as few steps a chunk as can be."""
    kind = KINDS[tensor.dtype]
    view = scratch.view[:CHUNK]
    bits = scratch.bytes[:CHUNK].view(UNSIGNED[kind.size])
    signed_bits = bits.view(SIGNED[kind.size])
    values = bits.view(tensor.dtype) if kind.size >= 4 else None
    shifted = scratch.words.view(bits.dtype)[: bits.size]
    every = tensor.nbytes <= ALL_ZEROS
    one, infinite, below = ONE[kind.size], kind.infinite, kind.sign | kind.infinite
    highest, lowest, smallest, closest = -1, -1, -1, -1
    square, nonzero, counted = 0.0, 0, 0
    fill = file.readinto  # type: ignore[attr-defined]
    for number in numbers:
        got = fill(view)
        if got != CHUNK:
            _read(file, view[got or 0 :], tensor)
        signed, unsigned = int(GREATEST(signed_bits)), int(GREATEST(bits))
        if signed >= infinite or unsigned >= below or not (signed or unsigned):
            _take(scratch, CHUNK, number, tensor, into, digest)
            continue
        if digest:
            part = float(np.dot(values, values)) if values is not None else halves(scratch, kind)
            if not SMALLEST_SQUARES < part < math.inf:  # the squares leave the range of the type
                _take(scratch, CHUNK, number, tensor, into, digest)
                continue
            square += part
            into.digest = (into.digest + digest_of(scratch, CHUNK, number)) & WORD
        if signed < 0:  # all negative: the least as bits is the one closest to 0
            closest = min(int(bits.min()), closest) if closest >= 0 else int(bits.min())
        elif signed > highest:
            highest = signed
        if unsigned >= kind.sign:
            lowest = max(lowest, unsigned)
        elif lowest < 0:  # no negative so far
            smallest = min(int(bits.min()), smallest) if smallest >= 0 else int(bits.min())
        if every or number % SOME_ZEROS == 0:
            np.left_shift(bits, one, out=shifted)
            nonzero += int(np.count_nonzero(shifted))
            counted += bits.size
    into.square += square
    into.some_zero += counted - nonzero
    into.some += counted
    held = [value_of(b, tensor.dtype) for b in (highest, lowest, smallest, closest) if b >= 0]
    if held:
        into.most = max(into.most, *held)
        into.least = min(into.least, *held)


def _measure_inflated(tensor: SavedTensor, scratch: Scratch, file: BinaryIO, digest: bool) -> Tally:
    assert tensor.inflate is not None
    tally = Tally()
    number = filled = 0
    left = tensor.inflate.length
    for data in _inflated(tensor, file):
        start = 0
        while start < len(data) and left:
            count = min(len(data) - start, CHUNK - filled, left)
            scratch.view[filled : filled + count] = data[start : start + count]
            filled, start, left = filled + count, start + count, left - count
            if filled == CHUNK or not left:
                _take(scratch, filled, number, tensor, tally, digest)
                number, filled = number + 1, 0
    if left:
        raise UnreadableInput(
            f"{tensor.span.file}: {tensor.name} unpacks to {left} bytes less than it should"
        )
    return tally


def _inflated(tensor: SavedTensor, file: BinaryIO) -> Iterator[bytes]:
    assert tensor.inflate is not None
    file.seek(tensor.span.offset)
    unpack = zlib.decompressobj(-15)
    packed, skip = tensor.span.length, tensor.inflate.skip
    try:
        while packed and not unpack.eof and (data := file.read(min(packed, 1 << 16))):
            packed -= len(data)
            while data and not unpack.eof:
                out = unpack.decompress(data, 1 << 18)
                data = unpack.unconsumed_tail
                if skip >= len(out):
                    skip -= len(out)
                else:
                    yield out[skip:]
                    skip = 0
    except zlib.error as error:
        raise UnreadableInput(f"{tensor.span.file}: {tensor.name} cannot be unpacked") from error


def _dense(tensor: SavedTensor) -> bool:
    """Whether its elements fill its span, only in another order."""
    return tensor.numel * dtypes.SIZES[tensor.dtype] == tensor.nbytes and _distinct(tensor)


def _distinct(tensor: SavedTensor) -> bool:
    assert tensor.stride is not None
    expected = 1
    for step, size in sorted(zip(tensor.stride, tensor.shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def _measure_strided(tensor: SavedTensor, scratch: Scratch, file: BinaryIO, digest: bool) -> Tally:
    """A view with gaps or repeats: gathered block by block, in the order of its indices."""
    tally = Tally()
    item = dtypes.SIZES[tensor.dtype]
    form: Any = np.dtype(f"V{item}")
    number = filled = 0
    for block in _blocks(tensor, tensor.shape, tensor.stride or (), 0, file, form):
        flat: Any = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        data = memoryview(flat)
        start = 0
        while start < len(data):
            count = min(len(data) - start, CHUNK - filled)
            scratch.view[filled : filled + count] = data[start : start + count]
            filled, start = filled + count, start + count
            if filled == CHUNK:
                _take(scratch, filled, number, tensor, tally, digest)
                number, filled = number + 1, 0
    if filled:
        _take(scratch, filled, number, tensor, tally, digest)
    return tally


def _blocks(
    tensor: SavedTensor,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    file: BinaryIO,
    form: Any,
) -> Iterator[Array]:
    """Arrays that together are the tensor, none reaching over more than `STRIDED` bytes."""
    item = form.itemsize
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    count = math.prod(shape)
    if reach * item <= STRIDED and count * item <= STRIDED:
        data: Any = np.empty(reach * item, np.uint8)
        if tensor.inflate is not None:
            raise UnreadableInput(
                f"{tensor.span.file}: {tensor.name} is compressed and not in one piece"
            )
        file.seek(tensor.span.offset + offset * item)
        _read(file, memoryview(data), tensor)
        steps = tuple(s * item for s in stride)
        yield np.lib.stride_tricks.as_strided(data.view(form), shape, steps, writeable=False)
        return
    rest = 1 + sum((n - 1) * s for n, s in zip(shape[1:], stride[1:], strict=True))
    rows = STRIDED // max((math.prod(shape[1:])) * item, 1)
    if stride[0]:
        rows = min(rows, (STRIDED // item - rest) // stride[0] + 1)
    if rows < 1:
        for index in range(shape[0]):
            yield from _blocks(
                tensor, shape[1:], stride[1:], offset + index * stride[0], file, form
            )
        return
    for index in range(0, shape[0], rows):
        some = (min(rows, shape[0] - index), *shape[1:])
        yield from _blocks(tensor, some, stride, offset + index * stride[0], file, form)


def _zeros(tensor: SavedTensor, tally: Tally) -> int:
    """The zeros of all of it: those counted, and as many of the rest as of the part looked at."""
    rest = tensor.numel * (2 if tensor.dtype in PARTS else 1) - tally.looked
    if not tally.some_zero or tally.some >= rest:
        return tally.zero + tally.some_zero
    return tally.zero + round(tally.some_zero / tally.some * rest)


def _measured(tensor: SavedTensor, tally: Tally, digest: bool) -> Measured:
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


def _index(tensor: SavedTensor, place: int) -> tuple[int, ...]:
    """The index of an element from its place in the order it was read in."""
    if tensor.dtype in PARTS:
        place //= 2
    shape = tensor.shape
    if tensor.stride is not None and _dense(tensor):
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


def _in_one_piece(tensor: SavedTensor) -> bool:
    return tensor.inflate is None and (tensor.stride is None or _dense(tensor))


def _chunks_of(tensor: SavedTensor) -> int:
    return -(-tensor.span.length // CHUNK)


def _measure_one(tensor: SavedTensor, scratch: Scratch, file: BinaryIO, digest: bool) -> Tally:
    if not tensor.numel:
        return Tally()
    if _in_one_piece(tensor):
        return _measure_flat(tensor, 0, _chunks_of(tensor), scratch, file, digest)
    if tensor.inflate is not None and (tensor.stride is None or _dense(tensor)):
        return _measure_inflated(tensor, scratch, file, digest)
    return _measure_strided(tensor, scratch, file, digest)


def _join(tensor: SavedTensor, parts: list[Measured]) -> Measured:
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


def measure(tensor: SavedTensor) -> Measured:
    """The numbers of a tensor."""
    return next(measure_all([tensor], threads=1))


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
        chunks = _chunks_of(tensor)
        if chunks <= step or not _in_one_piece(tensor):
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


def _work(task: list[_Piece], spare: list[Scratch]) -> list[Tally]:
    scratch = spare.pop() if spare else Scratch()
    try:
        with (
            open(task[0].tensor.span.file, "rb", buffering=0) as file,
            np.errstate(all="ignore"),
        ):
            return [
                _measure_one(piece.tensor, scratch, file, piece.digest)
                if piece.first is None
                else _measure_flat(
                    piece.tensor, piece.first, piece.last, scratch, file, piece.digest
                )
                for piece in task
            ]
    except OSError as error:
        file_name = task[0].tensor.span.file
        raise UnreadableInput(f"cannot read {file_name}: {error.strerror}") from error
    finally:
        spare.append(scratch)


def measure_all(
    tensors: Iterable[SavedTensor],
    *,
    threads: int = THREADS,
    digest: Callable[[SavedTensor], bool] | None = None,
) -> Iterator[Measured]:
    """The numbers of each, in order; a few pieces are in work at once.

    `digest` says of which tensors one is wanted, and the norm with it; None: of all.
    """
    queue: list[SavedTensor] = list(tensors)
    flat: list[tuple[int, SavedTensor, bool]] = []
    for owner, tensor in enumerate(queue):
        wanted = digest is None or digest(tensor)
        parts_of = [part.tensor for part in tensor.parts] or [tensor]
        flat += [(owner, part, wanted) for part in parts_of]
    waiting: dict[int, list[Measured]] = {}
    done = 0
    tally = Tally()
    for piece, found in _run(_tasks(_pieces(flat)), threads):
        tally.add(found)
        if not piece.ends:
            continue
        waiting.setdefault(piece.owner, []).append(_measured(piece.tensor, tally, piece.digest))
        tally = Tally()
        whole = queue[piece.owner]
        if len(waiting[piece.owner]) == max(len(whole.parts), 1):
            parts = waiting.pop(piece.owner)
            yield _join(whole, parts) if whole.parts else parts[0]
            done += 1
    assert done == len(queue)


def _run(tasks: Iterator[list[_Piece]], threads: int) -> Iterator[tuple[_Piece, Tally]]:
    spare: list[Scratch] = []
    if threads <= 1:
        for task in tasks:
            yield from zip(task, _work(task, spare), strict=True)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="holdfast-scan") as pool:
        running: deque[tuple[list[_Piece], Future[list[Tally]]]] = deque()
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
