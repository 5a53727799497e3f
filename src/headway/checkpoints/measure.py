"""What is in tensors, measured a few pieces at once.

A large tensor is cut and small ones of a file are put together, so that every worker has as much to
do. How a piece is counted stands in `tallying.py`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from headway.checkpoints.counting import CHUNK, Scratch, Tally
from headway.checkpoints.measured import Measured, joined, measured
from headway.checkpoints.model import SavedTensor
from headway.checkpoints.tallying import chunks_of, in_one_piece, tally_all, tally_chunks
from headway.errors import UnreadableInput

TASK = 1 << 24
"""Bytes a worker takes at once."""
THREADS = min(4, os.cpu_count() or 1)


def measure(tensor: SavedTensor) -> Measured:
    """The numbers of a tensor."""
    return next(measure_all([tensor], threads=1))


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
        waiting.setdefault(piece.owner, []).append(measured(piece.tensor, tally, piece.digest))
        tally = Tally()
        whole = queue[piece.owner]
        if len(waiting[piece.owner]) == max(len(whole.parts), 1):
            parts = waiting.pop(piece.owner)
            yield joined(whole, parts) if whole.parts else parts[0]
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


def _run(tasks: Iterator[list[_Piece]], threads: int) -> Iterator[tuple[_Piece, Tally]]:
    spare: list[Scratch] = []
    if threads <= 1:
        for task in tasks:
            yield from zip(task, _work(task, spare), strict=True)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="headway-scan") as pool:
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


def _work(task: list[_Piece], spare: list[Scratch]) -> list[Tally]:
    scratch = spare.pop() if spare else Scratch()
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
