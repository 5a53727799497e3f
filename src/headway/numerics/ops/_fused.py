"""When and how the kernels of `_kernels` are launched: outright, on a GPU, on ordinary tensors.

On a GPU there is no looking, and the safe form in plain torch takes more passes and more launches
than the naive op. There the kernels do the same in no more of either. Under `torch.compile`, in
`vmap` and `torch.func`, under a dispatch mode or for a subclass of Tensor, the plain form runs: a
kernel is not seen by any of these. So it does where the kernels cannot be compiled, and with a
torch that lacks one of the private names used here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.numerics import _torch_compat

if TYPE_CHECKING:
    from headway.numerics.ops._kernels import Kernel


_transformed, _watching_modes = _torch_compat.transforms_active, _torch_compat.dispatch_depth
_tracing, _keys = _torch_compat.is_tracing, _torch_compat.dispatch_keys


def can_fuse(x: Tensor, *others: Tensor) -> bool:
    """Whether the kernels may be used for these tensors."""
    if torch.compiler.is_compiling() or not _on_gpu(x):
        return False
    return may_launch(x, *others)


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def may_launch(*tensors: Tensor) -> bool:
    """Whether the kernels work there, and nobody would have to see them being launched."""
    if not (_transformed and _watching_modes and _tracing and _keys):
        return False
    if _transformed() or _watching_modes() or _tracing():
        return False
    first = tensors[0]
    ordinary = _WORKS.get((first.device, first.dtype))
    if ordinary is None:
        ordinary = _works(first)
    for item in tensors:
        if _keys(item).raw_repr() not in ordinary:
            return False
    return first.numel() > 0


def must_be_plain(gradient: Tensor) -> bool:
    """Whether this backward is to be differentiated again, or is not for a kernel to see."""
    return torch.is_grad_enabled() or torch.compiler.is_compiling() or not may_launch(gradient)


def again(
    op: Callable[..., Tensor], gradient: Tensor, *inputs: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients through the plain form, which can be differentiated again."""
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        seen = [item if twice else item.detach().requires_grad_() for item in inputs]
        wanted = [item for item in seen if item.requires_grad]
        found = iter(torch.autograd.grad(op(*seen), wanted, gradient, create_graph=twice))
        return tuple(next(found) if item.requires_grad else None for item in seen)


def launch(kernel: Kernel, tensors: tuple[Tensor, ...], numbers: dict[str, float]) -> Any:
    """Compiled by torch when first called with a dtype, then kept, also on disk.

    As `torch.cuda.jiterator` calls it. The numbers are in the order of the kernel's parameters.
    """
    return _torch_compat.launch_kernel(
        kernel.code, kernel.name, kernel.outputs > 1, kernel.outputs, tensors, numbers
    )


_NEVER: frozenset[int] = frozenset()
_WORKS: dict[tuple[torch.device, torch.dtype], frozenset[int]] = {}
"""How torch marks the tensors the kernels are for, by device and dtype; none if they fail there."""


def _works(x: Tensor) -> frozenset[int]:
    """Tried once for a device and a dtype, since much may be missing where kernels are compiled."""
    place = (x.device, x.dtype)
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return _NEVER  # trying means waiting, and a capture may not wait
    right = x.dtype.is_floating_point and _is_right(*place)
    _WORKS[place] = _ordinary_keys(x.device) if right else _NEVER
    return _WORKS[place]


def _is_right(device: torch.device, dtype: torch.dtype) -> bool:
    from headway.numerics.ops import _kernels

    try:
        _ordinary_keys(device)
        a, b = torch.tensor([[3.0, 1.0], [2.0, 0.0]], device=device, dtype=dtype)
        g = torch.ones((), device=device, dtype=dtype).expand(2)
        limits = {"eps": 0.5, "largest": 1000.0}
        found = [
            _kernels.quotient(a, b, fill=7.0, **limits),
            *_kernels.quotient_backward(g, a, b, **limits),
        ]
        return [item.tolist() for item in found] == [[1.5, 7.0], [0.5, 0.0], [-0.75, 0.0]]
    except Exception:  # whatever a compiler raises: the plain form does the same work
        return False


@cache
def _ordinary_keys(device: torch.device) -> frozenset[int]:
    """How torch marks a tensor that is only numbers in memory: no subclass, no batch of `vmap`."""
    plain = torch.empty(0, device=device)
    with torch.inference_mode():
        inference = torch.empty(0, device=device)
    return frozenset(_torch_compat.dispatch_keys(item).raw_repr() for item in (plain, inference))


def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """Its `apply`, without what that does for `torch.func`: `can_fuse` has said there is none."""
    apply: Callable[..., Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply
