"""Snapshots of the last good state, in memory and on disk."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.errors import SettingsError
from headway.torch_adapters import sharded_tensors
from headway.torch_adapters.nested_state import (
    StatePath,
    compute_seal,
    find_tensors,
    load_file,
    map_with_paths,
    numbered_folders,
    save_file,
    sync_folder,
    write_synced_text,
)
from headway.torch_adapters.sharded_tensors import local_part

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


# On disk:

#     snapshots/<n>-step<k>/state.pt     models, optimizers, schedule, scaler, EMA
#                           state.json   its length and checksum, written last
#                           rank<R>.pt   that rank's own: random numbers, guard, place in the data
#                           rank<R>.json

# `n` counts the snapshots of the directory, across restarts of the run; the highest is the newest,
# and none is overwritten.

# A file is written under another name, synced and renamed; its checksum follows. A file without a
# checksum, or with another one, is ignored, so a run killed at any moment keeps its earlier
# snapshots. Everything loads with `weights_only=True`.

STATE = "state"


class SnapshotStore:
    """The snapshots of a run directory, for one rank."""

    def __init__(self, folder: Path, *, keep: int, rank: int = 0, ranks: int = 1) -> None:
        self.folder = folder
        self._keep = max(keep, 1)
        self._rank = rank
        self._ranks = ranks

    def next_number(self) -> int:
        """The number of the next snapshot; ranks agree on it before they write."""
        return max((number for number, _ in self._found()), default=0) + 1

    def prepare(self, number: int, step: int, state: Any, own: Any) -> Callable[[], None]:
        """The work of writing a snapshot, for another thread; `state` must not change meanwhile."""
        return lambda: self.write(number, step, state, own)

    def write(self, number: int, step: int, state: Any, own: Any) -> None:
        """Write a snapshot to disk. Raises OSError, or torch's RuntimeError on a full disk.

        The earlier ones stay valid until the new one is complete.
        """
        home = self._home(number, step)
        home.mkdir(parents=True, exist_ok=True)
        write_with_seal(home, self._own_name, own)
        if self._rank == 0:  # all ranks hold the same
            write_with_seal(home, STATE, state)
        sync_folder(self.folder)
        if self._rank == 0:
            self._retire()

    def newest_first(self) -> Iterator[tuple[int, int]]:
        """(number, step) of the snapshots that are complete for this rank. Reads every byte."""
        return (found for found in self._found() if self._whole(self._home(*found)))

    def read(self, number: int, step: int) -> tuple[Any, Any]:
        """(state, what is this rank's own; None where this rank did not exist then)."""
        home = self._home(number, step)
        own = home / f"{self._own_name}.pt"
        return load_file(home / f"{STATE}.pt"), load_file(own) if own.exists() else None

    @property
    def _own_name(self) -> str:
        return f"rank{self._rank}"

    def _names(self) -> tuple[str, ...]:
        """The parts that make a snapshot complete."""
        return (STATE, *(f"rank{rank}" for rank in range(self._ranks)))

    def _home(self, number: int, step: int) -> Path:
        return self.folder / f"{number}-step{step}"

    def _found(self) -> list[tuple[int, int]]:
        return [(number, step) for number, step, _ in numbered_folders(self.folder)]

    def _whole(self, home: Path) -> bool:
        # A new rank has no file of its own; a rank that took part must have a complete one.
        own = not (home / f"{self._own_name}.json").exists() or is_intact(home, self._own_name)
        return own and is_intact(home, STATE)

    def _retire(self) -> None:
        complete = 0
        for found in self._found():
            home = self._home(*found)
            if complete >= self._keep:
                # The checksums first: without them the rest is ignored.
                for seal in home.glob("*.json"):
                    seal.unlink(missing_ok=True)
                shutil.rmtree(home, ignore_errors=True)
            complete += all((home / f"{name}.json").exists() for name in self._names())


def write_with_seal(home: Path, name: str, content: Any, **more: Any) -> None:
    """Write `<name>.pt`, then its checksum file, which also contains `more`."""
    new = home / f"{name}.pt.new"
    seal = save_file(new, content)
    os.replace(new, home / f"{name}.pt")
    fresh = home / f"{name}.json.new"
    write_synced_text(fresh, json.dumps({**seal, **more}))
    os.replace(fresh, home / f"{name}.json")
    sync_folder(home)


def is_intact(home: Path, name: str) -> bool:
    """Whether a file matches its checksum."""
    try:
        seal = json.loads((home / f"{name}.json").read_text(encoding="utf-8"))
        return compute_seal(home / f"{name}.pt", seal["bytes"]) == {
            "bytes": seal["bytes"],
            "sha256": seal["sha256"],
        }
    except (OSError, ValueError, KeyError, TypeError):
        return False
