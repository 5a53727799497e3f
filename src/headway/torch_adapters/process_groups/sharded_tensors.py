"""Tensors of which a rank holds only a part: DTensor, FSDP2, FSDP."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.torch_adapters.nested_state import map_tensors

# Parameters of which a rank holds only a part.

# Operations of a DTensor communicate. The guard measures what is on this rank and lets its one
# reduction do the rest, so it must know, for every parameter, how many ranks hold the same piece: a
# norm over all ranks counts each piece once.

_ORDINARY = (Tensor, nn.Parameter)


def is_dtensor(tensor: Tensor) -> bool:
    """Whether it is a DTensor; asking never imports what makes one."""
    if type(tensor) in _ORDINARY:  # asked of many tensors at every step
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Any) -> Any:
    """The part on this rank, sharing its memory: of an ordinary tensor, everything."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def local_values(tensor: Any) -> Any:
    """The part on this rank, reduced first where every rank holds a summand."""
    if is_dtensor(tensor) and any(place.is_partial() for place in tensor.placements):
        tensor = replicated(tensor)
    return local_part(tensor)


def replicated(tensor: Any) -> Any:
    """A DTensor whose summands were added up; a collective of all ranks of its mesh."""
    from torch.distributed.tensor import Replicate

    places = [Replicate() if place.is_partial() else place for place in tensor.placements]
    return tensor.redistribute(placements=places)


def gradient_of(parameter: Any) -> Any:
    """Its gradient; of one that FSDP2 gathers without reducing it yet, the sum so far."""
    gradient = parameter.grad
    if gradient is None and is_dtensor(parameter):
        unit = _units.get(id(parameter))
        if unit is not None and unit.sharded_param is parameter:
            whole = getattr(unit, "_unsharded_param", None)
            gradient = unit.unsharded_accumulated_grad
            gradient = gradient if gradient is not None or whole is None else whole.grad
    return gradient


def register_fsdp_units(models: Iterable[nn.Module]) -> None:
    """Learn which parameters FSDP2 has sharded: their gradients may not be in `.grad` yet."""
    for model in models:
        for group in parameter_groups(model):
            for unit in group.fsdp_params:
                _units[id(unit.sharded_param)] = unit


_units: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""FSDP2's own object for a parameter, by the parameter's identity."""


def parameter_groups(model: nn.Module) -> list[Any]:
    """The groups of parameters that FSDP2 reduces together."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    found: list[Any] = []
    if kind is None:
        return found
    for unit in model.modules():
        if isinstance(unit, kind):
            state = _fsdp_state(unit)
            one = [getattr(state, "_fsdp_param_group", None)]  # as torch named it before 2.9
            found += [group for group in getattr(state, "_fsdp_param_groups", one) if group]
    return found


