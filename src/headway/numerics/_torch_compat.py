"""Private parts of torch that headway.numerics uses, each with a fall-back.

This package imports nothing else of headway, so these are not in `headway.torch_adapters`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

transforms_active: Any = getattr(torch._C, "_are_functorch_transforms_active", None)
dispatch_depth: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)
is_tracing: Any = getattr(torch._C, "_is_tracing", None)
dispatch_keys: Any = getattr(torch._C, "_dispatch_keys", None)
"""These four show whether a tensor is ordinary and whether anything observes its ops. If one is
missing, the stable ops run in plain torch instead of fused kernels."""

launch_kernel: Any = getattr(torch._C, "_cuda_jiterator_compile_and_launch_kernel", None)
"""Compiles and launches an elementwise CUDA kernel. Without it, the ops also run in plain torch."""


def softmax_backward(gradient: Tensor, shares: Tensor, dim: int) -> Tensor:
    """The gradient of a softmax, from its result."""
    backward = getattr(torch.ops.aten, "_softmax_backward_data", None)
    if backward is None:
        weighted = gradient * shares
        return weighted - shares * weighted.sum(dim, keepdim=True)
    found: Tensor = backward(gradient, shares, dim, shares.dtype)
    return found


def log_softmax_backward(gradient: Tensor, result: Tensor, dim: int) -> Tensor:
    """The gradient of a log-softmax, from its result."""
    backward = getattr(torch.ops.aten, "_log_softmax_backward_data", None)
    if backward is None:
        return gradient - result.exp() * gradient.sum(dim, keepdim=True)
    found: Tensor = backward(gradient, result, dim, result.dtype)
    return found
