"""Optimizer state in a checkpoint: which parameter each moment belongs to, and the value of its
step counter.
"""

from __future__ import annotations

import struct

from headway.checkpoints import checkpoint_info
from headway.checkpoints.checkpoint_info import SavedTensor
from headway.checkpoints.formats.torch_legacy import root_of
from headway.checkpoints.pickle_rebuild import TensorRef
from headway.checkpoints.tensor_naming import NamedLeaf, SavedOptimizer


def moment_names(leaves: list[NamedLeaf], optimizers: list[SavedOptimizer]) -> list[str]:
    """The names of all; a moment bears its parameter's where that is certain."""
    known = [_parameter_names(leaves, optimizers, n) for n in range(len(optimizers))]
    names = []
    for leaf in leaves:
        if leaf.optimizer is None:
            names.append(leaf.name)
            continue
        key, rest = leaf.path[0], leaf.path[1:]
        prefix = f"optimizer{leaf.optimizer}." if leaf.optimizer else ""
        named = known[leaf.optimizer].get(key)
        if named is None:
            named = f"{prefix}state.{key}" if key.isdigit() else key
        names.append(".".join((named, *rest)))
    return names


def _parameter_names(
    leaves: list[NamedLeaf], optimizers: list[SavedOptimizer], number: int
) -> dict[str, str]:
    """The name behind each index of an optimizer, if all of them fit by number and shape."""
    order = [str(key) for key in optimizers[number].order if isinstance(key, int)]
    if not order:
        return {}
    weights: list[tuple[str, tuple[int, ...]]] = []
    seen = set()
    for leaf in leaves:
        if (
            leaf.role != "weight"
            or not isinstance(leaf.ref, TensorRef)
            or leaf.optimizer is not None
        ):
            continue
        same = (id(root_of(leaf.ref.storage)), leaf.ref.offset, leaf.ref.size)
        if same not in seen:
            seen.add(same)
            weights.append((leaf.name, leaf.ref.size))
    shapes: dict[str, tuple[int, ...]] = {}
    for leaf in leaves:
        own = leaf.optimizer == number and leaf.role == "moment"
        if own and isinstance(leaf.ref, TensorRef) and leaf.ref.size:
            shapes.setdefault(leaf.path[0], leaf.ref.size)
    flat = list(weights)
    # Weight decay for matrices only is the other common order.
    matrices = [w for w in weights if len(w[1]) >= 2] + [w for w in weights if len(w[1]) < 2]
    orders = [flat, matrices] if len(optimizers[number].groups) == 2 else [flat]
    if len(optimizers[number].groups) > 2:
        return {}
    for candidate in orders:
        if len(candidate) == len(order) and all(
            shapes.get(key, shape) == shape
            for key, (_, shape) in zip(order, candidate, strict=True)
        ):
            return {key: name for key, (name, _) in zip(order, candidate, strict=True)}
    return {}


def read_step_counter(tensors: list[SavedTensor]) -> int | None:
    """The value of the first `step` of an optimizer: four bytes."""
    for tensor in tensors:
        if tensor.name.endswith(".step") and tensor.numel == 1 and tensor.inflate is None:
            form = {"float32": "f", "float64": "d", "int64": "q", "int32": "i"}.get(tensor.dtype)
            if form is None:
                return None
            with open(tensor.span.file, "rb") as file:
                file.seek(tensor.span.offset)
                data = file.read(struct.calcsize(form))
            order = "<" if tensor.byteorder == "little" else ">"
            try:
                value = struct.unpack(order + form, data)[0]
                return int(value) if 0 <= value < checkpoint_info.MAX_STEP else None
            except (struct.error, ValueError, OverflowError):
                return None
    return None