def reset_fsdp(models: Iterable[nn.Module]) -> None:
    """Put FSDP2 in order after a forward or backward that was not run to its end."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is None:
        return
    states = [
        _fsdp_state(unit) for model in models for unit in model.modules() if isinstance(unit, kind)
    ]
    for state in states:
        if getattr(state, "_is_root", False):
            # Another torch may keep its state otherwise: then it stays as the pass left it, and
            # the next forward raises torch's own error.
            with suppress(AttributeError):
                _reset(state)
    for group in [group for model in models for group in parameter_groups(model)]:
        for unit in group.fsdp_params:
            unit.unsharded_accumulated_grad = None
            if getattr(unit, "_unsharded_param", None) is not None:
                unit._unsharded_param.grad = None


def _fsdp_state(unit: nn.Module) -> Any:
    """What FSDP2 knows of a module; None where torch has no such method: then its gradients are
    known only once they are reduced."""
    find = getattr(unit, "_get_fsdp_state", None)
    return None if find is None else find()


def _reset(root: Any) -> None:
    if hasattr(root, "_reset_iter_state"):  # since torch 2.12
        root._reset_iter_state()
        return
    context, comm = root._state_ctx, root._comm_ctx
    comm.all_gather_state = None
    comm.post_forward_order.clear()
    for name in ("reduce_scatter_state", "reduce_scatter_states"):
        if hasattr(comm, name):
            setattr(comm, name, [] if name.endswith("s") else None)
    for state in context.all_states:
        idle = type(state._training_state).IDLE
        state._training_state = idle
        one = [getattr(state, "_fsdp_param_group", None)]
        for group in getattr(state, "_fsdp_param_groups", one):
            if group is not None:
                group._all_gather_result = group._post_reduce_event = None
                group._reshard_after_forward_event = group._all_reduce_state = None
                group._partial_reduce_output = None
                group._post_forward_indices.clear()
                group._training_state = idle
                group._to_sharded()
    context.iter_forward_root = None
    context.post_backward_final_callback_queued = False


class ReplicaCounts:
    """The number of ranks of a group that have the same shard of a parameter."""

    def __init__(self, models: Iterable[nn.Module], size: int, *, alike: bool) -> None:
        """`alike`: every rank of the group has the same list of parameters."""
        self._size = size
        self._alike = alike
        self._flat = _flat_parameters(models)

    def of(self, parameter: Any) -> int:
        """Ranks that hold the same piece, this one included; all of them: it is a replica."""
        pieces = self._flat.get(id(parameter), 1)
        members = self._size
        if is_dtensor(parameter):
            mesh = parameter.device_mesh
            for dimension, place in enumerate(parameter.placements):
                if place.is_shard():
                    pieces *= mesh.size(dimension)
            # Ranks outside the mesh hold copies, unless they hold other parameters altogether.
            members = self._size if self._alike else mesh.size()
        return max(members // pieces, 1)


def _flat_parameters(models: Iterable[nn.Module]) -> dict[int, int]:
    """Parameters that FullyShardedDataParallel (the first) cut up, with the number of pieces."""
    module = sys.modules.get("torch.distributed.fsdp")
    if module is None:
        return {}
    found: dict[int, int] = {}
    for model in models:
        # The outermost first: what an inner unit cut up itself, it overwrites.
        for unit in model.modules():
            if isinstance(unit, module.FullyShardedDataParallel):
                whole = unit.sharding_strategy is module.ShardingStrategy.NO_SHARD
                pieces = 1 if whole else unit.process_group.size()
                found.update({id(parameter): pieces for parameter in unit.parameters()})
    return found


def is_flat(model: nn.Module) -> bool:
    """Whether FullyShardedDataParallel (the first) has made flat parameters of this model's."""
    module = sys.modules.get("torch.distributed.fsdp")
    if module is None:
        return False
    return any(isinstance(unit, module.FullyShardedDataParallel) for unit in model.modules())


def describe_mesh(tensors: Iterable[Tensor]) -> dict[str, Any]:
    """Shape and names of the device mesh of the first DTensor; empty without one."""
    for tensor in tensors:
        if is_dtensor(tensor):
            mesh = cast(Any, tensor).device_mesh
            return {"shape": list(mesh.shape), "names": list(mesh.mesh_dim_names or ())}
    return {}


def names_and_shapes(models: Iterable[nn.Module]) -> Sequence[tuple[str, tuple[int, ...]]]:
    """The names and shapes of a model's tensors, to compare with the other ranks."""
    return [
        (name, tuple(parameter.shape) if is_dtensor(parameter) else (parameter.ndim,))
        for model in models
        for name, parameter in model.named_parameters()
    ]


# A rank's own part of tensors that are spread over ranks (DTensor: FSDP2, tensor parallel).

# In memory each rank keeps a copy of its own shard together with how it fits into the whole, and
# puts it back without a word to the others.


@dataclass(frozen=True, slots=True)
class LocalShard:
    """One rank's part of a tensor."""

    local: Tensor
    like: Any
    """The DTensor's mesh, placements, shape and stride."""


def is_local_shard(value: Any) -> bool:
    return isinstance(value, LocalShard)


def full_shape(value: Any) -> tuple[int, ...]:
    """The shape of the whole."""
    if isinstance(value, LocalShard):
        return tuple(value.like[2])
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def copy_local(tensor: Tensor, copy: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a tensor, or of this rank's part of it."""
    if not is_dtensor(tensor):
        return copy(tensor.detach())
    whole: Any = tensor
    like = (whole.device_mesh, whole.placements, tuple(whole.shape), tuple(whole.stride()))
    return LocalShard(copy(local_part(whole)), like)


def fill_local(target: Tensor, saved: Any) -> None:
    """Copy a saved tensor, or this rank's part of it, into one in use."""
    local_part(target).copy_(saved.local if isinstance(saved, LocalShard) else local_part(saved))


def revive_optimizer_state(state: Any, optimizer: Optimizer) -> Any:
    """An optimizer's saved state as tensors of its own, ready to be loaded."""
    device = next((p.device for group in optimizer.param_groups for p in group["params"]), None)

    def alive(value: Any) -> Any:
        if isinstance(value, LocalShard):
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
