"""Snapshots of the last good state in memory, and the settings of snapshots."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.errors import SettingsError
from headway.torch_adapters.nested_state import StatePath, find_tensors, map_with_paths
from headway.torch_adapters.process_groups import sharded_tensors
from headway.torch_adapters.process_groups.sharded_tensors import local_part

# "Good" means verified finite when taken: every floating-point tensor of weights, buffers, moments
# and other state. On the CPU a snapshot is a copy. On CUDA the state is gathered into one flat
# tensor per dtype on the device (about a millisecond for a gigabyte) and copied to pinned memory
# behind the training's own work, without a wait.


@dataclass(frozen=True, slots=True)
class Snapshots:
    """When snapshots are taken and how many are kept."""

    every: int = 100
    """Steps between two snapshots in memory; 0: none, so the run cannot be rolled back."""
    in_memory: int = 2
    """How many are kept there. Each takes as much host memory as weights and moments together."""
    on_disk: int = 3
    """How many are kept in the run directory; 0: none, so the run cannot be resumed."""
    disk_share: float = 0.02
    """Maximum share of the time spent on writing; 1 writes every snapshot."""
    on_signal: bool = True
    """SIGTERM and SIGUSR1 take a snapshot and exit (only with a run directory)."""

    def __post_init__(self) -> None:
        for name in ("every", "on_disk"):
            if getattr(self, name) < 0:
                raise SettingsError(
                    f"Snapshots({name}=…) must be at least 0: got {getattr(self, name)}"
                )
        if self.in_memory < 1:
            raise SettingsError(f"Snapshots(in_memory=…) must be at least 1: got {self.in_memory}")
        if not 0.0 < self.disk_share <= 1.0:
            raise SettingsError(f"Snapshots(disk_share=…) must be in (0, 1]: got {self.disk_share}")


@dataclass(slots=True, eq=False)
class Snapshot:
    """A state of a training on the host. Use it only if it is `good`."""

    step: int
    """Steps made before the snapshot."""
    state: dict[str, Any]
    rank: dict[str, Any] = field(default_factory=dict)
    """This rank's own state: random numbers, the guard, the position in the data."""
    extremes: list[Tensor] = field(default_factory=list)
    """Smallest and largest value of every floating-point tensor."""
    event: torch.cuda.Event | None = None
    """Recorded after the copy; None on the CPU, where it is complete."""
    memory: list[Tensor] = field(default_factory=list)
    """The pinned memory of the copy."""
    busy: bool = False
    """Whether it is being written to disk: its memory must not be reused yet."""

    @property
    def good(self) -> bool:
        """Whether everything in it is finite. Waits for the copy."""
        if self.event is not None:
            self.event.synchronize()
        return all(math.isfinite(value) for pair in self.extremes for value in pair.tolist())


def take_snapshot(
    step: int,
    state: Mapping[str, Any],
    reuse: Snapshot | None = None,
    tolerated: Collection[StatePath] = (),
) -> Snapshot:
    """Copy a state.

    `reuse` is a snapshot whose memory may be overwritten; `tolerated` are the paths where a
    non-finite value is intended, as in a mask of -inf.
    """
    copier = _Copier(tolerated)
    copied = map_with_paths(state, copier.note)
    copier.copy([] if reuse is None else reuse.memory)
    return Snapshot(step, _settle(copied), {}, copier.extremes, copier.event, copier.memory)


def state_bytes(state: Mapping[str, Any]) -> int:
    """Bytes of a state."""
    return sum(local_part(tensor).nbytes for _, tensor in find_tensors(state))


