"""Remembers the shapes and dtypes of batches, to say what is unusual about the one that failed.

The number of rows is counted for every batch. Names, shapes and dtypes of all tensors are read
for the first batches and then less and less often, so that a step costs nothing noticeable.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from headway.core.numbers import plural
from headway.guard.endings.device_assert import HostInputs
from headway.guard.endings.failure import FailureMoment
from headway.torch_adapters.tensor_values import batch_size, is_on_host, named_batch_tensors

FIRST_BATCHES = 16
"""Batches that are all read; later ones when their number has grown by a tenth."""
RECENT_BATCHES = 3
"""Batches that are kept on the host: a kernel fails a step or two before its error shows."""
MAX_TENSORS = 32
MAX_ROW_COUNTS = 64
"""Different numbers of rows that are counted."""

Signature = dict[str, tuple[tuple[int, ...], str]]
"""Name of a tensor → its shape and dtype."""


@dataclass
class _AxisRange:
    """The sizes of one axis so far."""

    least: int
    most: int

    def add(self, size: int) -> None:
        self.least, self.most = min(self.least, size), max(self.most, size)


@dataclass
class _TensorHistory:
    """The shapes and dtypes of one tensor of the batches."""

    dtypes: set[str] = field(default_factory=set)
    axes: list[_AxisRange] | None = None
    """None if the number of axes varies."""
    read: int = 0

    def add(self, shape: tuple[int, ...], dtype: str) -> None:
        if not self.read:
            self.axes = [_AxisRange(size, size) for size in shape]
        elif self.axes is not None and len(self.axes) == len(shape):
            for axis, size in zip(self.axes, shape, strict=True):
                axis.add(size)
        else:
            self.axes = None
        self.dtypes.add(dtype)
        self.read += 1


class BatchHistory:
    """The batches of a run, without the current one."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._tensors: dict[str, _TensorHistory] = {}
        self._current: int | None = None
        self._pending: Signature = {}
        self._count = 0
        self._next_read = 0

    def add(self, batch: Any, rows: int) -> None:
        """A batch is handed to the loop; the one before it becomes history."""
        if self._current is not None:
            self._commit(self._current)
        self._current = rows
        if self._count >= self._next_read:
            self._pending = _signature(batch)
            self._next_read = (
                self._count + 1 if self._count < FIRST_BATCHES else self._count * 11 // 10
            )
        self._count += 1

    def _commit(self, rows: int) -> None:
        counts = self._rows
        if rows in counts or len(counts) < MAX_ROW_COUNTS:
            counts[rows] = counts.get(rows, 0) + 1
        if self._pending:
            for name, (shape, dtype) in self._pending.items():
                self._tensors.setdefault(name, _TensorHistory()).add(shape, dtype)
            self._pending = {}

    def describe(self, batch: Any) -> list[dict[str, Any]]:
        """The tensors of the current batch, and how each differs from those before."""
        return [
            {
                "name": name,
                "shape": list(shape),
                "dtype": dtype,
                "unusual": self._difference(name, shape, dtype),
            }
            for name, (shape, dtype) in _signature(batch).items()
        ]

    def _difference(self, name: str, shape: tuple[int, ...], dtype: str) -> str | None:
        known = self._tensors.get(name)
        if known is None:
            return "was in no batch before" if self._tensors else None
        if dtype not in known.dtypes:
            return f"is {dtype}; before it was {', '.join(sorted(known.dtypes))}"
        if known.axes is None:
            return None
        if len(known.axes) != len(shape):
            axes = "1 axis" if len(shape) == 1 else f"{len(shape)} axes"
            return f"has {axes}; before it had {len(known.axes)}"
        for at, (axis, size) in enumerate(zip(known.axes, shape, strict=True)):
            if axis.least <= size <= axis.most:
                continue
            usual = str(axis.least) if axis.least == axis.most else f"{axis.least} to {axis.most}"
            if at == 0:
                seen = sum(self._rows.values())
                before = f"all {seen} before" if seen > 1 else "the one before"
                return f"has {plural(size, 'row')}; {before} had {usual}"
            return f"has size {size} on axis {at}; before it was {usual}"
        return None


def _signature(batch: Any) -> Signature:
    found: Signature = {}
    for name, tensor in named_batch_tensors(batch):
        found[name] = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if len(found) >= MAX_TENSORS:
            break
    return found


class EarlyBatches:
    """The batches of a script before there is a guard: the last ones, and the shapes of all."""

    def __init__(self) -> None:
        self._history = BatchHistory()
        self._last: Any = None
        self._on_host: deque[Any] = deque(maxlen=RECENT_BATCHES)

    def add(self, batch: Any) -> None:
        self._history.add(batch, batch_size(batch) or 0)
        self._last = batch
        if is_on_host(batch):
            self._on_host.append(batch)

    def failure_moment(self, script: dict[str, Any] | None) -> FailureMoment:
        """What is known of the batch at which the script failed."""
        described = [] if self._last is None else self._history.describe(self._last)
        inputs = HostInputs(script, tuple(self._on_host))
        return FailureMoment(batch=described, host_inputs=inputs)

    def hand_over(self) -> BatchHistory:
        """The history, for a guard that keeps the batches from here on."""
        self._last = None
        return self._history
