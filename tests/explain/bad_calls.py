"""Catch an op in the act: every call that makes a bad number of good ones, as a `BadCall`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headway.explain.origin import classify_origin
from headway.explain.origin.bad_call import BadCall, OriginKind


class Catcher(TorchDispatchMode):
    """An infinity of finite numbers, or a NaN of numbers that are none."""

    def __init__(self, deliberate: bool) -> None:
        super().__init__()
        self.deliberate = deliberate
        self.caught: list[tuple[BadCall, OriginKind]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        came = [tensor.clone() for tensor in _floats((args, kwargs))]
        out = func(*args, **(kwargs or {}))
        for made in _floats(out):
            if torch.isfinite(made).all() or any(torch.isnan(value).any() for value in came):
                continue
            infinite = any(torch.isinf(value).any() for value in came)
            if infinite and not torch.isnan(made).any() and not self.deliberate:
                continue
            self._note(func, args, kwargs, made, infinite)
        return out

    def _note(self, func: Any, args: Any, kwargs: Any, made: Tensor, infinite: bool) -> None:
        node = torch._C._current_autograd_node()
        call = BadCall(
            op=func._schema.name.removeprefix("aten::").strip("_"),
            args=tuple(args),
            kwargs=kwargs or {},
            output=made,
            phase="backward" if node else "forward",
            node=node.name() if node else None,
            deliberate=self.deliberate and infinite,
        )
        self.caught.append(
            (call, classify_origin(call))
        )  # now: later the tensors may be overwritten


def _floats(value: Any) -> list[Tensor]:
    return [
        leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]


def origins_of(
    function: Callable[..., Tensor], *values: Tensor, deliberate: bool = False
) -> list[tuple[BadCall, OriginKind]]:
    """All origins of a function and of its backward, in order."""
    leaves = [
        value.clone().requires_grad_() if value.is_floating_point() else value for value in values
    ]
    with Catcher(deliberate) as catcher:
        function(*leaves).sum().backward()
    return catcher.caught


def forward_origin(function: Callable[..., Tensor], *values: Tensor, **how: bool) -> OriginKind:
    return next(kind for call, kind in origins_of(function, *values, **how) if call.node is None)


def backward_origin(function: Callable[..., Tensor], *values: Tensor, **how: bool) -> OriginKind:
    found = origins_of(function, *values, **how)
    # What an op allocates and then writes into may hold anything before.
    return next(k for call, k in found if call.node and k.name != "uninitialised-memory")
