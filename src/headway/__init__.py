"""headway keeps PyTorch training runs alive and explains why they fail.

    guard = headway.Guard(model, optimizer)
    for batch in guard(loader):
        ...

The names below are loaded when first used: importing headway never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headway._version import __version__

if TYPE_CHECKING:
    from headway.config import Settings
    from headway.core.findings import Finding, Remedy, Severity, Where
    from headway.errors import HeadwayError, TrainingHalted
    from headway.guard.brake.clip_rules import AdaGC, ZClip
    from headway.guard.guard import Guard
    from headway.guard.memory.activation_checkpointing import checkpoint_activations
    from headway.guard.recovery.snapshots import Snapshots
    from headway.policy import Policy
    from headway.postmortem.diagnose import diagnose
    from headway.postmortem.scan import scan
    from headway.preflight.python_api import preflight
    from headway.report import Report

_HOMES = {
    "AdaGC": "headway.guard.brake.clip_rules",
    "Finding": "headway.core.findings",
    "Guard": "headway.guard.guard",
    "HeadwayError": "headway.errors",
    "Policy": "headway.policy",
    "Remedy": "headway.core.findings",
    "Report": "headway.report",
    "Settings": "headway.config",
    "Severity": "headway.core.findings",
    "Snapshots": "headway.guard.recovery.snapshots",
    "TrainingHalted": "headway.errors",
    "Where": "headway.core.findings",
    "ZClip": "headway.guard.brake.clip_rules",
    "checkpoint_activations": "headway.guard.memory.activation_checkpointing",
    "diagnose": "headway.postmortem.diagnose",
    "preflight": "headway.preflight.python_api",
    "scan": "headway.postmortem.scan",
}

__all__ = [
    "AdaGC",
    "Finding",
    "Guard",
    "HeadwayError",
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
        return importlib.import_module(f"headway.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from headway.errors import FrameworkMissing

        raise FrameworkMissing(
            f"headway.{name} needs torch, which is not installed: pip install 'headway[torch]'"
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
