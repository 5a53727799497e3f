"""Transfers a step's numbers to the host and builds its record."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from headway.core.bound import LARGEST
from headway.core.numbers import round_digits
from headway.core.records import Column
from headway.core.signals import GPU_SIGNALS, HOST_SIGNALS
from headway.guard.ranks.rank_table import RankTable
from headway.policy import StepVerdict
from headway.rerun.bad_step import StepContext
from headway.torch_adapters.process_groups.rank_group import RankGroup

# On the CPU there is nothing to wait for. On CUDA the numbers of a step are packed into one tensor
# and copied to pinned memory behind the step's own work; the host reads them `LAG` steps later, and
# never earlier, even if they have arrived: what the brake knows at a step must not depend on
# timing.

LAG = 1
"""Steps between the computation of a number on CUDA and its use: meanwhile a whole forward and
backward pass is queued. Not more: a bad step must be run again before the weights change."""

Readings = Mapping[str, list[float]]


class ReadingsReceiver(Protocol):
    """Receives the numbers, in order."""

    def __call__(self, context: Any, readings: Readings, /) -> None: ...


class HostTransfer:
    """For the CPU: delivers immediately."""

    lag = 0

    def __init__(self, take: ReadingsReceiver) -> None:
        self._take = take

    def send(self, context: Any, tensors: Mapping[str, Tensor]) -> None:
        """Send the tensors of a step, with what the host knows about it."""
        readings: dict[str, list[float]] = {}
        for name, tensor in tensors.items():
            # `item` takes a tenth of the time of `tolist`.
            readings[name] = [tensor.item()] if tensor.ndim == 0 else tensor.reshape(-1).tolist()
        self._take(context, readings)

    def collect(self) -> None:
        """Deliver what is due before the next step."""

    def flush(self) -> None:
        """Deliver everything."""


class DeviceTransfer:
    """For CUDA: packs, copies asynchronously, delivers `LAG` steps later."""

    lag = LAG

    def __init__(self, take: ReadingsReceiver, device: torch.device) -> None:
        self._take = take
        self._device = device
        self._pending: deque[_PendingTransfer] = deque()
        self._spare: list[Tensor] = []

    def send(self, context: Any, tensors: Mapping[str, Tensor]) -> None:
        parts = [tensor.reshape(-1) for tensor in tensors.values()]
        packed = torch.cat(
            [part if part.dtype is torch.float32 else part.float() for part in parts]
        )
        count = packed.numel()
        target = self._pinned(count)
        target[:count].copy_(packed, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        sizes = {name: part.numel() for name, part in zip(tensors, parts, strict=True)}
        self._pending.append(_PendingTransfer(context, sizes, target, event))

    def collect(self) -> None:
        while len(self._pending) >= LAG:
            self._deliver()

    def flush(self) -> None:
        while self._pending:
            self._deliver()

    def _pinned(self, count: int) -> Tensor:
        for position, spare in enumerate(self._spare):
            if spare.numel() >= count:
                return self._spare.pop(position)
        # A growing model needs larger slots; round up so that sampled steps reuse them too.
        return torch.empty(2 * count + 64, dtype=torch.float32, device="cpu", pin_memory=True)

    def _deliver(self) -> None:
        pending = self._pending.popleft()
        if not pending.event.query():
            pending.event.synchronize()
        values = pending.memory[: sum(pending.sizes.values())].tolist()
        self._spare.append(pending.memory)
        if len(self._spare) > LAG + 2:
            self._spare.pop(0)
        readings, at = {}, 0
        for name, size in pending.sizes.items():
            readings[name] = values[at : at + size]
            at += size
        self._take(pending.context, readings)


class _PendingTransfer:
    __slots__ = ("context", "event", "memory", "sizes")

    def __init__(
        self, context: Any, sizes: Mapping[str, int], memory: Tensor, event: torch.cuda.Event
    ) -> None:
        self.context = context
        self.sizes = sizes
        self.memory = memory
        self.event = event


WEIGHTS_HASH = "rank/weights_hash"
BATCH_HASH = "rank/batch_hash"
SHARED_VALUES = frozenset(
    {
        "step_time_s",
        "loader_wait_s",
        "samples_per_s",
        "tokens_per_s",
        "host_rss_bytes",
        "device_allocated_bytes",
        "graphs_kept",
        *HOST_SIGNALS,
        *GPU_SIGNALS,
    }
)
"""Values of the step as a whole, not of one of its optimizers."""

READING_SIGNALS = (
    ("loss", "loss"),
    ("total", "grad_norm"),
    ("coef", "clip_coef"),
    ("scale", "loss_scale"),
)
"""Readings that are signals without a conversion."""


Positions = Callable[[Sequence[Tensor]], list[int]]


@dataclass(slots=True)
class StepRecordBuilder:
    """Values and columns of one step."""

    step: int
    optimizers: int = 1
    values: dict[str, float] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    held: bool = False
    verdicts: list[tuple[StepVerdict, StepContext, str]] = field(default_factory=list)

    def add(
        self, suffix: str, context: StepContext, readings: Readings, positions: Positions
    ) -> None:
        """Add one optimizer's part; `suffix` distinguishes its signals from those of the first."""
        self.held = self.held or context.held
        self._add_values(suffix, context, readings)
        self._add_columns(suffix, context, readings, positions)

    def add_ranks(
        self, tally: RankTable, context: StepContext, ranks: RankGroup, *, bad: bool
    ) -> None:
        """Add the values that each rank has reported.

        Rank 0 records them for all ranks, at measured and at bad steps; other ranks record only
        which rank made a bad number, so that records grow with the number of ranks, not its square.
        """
        first = ranks.rank == 0
        if bad or (first and context.sampled):
            chosen = list(range(ranks.size)) if first else tally.culprits()
            found = tally.columns(chosen)
            weights = found.get(WEIGHTS_HASH)
            if weights is not None and first and ranks.begin_equal is None:
                # Without a wrapper, what begins different is a shard: a stage of a pipeline.
                ranks.begin_equal = len({value for _, value in weights.items()}) == 1
            if ranks.begin_equal is False:
                found.pop(WEIGHTS_HASH, None)
            if ranks.begin_equal is False or ranks.same_batches:
                found.pop(BATCH_HASH, None)  # parts of one model read the same on purpose
            self.columns.update(found)
            if bad:
                self.columns.update(tally.nonfinite(chosen))

    def _add_values(self, suffix: str, context: StepContext, readings: Readings) -> None:
        found: dict[str, float] = self.values if not suffix else {}
        for source, name in READING_SIGNALS:
            if source in readings:
                found[name] = readings[source][0]
        if "clip_divisor" in readings:
            found["clip_coef"] = 1.0 / readings["clip_divisor"][0]
        if "lr" in readings:
            found["lr"] = readings["lr"][0]
        elif not math.isnan(context.lr):
            found["lr"] = context.lr
        if context.limit < LARGEST:
            found["grad_norm_limit"] = context.limit
        if context.held or context.nonfinite_counts is not None:
            found.update(_nonfinite(context, readings))
        own, shared = context.values, {}
        if not own.keys() <= SHARED_VALUES:
            shared = {name: value for name, value in own.items() if name in SHARED_VALUES}
            own = {name: value for name, value in own.items() if name not in SHARED_VALUES}
            found.update(own)
        else:
            shared = own
        if suffix:
            self.values.update({name + suffix: value for name, value in found.items()})
        self.values.update(shared)
        if context.components:
            for name, value in zip(context.components, readings["components"], strict=True):
                self.values[f"loss/{name}"] = value
        if self.optimizers > 1:
            self.values["optimizers"] = float(self.optimizers)

    def _add_columns(
        self, suffix: str, context: StepContext, readings: Readings, positions: Positions
    ) -> None:
        if (context.sampled or context.held) and "each" in readings:
            self._join("param/grad_norm", positions(context.parameters), readings["each"])
        if "factors" in readings and not context.held:
            self._join("param/clip_coef", positions(context.parameters), readings["factors"])
        if "zeros" in readings:
            self._join("param/grad_zero_share", positions(context.parameters), readings["zeros"])
        if context.updated and not context.held:
            index, weights = positions(context.updated), readings["weight_norms"]
            self._join("param/weight_norm", index, weights)
            ratios = map(_ratio, readings["update_norms"], weights)
            known = {at: ratio for at, ratio in zip(index, ratios, strict=True) if ratio < math.inf}
            self._join("param/update_ratio", list(known), list(known.values()))
        if context.buffers:
            norms = [round_digits(norm) for norm in readings["buffer_norms"]]
            self.columns["buffer/norm"] = Column(norms, list(context.buffers))
        if len(context.rates) > 1 and not suffix and not any(map(math.isnan, context.rates)):
            self.columns["group/lr"] = Column(list(context.rates))

    def _join(self, name: str, index: Sequence[int], values: Sequence[float]) -> None:
        known = self.columns.get(name, Column((), ()))
        rounded = [round_digits(value) for value in values]
        self.columns[name] = Column([*known.values, *rounded], [*(known.index or ()), *index])


