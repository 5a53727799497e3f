"""Names the tensors of a loaded object and gives each a role: weight, buffer, optimizer moment.

A checkpoint is a dict of dicts, and each project nests them differently. The outer wrapper of the
weights (`state_dict`, `model_state_dict`, …) is left out of the names. An optimizer is recognised
by `state` and `param_groups`, a pickled module by `_parameters` and `_modules`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headway.checkpoints import checkpoint_info
from headway.checkpoints.checkpoint_info import SavedTensor
from headway.checkpoints.formats.torch_legacy import root_of
from headway.checkpoints.pickle_rebuild import ArrayRef, TensorRef
from headway.checkpoints.pickle_values import Stub, short_text

WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "module",
    "net",
    "network",
    "weights",
    "params",
)
MAX_DEPTH = 60
MAX_LEAVES = 2_000_000

_BUFFER = re.compile(
    r"(^|[._])(running_(mean|var)|num_batches_tracked|inv_freq|original_inv_freq|position_ids|"
    r"token_type_ids|masked_bias|\w*mask|relative_position_index|cos_cached|sin_cached|freqs_cis|"
    r"anchors?|anchor_grid|total_(ops|params)|min_val|max_val|scale_factor_buffer|"
    r"activation_post_process\S*|"
    # Diffusion schedules: the first or last step may be the logarithm of 0.
    r"\w*alphas?_cumprod\w*|betas|sigmas|timesteps|posterior_\w+|lvlb_weights|\w*log_?snr\w*)$"
)
_OTHER = re.compile(
    r"(rng|random|generator|scheduler|sched|scaler|amp|loop|callback|criterion|history|sampler|"
    r"dataloader|data_state|loss|metric|args|config|hparams|hyper_parameters|lr$|logs?$)",
    re.IGNORECASE,
)
_STEPS = frozenset({"step", "steps", "_step"})


@dataclass(slots=True)
class NamedLeaf:
    """A tensor in the loaded object."""

    path: tuple[str, ...]
    role: str
    ref: TensorRef | ArrayRef
    optimizer: int | None = None
    """Index of the optimizer whose state it is; the path is then (parameter, what)."""

    @property
    def name(self) -> str:
        """Its dotted path."""
        return ".".join(self.path) or "tensor"


class SavedOptimizer:
    """The parts of an optimizer's state that are not tensors."""

    def __init__(self, state: dict[Any, Any]) -> None:
        groups = state.get("param_groups")
        self.groups = [g for g in groups if isinstance(g, dict)] if isinstance(groups, list) else []
        self.order: list[Any] = []
        for group in self.groups:
            params = group.get("params")
            if isinstance(params, list):
                self.order += params
        self.state = state.get("state")

    @property
    def rates(self) -> list[float]:
        """The learning rate of each group."""
        return [float(g["lr"]) for g in self.groups if isinstance(g.get("lr"), (int, float))]


def is_optimizer(value: Any) -> bool:
    """Whether it is an `optimizer.state_dict()`."""
    return isinstance(value, dict) and "state" in value and "param_groups" in value


def is_module(value: Any) -> bool:
    """Whether it is a pickled module."""
    return isinstance(value, Stub) and "_parameters" in value.attributes


