"""Losses and operations that do not go bad in the first place. Needs torch, and nothing of ours.

The names below are loaded when first used: importing this package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.numerics.nway.loss import nway_contrastive
    from holdfast.numerics.nway.module import NWayContrastive
    from holdfast.numerics.nway.temperature import Temperature

_HOMES = {
    "NWayContrastive": "holdfast.numerics.nway.module",
    "Temperature": "holdfast.numerics.nway.temperature",
    "nway_contrastive": "holdfast.numerics.nway.loss",
}

__all__ = [
    "NWayContrastive",
    "Temperature",
    "nway_contrastive",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast.numerics' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