def _ratio(update: float, weight: float) -> float:
    """‖update‖ / ‖weight‖; infinite, and so left out, where the weight is 0 or non-finite."""
    if weight > 0:
        ratio = update / weight
        return ratio if math.isfinite(ratio) else math.inf
    return math.inf if update > 0 else 0.0


def _nonfinite(context: StepContext, readings: Readings) -> dict[str, float]:
    """How many gradients, and elements where the host has counted them, are non-finite."""
    if context.nonfinite_counts is not None:
        tensors, elements = context.nonfinite_counts
        return {"grad_nonfinite_tensors": float(tensors), "grad_nonfinite": float(elements)}
    if not context.held:
        return {}
    tensors = sum(1 for norm in readings.get("each", ()) if not math.isfinite(norm))
    return {"grad_nonfinite_tensors": float(tensors)} if tensors else {}


@dataclass(slots=True)
class ExtraSignals:
    """Values and columns from outside of the guard, for the record of the next step."""

    values: dict[str, float] = field(default_factory=dict)
    members: dict[str, dict[str, float]] = field(default_factory=dict)
    """Column → name along its axis → value."""
    axes: dict[str, list[str]] = field(default_factory=dict)
    """Names along axes that only these columns use, in order of appearance."""

    def value(self, name: str, value: float) -> None:
        """Set one number of the step; the last value counts."""
        self.values[name] = value

    def column(self, name: str, members: Mapping[str, float]) -> None:
        """Set numbers along an axis (`act/…`), by name."""
        self.members.setdefault(name, {}).update(members)

    def take(self) -> tuple[dict[str, float], dict[str, Column]]:
        """Everything since the last step."""
        if not (self.values or self.members):
            return {}, {}
        values, members = self.values, self.members
        self.values, self.members = {}, {}
        columns = {}
        for name, found in members.items():
            names = self.axes.setdefault(name.partition("/")[0], [])
            names += [member for member in found if member not in names]
            columns[name] = Column(list(found.values()), [names.index(member) for member in found])
        return values, columns
