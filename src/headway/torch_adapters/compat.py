"""Private parts of torch under plain names, each with a fall-back for a torch that lacks it.

Parts of one mechanism are beside it: modes in `modes`, the graph in `autograd_graph`, GradScaler in
`optimizer_adapter`, autocast in `autocast_regions`, ranks in `rank_group` and `sharded_tensors`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as modules

from headway.torch_adapters.private_parts import private_attribute, private_part

# Tensors.

_numbers = itertools.count(-1, -1)

tensor_version: Callable[[Tensor], int] = private_attribute(
    "torch.Tensor._version",
    lambda tensor: next(_numbers),
    without="every tensor counts as changed since it was last seen",
)
"""The counter that every write to a tensor raises."""

base_tensor: Callable[[Tensor], Tensor | None] = private_attribute(
    "torch.Tensor._base",
    lambda tensor: None,
    without="a view counts as a tensor of its own",
)
"""The tensor that a view is a view of; None for one that is no view."""

_preserve_one: Callable[[Tensor], Any] = private_part(
    "torch.autograd.grad_mode._unsafe_preserve_version_counter",
    lambda tensor: nullcontext(),
    without="trying other weights raises their version counters: a backward pass over an older "
    "graph then fails with torch's own error",
)


@contextmanager
def preserve_version(tensors: Iterable[Tensor]) -> Iterator[None]:
    """While this lasts, writes to these tensors do not raise their version counters."""
    with ExitStack() as stack:
        for tensor in tensors:  # one by one: torch 2.6 takes no tuple
            stack.enter_context(_preserve_one(tensor))
        yield


def _flattens(value: Any) -> bool:
    names = ("__tensor_flatten__", "__tensor_unflatten__")
    return isinstance(value, Tensor) and all(hasattr(value, name) for name in names)


is_wrapper_subclass: Callable[[Any], bool] = private_part(
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    _flattens,
    without="a tensor subclass counts as a wrapper if it has __tensor_flatten__",
)
"""Whether a value is a tensor that wraps other tensors, such as a DTensor."""


# Nested arguments of ops.


def _map_plain(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _map_plain(function, item) for key, item in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_map_plain(function, item) for item in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map_plain(function, item) for item in tree)
    return function(tree)


def _plain_leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    _map_plain(found.append, tree)
    return found


map_nested: Callable[[Callable[[Any], Any], Any], Any] = private_part(
    "torch.utils._pytree.tree_map",
    _map_plain,
    without="only lists, tuples and dicts are searched for tensors",
)
"""The same nested value with every leaf replaced by the function's answer."""

nested_leaves: Callable[[Any], list[Any]] = private_part(
    "torch.utils._pytree.tree_leaves",
    _plain_leaves,
    without="only lists, tuples and dicts are searched for tensors",
)
"""The leaves of a nested value."""


# Modules.

BatchNorm: Any = private_part(
    "torch.nn.modules.batchnorm._BatchNorm",
    (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    without="only torch's four public batch norms are recognised",
)
"""For `isinstance`: batch normalisation of any dimension."""

RunningNorm: Any = private_part(
    "torch.nn.modules.batchnorm._NormBase",
    (
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
        *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    ),
    without="only torch's public batch and instance norms are recognised",
)
"""For `isinstance`: batch and instance normalisation."""

Dropout: Any = private_part(
    "torch.nn.modules.dropout._DropoutNd",
    (
        *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
        *(nn.AlphaDropout, nn.FeatureAlphaDropout),
    ),
    without="only torch's six public dropouts are recognised",
)
"""For `isinstance`: dropout of any dimension."""


def module_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """A module's own buffers, in the dict that holds them; an empty one where torch has none."""
    found: dict[str, Tensor | None] = getattr(module, "_buffers", {})
    return found


def non_persistent_buffers(module: nn.Module) -> list[str]:
    """Names of the buffers that a state dict leaves out; none where torch does not list them."""
    return sorted(getattr(module, "_non_persistent_buffers_set", ()))


def is_registered(module: nn.Module, name: str, item: Any) -> bool:
    """Whether a parameter or a module is what `module` has under this name."""
    return any(getattr(module, kind, {}).get(name) is item for kind in ("_parameters", "_modules"))


def has_backward_hooks(owner: nn.Module | Tensor) -> bool:
    """Whether a module or a tensor has backward hooks; False if torch does not expose them."""
    return any(getattr(owner, name, None) for name in ("_backward_hooks", "_backward_pre_hooks"))


def spectral_norms(module: nn.Module) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(weight as a matrix, left vector, right vector) of each spectral norm of a module; nothing
    where torch keeps them otherwise."""
    for hook in getattr(module, "_forward_pre_hooks", {}).values():
        if type(hook).__name__ == "SpectralNorm" and hasattr(hook, "reshape_weight_to_matrix"):
            weight = getattr(module, hook.name + "_orig", None)
            left = getattr(module, hook.name + "_u", None)
            right = getattr(module, hook.name + "_v", None)
            if weight is not None and left is not None and right is not None:
                yield hook.reshape_weight_to_matrix(weight), left, right
    for kept in (vars(module).get("_modules") or {}).get("parametrizations", {}).values():
        for norm in kept:
            if type(norm).__name__ == "_SpectralNorm" and hasattr(norm, "_u"):
                yield norm._reshape_weight_to_matrix(kept.original), norm._u, norm._v


def forward_hooks_with_kwargs() -> dict[int, bool]:
    """Which global forward hooks take keyword arguments; an unused dict where torch has none."""
    found: dict[int, bool] = getattr(modules, "_global_forward_hooks_with_kwargs", {})
    return found


# Functions.

_NAMESPACES = (
    *(torch, Tensor, F, torch.special, torch.linalg),
    private_part("torch._C._nn", None, without="names that only torch._C._nn has are not found"),
)


def find_aliases(*names: str) -> tuple[Callable[..., Any], ...]:
    """Every spelling of these functions: `torch.softmax`, `Tensor.softmax`, `F.softmax`."""
    found = []
    for name in names:
        for home in _NAMESPACES:
            function = getattr(home, name, None)
            if callable(function) and function not in found:
                found.append(function)
    return tuple(found)


current_transform: Callable[[], Any] = private_part(
    "torch._C._functorch.peek_interpreter_stack",
    lambda: None,
    without="calls inside vmap and torch.func are observed like others",
)
"""The `torch.func` transform that runs now; None outside of one."""


def accelerator_type() -> str:
    """`cuda` (CUDA and ROCm), `xpu`, `mps` or another device that can be used; `cpu` without."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(accelerator.current_accelerator().type)
