"""The forward passes that lead to the coming backward: which module was given what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.torch_tools.nested import tensors_in

MOST = 4
"""Forwards of one step that are remembered: a GAN has three."""


@dataclass(slots=True)
class Forward:
    """One call of an outermost module."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: dict[str, Any] | None

    @property
    def inputs(self) -> list[Tensor]:
        """Its tensors with at least one axis."""
        given = [list(self.args), dict(self.kwargs)]
        return [tensor for _, tensor in tensors_in(given) if tensor.ndim]


def trains(module: nn.Module, output: Any) -> bool:
    """Whether a forward can be part of a backward pass of the module's own weights."""
    if not torch.is_grad_enabled() or not any(p.requires_grad for p in module.parameters()):
        return False
    if isinstance(output, (Tensor, list, tuple, Mapping)):
        return any(tensor.requires_grad for _, tensor in tensors_in(output))
    return True
