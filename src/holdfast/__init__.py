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
    from holdfast.live.adagc import AdaGC
    from holdfast.live.checkpointing import checkpoint_activations
    from holdfast.live.guard import Guard
    from holdfast.live.snapshots import Snapshots
    from holdfast.live.zclip import ZClip
    from holdfast.policy import Policy
    from holdfast.postmortem.diagnose import diagnose
    from holdfast.postmortem.scan import scan
    from holdfast.preflight.in_python import preflight
    from holdfast.report import Report

_HOMES = {
    "AdaGC": "holdfast.live.adagc",
    "Finding": "holdfast.core.findings",
    "Guard": "holdfast.live.guard",
    "HoldfastError": "holdfast.errors",
    "Policy": "holdfast.policy",
    "Remedy": "holdfast.core.findings",
    "Report": "holdfast.report",
    "Settings": "holdfast.config",
    "Severity": "holdfast.core.findings",
    "Snapshots": "holdfast.live.snapshots",
    "TrainingHalted": "holdfast.errors",
    "Where": "holdfast.core.findings",
    "ZClip": "holdfast.live.zclip",
    "checkpoint_activations": "holdfast.live.checkpointing",
    "diagnose": "holdfast.postmortem.diagnose",
    "preflight": "holdfast.preflight.in_python",
    "scan": "holdfast.postmortem.scan",
}

__all__ = [
    "AdaGC",
    "Finding",
    "Guard",
    "HoldfastError",
    "Policy",
    "Remedy",
    "Report",
    "Settings",
    "Severity",
    "Snapshots",
    "TrainingHalted",
    "Where",
    "ZClip",
    "__version__",
    "checkpoint_activations",
    "diagnose",
    "preflight",
    "scan",
]


def __getattr__(name: str) -> Any:
    if name in ("integrations", "numerics"):
        return importlib.import_module(f"holdfast.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from holdfast.errors import FrameworkMissing

        raise FrameworkMissing(
            f"holdfast.{name} needs torch, which is not installed: pip install 'holdfast[torch]'"
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
