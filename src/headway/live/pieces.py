"""A rank's own part of tensors that are spread over ranks (DTensor: FSDP2, tensor parallel).

In memory each rank keeps a copy of its own shard together with how it fits into the whole, and puts
it back without a word to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from headway.live.shards import is_dtensor, local_part
from headway.torch_tools.nested import map_tensors


@dataclass(frozen=True, slots=True)
class Piece:
    """One rank's part of a tensor."""

    local: Tensor
    like: Any
    """The DTensor's mesh, placements, shape and stride."""


def is_piece(value: Any) -> bool:
    return isinstance(value, Piece)


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of the whole."""
    if isinstance(value, Piece):
        return tuple(value.like[2])
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def copied(tensor: Tensor, copy: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a tensor, or of this rank's part of it."""
    if not is_dtensor(tensor):
        return copy(tensor.detach())
    whole: Any = tensor
    like = (whole.device_mesh, whole.placements, tuple(whole.shape), tuple(whole.stride()))
    return Piece(copy(local_part(whole)), like)


def fill(target: Tensor, saved: Any) -> None:
    """Copy a saved tensor, or this rank's part of it, into one in use."""
    local_part(target).copy_(saved.local if isinstance(saved, Piece) else local_part(saved))


def revive(state: Any, optimizer: Optimizer) -> Any:
    """An optimizer's saved state as tensors of its own, ready to be loaded."""
    device = next((p.device for group in optimizer.param_groups for p in group["params"]), None)

    def alive(value: Any) -> Any:
        if isinstance(value, Piece):
            from torch.distributed.tensor import DTensor

            mesh, placements, shape, stride = value.like
            part = value.local.to(device, copy=True)
            return DTensor.from_local(
                part, mesh, placements, run_check=False, shape=shape, stride=stride
            )
        if isinstance(value, Mapping):
            return {key: alive(item) for key, item in value.items()}
        return map_tensors(value, Tensor.clone)

    return alive(state)
