"""The layers of a model that do one thing in training and another in evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

_RATES = ("p", "drop_prob", "drop_rate", "rate")
"""What hand-written dropouts call their rate."""


@dataclass(frozen=True, slots=True)
class ModeLayer:
    """A dropout or a batch norm."""

    layer: nn.Module
    path: str
    """Within the module it was looked for in."""
    owner: nn.Module
    """The innermost module around it that has parameters: what it regularises or normalises."""

    @property
    def is_norm(self) -> bool:
        return isinstance(self.layer, _BatchNorm)

    @property
    def rate(self) -> float:
        """The share it drops; 0 for a norm."""
        return 0.0 if self.is_norm else dropout_rate(self.layer)


def mode_layers(root: nn.Module) -> list[ModeLayer]:
    """All of them within a module."""
    return list(_within(root, "", root))


def _within(module: nn.Module, path: str, owner: nn.Module) -> Iterator[ModeLayer]:
    if next(module.parameters(), None) is not None:
        owner = module
    if isinstance(module, _BatchNorm) or _has_rate(module):
        yield ModeLayer(module, path or type(module).__name__, owner)
    for name, child in module.named_children():
        yield from _within(child, f"{path}.{name}" if path else name, owner)


def dropout_rate(module: nn.Module) -> float:
    """The rate of a dropout, of whatever make."""
    names = ("dropout",) if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) else _RATES
    for name in names:
        rate: Any = getattr(module, name, None)
        if isinstance(rate, (int, float)) and not isinstance(rate, bool):
            return float(rate)
    return 0.0


def _has_rate(module: nn.Module) -> bool:
    if isinstance(module, nn.RNNBase) and module.num_layers < 2:
        return False
    if isinstance(module, (_DropoutNd, nn.MultiheadAttention, nn.RNNBase)):
        return True
    leaf = next(module.children(), None) is None and next(module.parameters(), None) is None
    return leaf and "drop" in type(module).__name__.lower() and dropout_rate(module) > 0
