"""What people hand to a guard, looked at before anything is watched."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway._version import __version__
from headway.errors import LossNotScalar, UsageError
from headway.live.clip_memory import AdaptiveClip
from headway.live.holdings import SCHEDULE
from headway.live.notices import Notices


def listed(given: Any, kind: type, what: str) -> list[Any]:
    """One of a kind, or several, as a list. Raises UsageError for anything else."""
    items = list(given) if isinstance(given, (list, tuple)) else [given]
    for item in items:
        if not isinstance(item, kind):
            raise UsageError(
                f"Guard takes a {what} or a list of them: got {type(item).__name__}, "
                f"which is no torch {kind.__name__}"
            )
    if not items:
        raise UsageError(f"Guard needs at least one {what}")
    return items


def named(keep: Mapping[str, Any] | None, *, scheduler: Any, scaler: Any) -> dict[str, Any]:
    """Everything with a state of its own besides models and optimizers."""
    for name, item in (keep or {}).items():
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise UsageError(
                f"keep={{{name!r}: …}} takes what has state_dict and load_state_dict: "
                f"got {type(item).__name__}"
            )
    given = {SCHEDULE: scheduler, "scaler": scaler}
    stateful = {name: item for name, item in given.items() if hasattr(item, "state_dict")}
    return {**(keep or {}), **stateful}


def demand_scalar(loss: Any) -> None:
    """Raise LossNotScalar unless it is a tensor of one number."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return
    what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
    raise LossNotScalar(
        f"guard.backward() takes a loss of one number, got {what}: "
        "reduce it first, for example with loss.mean()"
    )


def scalars(components: Mapping[str, Any], notices: Notices) -> dict[str, Tensor]:
    """The loss components that are one number each; the others are named in a notice."""
    fit = {}
    for name, value in components.items():
        try:
            tensor = value.detach() if isinstance(value, Tensor) else torch.as_tensor(value)
        except (RuntimeError, TypeError, ValueError):
            _say_odd(notices, name, f"is {value!r:.40}")
            continue
        if tensor.numel() == 1:
            fit[name] = tensor.reshape(())
        else:
            _say_odd(notices, name, f"has shape {tuple(tensor.shape)}")
    return fit


def _say_odd(notices: Notices, name: str, what: str) -> None:
    notices.once(
        f"component-{name}",
        f"loss component {name!r} {what}, not one number: it is not recorded; pass its mean or sum",
    )


def facts(
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    max_norm: float | AdaptiveClip | None,
) -> dict[str, Any]:
    """What the header says of the run."""
    return {
        "headway": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "models": [type(model).__name__ for model in models],
        "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
        "max_norm": repr(max_norm) if isinstance(max_norm, AdaptiveClip) else max_norm,
    }