class _Copier:
    """Copies many tensors at once."""

    def __init__(self, tolerated: Collection[StatePath]) -> None:
        self._tolerated = tolerated
        self.extremes: list[Tensor] = []
        self.memory: list[Tensor] = []
        self.event: torch.cuda.Event | None = None
        self._places: dict[tuple[Any, ...], _CopyTarget] = {}

    def note(self, tensor: Tensor, path: StatePath) -> Any:
        """Its place in the copy: two names of one tensor share it."""
        return sharded_tensors.copy_local(
            tensor, lambda part: self._place(part, path in self._tolerated)
        )

    def copy(self, memory: list[Tensor]) -> None:
        """Copy everything noted."""
        groups: dict[tuple[Any, ...], list[_CopyTarget]] = {}
        for place in self._places.values():
            tensor = place.tensor
            if tensor.layout is torch.strided:
                key = (tensor.device, tensor.dtype, place.tolerated)
                groups.setdefault(key, []).append(place)
            else:
                place.tensor = tensor.to("cpu", copy=True)
                self._verify(place.tensor.coalesce().values())
        flats = [self._gather(places) for places in groups.values()]
        if any(flat.is_cuda for flat in flats):
            targets = self._send(flats, memory)
        else:
            targets = flats
        for places, target in zip(groups.values(), targets, strict=True):
            sizes = [place.tensor.numel() for place in places]
            for place, part in zip(places, target.split(sizes), strict=True):
                place.tensor = _shaped_like(place.tensor, part)

    def _gather(self, places: list[_CopyTarget]) -> Tensor:
        flat = torch.cat([_flat(place.tensor) for place in places])
        if not places[0].tolerated:
            self._verify(flat)
        return flat

    def _send(self, flats: list[Tensor], memory: list[Tensor]) -> list[Tensor]:
        """Copy everything to pinned memory, behind the queued work."""
        device = next(flat.device for flat in flats if flat.is_cuda)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            targets = [_to_pinned(flat, memory, side) for flat in flats]
            self.extremes = [_to_pinned(pair, [], side) for pair in self.extremes]
            self.event = torch.cuda.Event()
            self.event.record(side)
        self.memory = targets
        return targets

    def _place(self, tensor: Tensor, tolerated: bool) -> Any:
        place = _CopyTarget(tensor, tolerated)
        if tensor.layout is not torch.strided or tensor.numel() == 0:
            return self._places.setdefault((id(tensor),), place)
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        return self._places.setdefault(key, place)

    def _verify(self, values: Tensor) -> None:
        if values.is_complex():
            values = torch.view_as_real(values)
        if values.is_floating_point() and values.numel():
            # One pass; NaN and Inf propagate.
            self.extremes.append(torch.stack(list(torch.aminmax(values))).double())


@dataclass(slots=True, eq=False)
class _CopyTarget:
    tensor: Tensor
    tolerated: bool


def _flat(tensor: Tensor) -> Tensor:
    """Its values in memory order, so that channels-last moments are restored as such."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.permute(_by_stride(tensor)).reshape(-1)


def _shaped_like(tensor: Tensor, flat: Tensor) -> Tensor:
    if tensor.is_contiguous():
        return flat.view(tensor.shape)
    order = _by_stride(tensor)
    shape = [tensor.shape[dim] for dim in order]
    return flat.view(shape).permute([order.index(dim) for dim in range(tensor.ndim)])


def _by_stride(tensor: Tensor) -> list[int]:
    strides = tensor.stride()
    return sorted(range(tensor.ndim), key=lambda dim: -strides[dim])


def _to_pinned(source: Tensor, memory: list[Tensor], side: torch.cuda.Stream) -> Tensor:
    if not source.is_cuda:
        return source
    source.record_stream(side)
    for target in memory:
        if target.is_pinned() and target.shape == source.shape and target.dtype == source.dtype:
            return target.copy_(source, non_blocking=True)
    target = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=True)
    return target.copy_(source, non_blocking=True)


def _settle(value: Any) -> Any:
    """The nested state with every target replaced by its copy."""
    if isinstance(value, _CopyTarget):
        return value.tensor
    if isinstance(value, sharded_tensors.LocalShard):
        return sharded_tensors.LocalShard(_settle(value.local), value.like)
    if isinstance(value, dict):
        return type(value)({key: _settle(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)([_settle(item) for item in value])
    return value
