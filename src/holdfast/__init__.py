"""holdfast keeps PyTorch training runs alive, and says why they were dying.

    guard = holdfast.Guard(model, optimizer)
    for batch in guard(loader):
        ...

The names below are loaded when first used: importing holdfast never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.core.findings import Finding, Remedy, Severity, Where
    from holdfast.errors import HoldfastError, TrainingHalted
    from holdfast.live.checkpointing import checkpoint_activations
    from holdfast.live.guard import Guard
    from holdfast.policy import Policy
    from holdfast.report import Report, diagnose

_HOMES = {
    "Finding": "holdfast.core.findings",
    "Guard": "holdfast.live.guard",
    "HoldfastError": "holdfast.errors",
    "Policy": "holdfast.policy",
    "Remedy": "holdfast.core.findings",
    "Report": "holdfast.report",
    "Settings": "holdfast.config",
    "Severity": "holdfast.core.findings",
    "TrainingHalted": "holdfast.errors",
    "Where": "holdfast.core.findings",
    "checkpoint_activations": "holdfast.live.checkpointing",
    "diagnose": "holdfast.report",
}

__all__ = [
    "Finding",
    "Guard",
    "HoldfastError",
    "Policy",
    "Remedy",
    "Report",
    "Settings",
    "Severity",
    "TrainingHalted",
    "Where",
    "__version__",
    "checkpoint_activations",
    "diagnose",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
