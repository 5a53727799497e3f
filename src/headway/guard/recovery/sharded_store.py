"""Stores snapshots whose tensors are sharded over ranks (FSDP2, tensor parallel).

With torch.distributed.checkpoint every rank writes its own shards in the background, and another
number of ranks can read them. Buffers are not among them: each rank may have its own running
statistics. Each rank writes, with a checksum and last:

    snapshots/<n>-step<k>/sharded/     what torch.distributed.checkpoint wrote
                          rank<R>.pt   that rank's own, and the outline of the whole state
                          rank<R>.json the seal of that, and of this rank's files in `sharded`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load as load_pieces
from torch.distributed.checkpoint.state_dict_saver import async_save

from headway.guard.recovery.snapshots import SnapshotStore, is_intact, write_with_seal
from headway.guard.recovery.training_state import TrainingState
from headway.torch_adapters.nested_state import (
    compute_seal,
    find_tensors,
    load_file,
    map_with_paths,
    sync_folder,
)
from headway.torch_adapters.rank_group import SingleProcess
from headway.torch_adapters.sharded_tensors import is_dtensor

PIECES = "sharded"
_TENSOR = "$tensor"


class ShardedSnapshotStore(SnapshotStore):
    """As `SnapshotStore`; writing and reading are collective: every rank must take part."""

    def __init__(
        self, folder: Path, *, keep: int, training: TrainingState, agreement: SingleProcess
    ) -> None:
        super().__init__(folder, keep=keep, rank=agreement.rank, ranks=agreement.count)
        self._training = training
        self._group = agreement.group

    def prepare(self, number: int, step: int, state: Any, own: Any) -> Callable[[], None]:
        """Begin a snapshot of the present state; the rest of the work is for another thread."""
        home = self._home(number, step)
        home.mkdir(parents=True, exist_ok=True)
        present = self._training.capture()
        tensors = {
            _key(path): tensor
            for path, tensor in find_tensors(present)
            if self._training.is_shared(path, tensor)
        }
        outline = map_with_paths(present, self._outlined)
        writing: Any = async_save(
            tensors, checkpoint_id=str(home / PIECES), process_group=self._group
        )

        def complete() -> None:
            writing.result()
            mine = sorted((home / PIECES).glob(f"__{self._rank}_*"))
            if self._rank == 0:
                mine.append(home / PIECES / ".metadata")
            seals = {path.name: compute_seal(path) for path in mine}
            write_with_seal(home, self._own_name, {"own": own, "outline": outline}, pieces=seals)
            sync_folder(self.folder)
            if self._rank == 0:
                self._retire()

        return complete

    def read(self, number: int, step: int) -> tuple[Any, Any]:
        home = self._home(number, step)
        mine = home / f"{self._own_name}.pt"
        kept = load_file(mine if mine.exists() else home / "rank0.pt")
        targets: dict[str, Tensor] = {}
        present = self._training.capture()
        parameters = self._training.parameters()

        def target(path: tuple[Any, ...], about: Mapping[str, Any]) -> Tensor:
            found = _empty(path, about, present, parameters)
            targets[_key(path)] = found
            return found

        state = _filled(kept["outline"], target)
        load_pieces(targets, checkpoint_id=str(home / PIECES), process_group=self._group)
        return state, kept["own"] if mine.exists() else None

    def _outlined(self, tensor: Tensor, path: tuple[Any, ...]) -> Any:
        """This rank's own tensors as they are; of shared ones, what is needed to read them."""
        if not self._training.is_shared(path, tensor):
            return tensor.detach().to("cpu", copy=True)
        return {
            _TENSOR: is_dtensor(tensor),
            "shape": tuple(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }

    def _names(self) -> tuple[str, ...]:
        return tuple(f"rank{rank}" for rank in range(self._ranks))

    def _whole(self, home: Path) -> bool:
        """Whether the files that this rank verifies are intact: all ranks divide them."""
        numbers = sorted(int(path.stem.removeprefix("rank")) for path in home.glob("rank*.json"))
        if not numbers or numbers != list(range(len(numbers))):
            return False
        mine = {*numbers[self._rank :: self._ranks], min(self._rank, numbers[-1])}
        return all(_is_intact_with_pieces(home, f"rank{number}") for number in mine)


def _is_intact_with_pieces(home: Path, name: str) -> bool:
    if not is_intact(home, name):
        return False
    try:
        seals = json.loads((home / f"{name}.json").read_text(encoding="utf-8"))["pieces"]
        return all(compute_seal(home / PIECES / piece) == seal for piece, seal in seals.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _key(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))


def _filled(outline: Any, target: Callable[..., Tensor], path: tuple[Any, ...] = ()) -> Any:
    if isinstance(outline, Mapping):
        if _TENSOR in outline:
            return target(path, outline)
        return {key: _filled(item, target, (*path, key)) for key, item in outline.items()}
    if isinstance(outline, (list, tuple)):
        items = [_filled(item, target, (*path, at)) for at, item in enumerate(outline)]
        return items if isinstance(outline, list) else tuple(items)
    return outline


def _empty(
    path: tuple[Any, ...],
    about: Mapping[str, Any],
    present: Mapping[str, Any],
    parameters: list[list[Tensor]],
) -> Tensor:
    """An empty tensor with the saved shape and placement, to read into."""
    dtype = getattr(torch, about["dtype"])
    if not about[_TENSOR]:
        return torch.zeros(about["shape"], dtype=dtype)
    if path[0] == "optimizers":  # moments are placed as their weight is
        return torch.zeros_like(parameters[path[1]][path[3]], dtype=dtype, requires_grad=False)
    like: Any = present
    for key in path:
        like = like[key]
    return torch.zeros_like(like, dtype=dtype)
