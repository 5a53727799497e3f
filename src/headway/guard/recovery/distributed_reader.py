"""Reads snapshots of several ranks, for as many ranks as there are now."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_dcp

from headway.guard.recovery.snapshot_files import Manifest, SnapshotFolder
from headway.guard.recovery.snapshot_store import OWN, STATE, SavedTraining
from headway.guard.recovery.training_state import TrainingState
from headway.torch_adapters.nested_state import StatePath, find_tensors, load_safely, map_with_paths
from headway.torch_adapters.process_groups.rank_agreement import SingleProcess
from headway.torch_adapters.process_groups.sharded_tensors import is_dtensor

PIECES = "dcp"
"""The folder of a snapshot that torch.distributed.checkpoint writes."""
TENSOR = "$tensor"
"""Marks the place of a tensor in the outline of a state."""
SHARED, PER_RANK = "shared", "own"


def state_key(path: StatePath) -> str:
    """The name under which a tensor of the state is stored."""
    return "/".join(map(str, path))


def packed_key(rank: int) -> str:
    """The name under which everything of a rank is stored that is not a tensor."""
    return f"rank{rank}"


def own_key(rank: int, path: StatePath) -> str:
    """The name under which a rank's own tensor is stored."""
    return f"rank{rank}/{state_key(path)}"


class SnapshotReader:
    """Reads one snapshot into new tensors. Every rank must take part.

    Rank 0 alone reads what is the same on all ranks, and sends it to the others.
    """

    def __init__(
        self,
        files: SnapshotFolder,
        home: str,
        manifest: Manifest,
        training: TrainingState,
        agreement: SingleProcess,
    ) -> None:
        self._files = files
        self._home = home
        self._manifest = manifest
        self._present = training.capture()
        self._parameters = training.parameters()
        self._agreement = agreement
        self._own: dict[str, Tensor] = {}
        self._sharded: dict[str, Tensor] = {}
        self._shared: dict[StatePath, Tensor] = {}

    def __call__(self) -> SavedTraining:
        manifest, rank = self._manifest, self._agreement.rank
        source = rank % manifest.world_size
        if manifest.format == "file":
            state, own = self._read_file()
        else:
            packed = self._read_packed(source)
            own = packed["own"]
            state = _filled(
                packed["outline"], lambda path, about: self._target(source, path, about)
            )
            self._load({**self._own, **self._sharded})
            if rank == 0:
                self._load({state_key(path): tensor for path, tensor in self._shared.items()})
        paths = tuple(sorted(self._shared, key=state_key))
        self._agreement.broadcast([self._shared[path] for path in paths])
        return SavedTraining(manifest.step, state, own, manifest.world_size, rank == source, paths)

    def _read_file(self) -> tuple[Any, Any]:
        """Reads what one process wrote with `torch.save`, on rank 0."""
        first = self._agreement.rank == 0
        loaded = self._files.read(self._home, STATE) if first else None
        own = self._files.read(self._home, OWN) if first else None
        outline, own = self._agreement.from_rank_zero((map_with_paths(loaded, _about), own))
        found = dict(find_tensors(loaded)) if first else {}

        def target(path: StatePath, about: Mapping[str, Any]) -> Tensor:
            tensor = found[path] if first else _zeros(about)
            self._shared[path] = tensor
            return tensor

        return _filled(outline, target), own

    def _read_packed(self, source: int) -> Any:
        name = packed_key(source)
        about: Any = self._reader().read_metadata().state_dict_metadata[name]
        packed = torch.zeros(about.size, dtype=torch.uint8)
        self._load({name: packed})
        return _unpack(packed)

    def _load(self, targets: dict[str, Tensor]) -> None:
        if targets:
            with warnings.catch_warnings():
                # Every rank reads the files itself, on purpose.
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                load_dcp(dict(targets), storage_reader=self._reader(), no_dist=True)

    def _reader(self) -> FileSystemReader:
        return FileSystemReader(self._files.place(self._home) / PIECES)

    def _target(self, source: int, path: StatePath, about: Mapping[str, Any]) -> Tensor:
        """An empty tensor to read into, on the device of the present one."""
        if about[TENSOR] == PER_RANK:
            return self._own.setdefault(own_key(source, path), _zeros(about))
        like = _find(self._parameters, path[1:4:2]) if path[0] == "optimizers" else None
        if like is None or tuple(like.shape) != tuple(about["shape"]):  # the counter of a moment
            like = _find(self._present, path)
        if isinstance(like, Tensor) and is_dtensor(like):
            dtype = getattr(torch, about["dtype"])
            tensor = torch.zeros_like(like, dtype=dtype, requires_grad=False)
            return self._sharded.setdefault(state_key(path), tensor)
        return self._shared.setdefault(path, _zeros(about))


def _unpack(packed: Tensor) -> Any:
    data = packed.numpy().tobytes()
    length = int.from_bytes(data[:8], "big")
    return load_safely(io.BytesIO(data[8 : 8 + length]), map_location="cpu")


def _zeros(about: Mapping[str, Any]) -> Tensor:
    return torch.zeros(about["shape"], dtype=getattr(torch, about["dtype"]))


def _about(tensor: Tensor, path: StatePath) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {TENSOR: SHARED, "shape": tuple(tensor.shape), "dtype": dtype}


def _find(value: Any, path: StatePath) -> Any:
    """The value at a path of the present state; None if there is none."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _filled(outline: Any, target: Callable[..., Tensor], path: StatePath = ()) -> Any:
    if isinstance(outline, Counter):
        return outline
    if isinstance(outline, Mapping):
        if TENSOR in outline:
            return target(path, outline)
        return {key: _filled(item, target, (*path, key)) for key, item in outline.items()}
    if isinstance(outline, (list, tuple)):
        items = [_filled(item, target, (*path, at)) for at, item in enumerate(outline)]
        return items if isinstance(outline, list) else tuple(items)
    return outline