class TensorWalk:
    """One pass over a loaded object; each container is visited once."""

    def __init__(self) -> None:
        self.optimizers: list[SavedOptimizer] = []
        self._seen: set[int] = set()
        self._leaves = 0

    def leaves(self, root: Any) -> Iterator[NamedLeaf]:
        """Every tensor, in the order of the file."""
        if isinstance(root, dict) and not is_optimizer(root):
            yield from self._top(root)
        elif isinstance(root, (TensorRef, ArrayRef)):
            yield NamedLeaf((), "other", root)
        else:
            yield from self._go(root, (), "weight", 0)

    def _top(self, root: dict[Any, Any]) -> Iterator[NamedLeaf]:
        stripped = next((w for w in WRAPPERS if holds_tensors(root.get(w))), None)
        flat = stripped is None
        self._seen.add(id(root))
        for key, value in root.items():
            path: tuple[str, ...] = () if key == stripped else (_key(key),)
            role = "weight"
            if (
                key != stripped and _OTHER.search(_key(key)) and not (flat and _plain_name(key))
            ) or (not flat and isinstance(value, (TensorRef, ArrayRef))):
                role = "other"
            yield from self._go(value, path, role, 1)

    def _go(self, value: Any, path: tuple[str, ...], role: str, depth: int) -> Iterator[NamedLeaf]:
        if isinstance(value, (TensorRef, ArrayRef)):
            self._leaves += 1
            if self._leaves <= MAX_LEAVES:
                yield NamedLeaf(path, self._role(path, role, value), value)
            if isinstance(value, ArrayRef) and value.items:
                yield from self._each(enumerate(value.items), path, "other", depth)
            return
        if not isinstance(value, (dict, list, tuple, Stub)) or depth > MAX_DEPTH:
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, dict) and is_optimizer(value):
            yield from self._optimizer(value, depth)
        elif isinstance(value, Stub) and is_module(value):
            yield from self._module(value, path, depth)
        elif isinstance(value, dict):
            yield from self._each(value.items(), path, role, depth)
        elif isinstance(value, (list, tuple)):
            yield from self._each(enumerate(value), path, role, depth)
        else:
            yield from self._stub(value, path, role, depth)

    def _each(
        self, pairs: Any, path: tuple[str, ...], role: str, depth: int
    ) -> Iterator[NamedLeaf]:
        for key, value in pairs:
            if isinstance(value, (dict, list, tuple, Stub, TensorRef, ArrayRef)):
                yield from self._go(value, (*path, _key(key)), role, depth + 1)

    def _stub(
        self, value: Stub, path: tuple[str, ...], role: str, depth: int
    ) -> Iterator[NamedLeaf]:
        attributes = value.attributes
        if value.module.startswith("__torch__"):
            yield from self._each(attributes.items(), path, role, depth)
            return
        # The local part of a distributed tensor.
        local = attributes.get("_local_tensor")
        if isinstance(local, TensorRef):
            yield from self._go(local, path, role, depth + 1)
            return
        inside = "other" if value.module.partition(".")[0] not in ("torch", "") else role
        yield from self._each(attributes.items(), path, inside, depth)
        yield from self._each(enumerate(value.args), path, inside, depth)
        yield from self._each(enumerate(value.items), path, inside, depth)
        yield from self._each(value.pairs.items(), path, inside, depth)

    def _module(self, value: Stub, path: tuple[str, ...], depth: int) -> Iterator[NamedLeaf]:
        attributes = value.attributes
        for part, role in (
            ("_parameters", "weight"),
            ("_buffers", "buffer"),
            ("_modules", "weight"),
        ):
            inside = attributes.get(part)
            if isinstance(inside, dict):
                for key, child in inside.items():
                    for leaf in self._go(child, (*path, _key(key)), role, depth + 1):
                        if part == "_buffers":
                            leaf.role = "buffer"
                        yield leaf

    def _optimizer(self, value: dict[Any, Any], depth: int) -> Iterator[NamedLeaf]:
        number = len(self.optimizers)
        self.optimizers.append(SavedOptimizer(value))
        state = value.get("state")
        if not isinstance(state, dict):
            return
        for parameter, kept in state.items():
            for leaf in self._go(kept, (_key(parameter),), "moment", depth + 1):
                if leaf.path[-1] in _STEPS:
                    leaf.role = "other"
                leaf.optimizer = number
                yield leaf

    def _role(self, path: tuple[str, ...], role: str, ref: TensorRef | ArrayRef) -> str:
        if role != "weight":
            return role
        return role_of(".".join(path), _dtype(ref))


def role_of(name: str, dtype: str) -> str:
    """Weight or buffer, by name and dtype."""
    if _BUFFER.search(name):
        return "buffer"
    if dtype in ("int64", "int32", "bool", "uint8", "int16") and not name.endswith("weight"):
        return "buffer"
    return "weight"


def _dtype(ref: TensorRef | ArrayRef) -> str:
    if isinstance(ref, TensorRef):
        return ref.dtype
    from headway.checkpoints.dtypes import of_numpy

    return (of_numpy(ref.dtype.code) if ref.dtype else None) or ""


def _key(key: Any) -> str:
    return short_text(key) if isinstance(key, (str, int)) else type(key).__name__


def _plain_name(key: Any) -> bool:
    """Whether it is the name of a tensor in a flat dict: `layer.weight`."""
    return isinstance(key, str) and "." in key


def holds_tensors(value: Any, depth: int = 0) -> bool:
    """Whether there is a tensor in its first levels."""
    if isinstance(value, (TensorRef, ArrayRef)):
        return depth > 0
    if is_module(value):
        return True
    if isinstance(value, dict) and depth < 4 and not is_optimizer(value):
        return any(holds_tensors(inside, depth + 1) for inside in list(value.values())[:2000])
    return False


# Optimizer state: the parameter of each moment, and the step counter.


def moment_names(leaves: list[NamedLeaf], optimizers: list[SavedOptimizer]) -> list[str]:
    """The names of all tensors; a moment gets the name of its parameter if that is certain."""
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
    """The parameter name for each index of an optimizer, if number and shapes match."""
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
    # The other common order: matrices first, which get weight decay.
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
    """The value of the first `step` tensor of an optimizer."""
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
