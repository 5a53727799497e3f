"""Turns checkpoints into the stream of records that the checks receive."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from headway.checkpoints import dtypes
from headway.checkpoints.checkpoint_discovery import open_checkpoint
from headway.checkpoints.checkpoint_info import Checkpoint, Problem, SavedTensor
from headway.checkpoints.tensor_statistics import TensorStatistics, measure_all
from headway.checks.checkpoint_tensors import CHECKPOINT, is_embedding
from headway.core.records import EventRecord, Header, Record, TensorRecord
from headway.errors import UnreadableInput

SOURCE = "checkpoint"
KINDS = {
    "unreadable": "unreadable-checkpoint",
    "unsafe": "unsafe-pickle",
    "unknown": "unknown-code",
}
SCANNED = "scan"
ROLES = ("weight", "buffer", "moment", "other")

_HEAD = re.compile(r"head|output|decoder|generator|classifier", re.IGNORECASE)

Progress = Callable[[int, int], None]


def records(
    checkpoints: Iterable[Path | Checkpoint], *, progress: Progress | None = None
) -> Iterator[Record]:
    """The records of each checkpoint: what it is, its problems, and its tensors."""
    given = [item if isinstance(item, Checkpoint) else Path(item) for item in checkpoints]
    paths = [item.path if isinstance(item, Checkpoint) else item for item in given]
    facts = {"checkpoints": [str(path) for path in paths]}
    yield Header(source=SOURCE, facts=facts)
    # Opening is cheap: with all of them open, the total for the progress is known.
    if progress is not None:
        given = [_opened(item) for item in given]
    total = sum(_size(item) for item in given if isinstance(item, Checkpoint))
    wanted = None if len(given) > 1 else _may_be_tied
    done = 0
    seq = 0
    for position, item in enumerate(given):
        found = item if isinstance(item, Checkpoint) else open_checkpoint(item)
        step = found.step if found.step is not None else position
        floating = [tensor for tensor in found.tensors if tensor.dtype in dtypes.FLOATING]
        seq += 1
        yield EventRecord(0, seq, step, CHECKPOINT, _described(found))
        for problem in found.problems:
            seq += 1
            yield _event(problem, found, seq, step)
        measured = measure_all(floating, digest=wanted)
        measured_roles = set()
        for tensor in floating:
            try:
                numbers = next(measured)
            except UnreadableInput as error:
                seq += 1
                problem = Problem("unreadable", str(error), tensor.span.file, {})
                yield _event(problem, found, seq, step)
                break
            measured_roles.add(tensor.role)
            seq += 1
            yield _tensor(tensor, numbers, found, seq, step)
            done += tensor.nbytes
            if progress is not None:
                progress(min(done, total), total)
        seq += 1
        roles = [role for role in ROLES if role in measured_roles]
        data = {"roles": roles, "path": str(found.path)}
        yield EventRecord(0, seq, step, SCANNED, data)


def _opened(item: Path | Checkpoint) -> Path | Checkpoint:
    try:
        return item if isinstance(item, Checkpoint) else open_checkpoint(item)
    except UnreadableInput:
        return item  # reported when it is its turn


def _size(found: Checkpoint) -> int:
    return sum(t.nbytes for t in found.tensors if t.dtype in dtypes.FLOATING)


def _may_be_tied(tensor: SavedTensor) -> bool:
    """Whether a tensor is compared with others of the same checkpoint: an embedding or a head."""
    return is_embedding(tensor.name) or bool(_HEAD.search(tensor.name))


def _described(found: Checkpoint) -> dict[str, Any]:
    return {
        "path": str(found.path),
        "format": found.format,
        "step": found.step,
        "facts": found.facts,
        "tensors": len(found.tensors),
        "bytes": sum(tensor.nbytes for tensor in found.tensors),
    }


def _event(problem: Problem, found: Checkpoint, seq: int, step: int) -> EventRecord:
    data = {
        **problem.facts,
        "message": problem.message,
        "path": str(problem.path),
        "checkpoint": str(found.path),
    }
    return EventRecord(0, seq, step, KINDS[problem.kind], data)


def _tensor(
    tensor: SavedTensor, numbers: TensorStatistics, found: Checkpoint, seq: int, step: int
) -> TensorRecord:
    stats: dict[str, float] = {
        "numel": numbers.numel,
        "nan": numbers.nan,
        "inf": numbers.inf,
        "zero": numbers.zero,
    }
    if numbers.norm is not None:
        stats["norm"] = numbers.norm
    # A tensor without a finite element has no extremes: absent, not NaN.
    if not math.isnan(numbers.min):
        stats |= {"min": numbers.min, "max": numbers.max}
    facts: dict[str, Any] = {
        "file": str(tensor.span.file),
        "path": str(found.path),
        "bytes": tensor.nbytes,
    }
    if numbers.digest is not None:
        facts["digest"] = numbers.digest
    if numbers.first_bad is not None:
        facts |= {"first_bad": list(numbers.first_bad), "bad_rows": numbers.bad_rows}
    if numbers.negative_inf:
        facts["negative_inf"] = numbers.negative_inf
    return TensorRecord(
        0, seq, step, tensor.name, tensor.role, tensor.dtype, tensor.shape, stats, facts
    )
