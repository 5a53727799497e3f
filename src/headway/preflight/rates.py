"""What an optimizer is set to, as facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def number(value: Any) -> float | None:
    """A setting as a number: rates may be tensors."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
        return None
    return float(value) if not isinstance(value, Tensor) or value.numel() == 1 else None


def settings(optimizer: Optimizer) -> dict[str, Any]:
    """The settings that say how it steps; of several groups, the extremes."""
    groups: list[Mapping[str, Any]] = list(optimizer.param_groups)
    facts: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    for key, choose in (("eps", min), ("weight_decay", max), ("momentum", max)):
        found = [value for group in groups if (value := number(group.get(key))) is not None]
        if found:
            facts[key] = choose(found)
    betas = groups[0].get("betas") if groups else None
    if isinstance(betas, (tuple, list)):
        facts["betas"] = [value for item in betas if (value := number(item)) is not None]
    facts["maximize"] = any(group.get("maximize") is True for group in groups)
    facts["fused"] = any(group.get("fused") is True for group in groups)
    dtypes = {str(p.dtype).removeprefix("torch.") for p in parameters(optimizer)}
    facts["dtypes"] = sorted(dtypes)
    return {**facts, **rate(optimizer)}


def rate(optimizer: Optimizer) -> dict[str, Any]:
    """The learning rate of the first group, and what it is scheduled around."""
    group: Mapping[str, Any] = optimizer.param_groups[0] if optimizer.param_groups else {}
    facts: dict[str, Any] = {}
    for key in ("lr", "initial_lr", "max_lr"):
        value = number(group.get(key))
        if value is not None:
            facts[key] = value
    return facts


def parameters(optimizer: Optimizer) -> list[Tensor]:
    """What it moves."""
    return [
        p
        for group in optimizer.param_groups
        for p in group["params"]
        if isinstance(p, Tensor) and p.requires_grad
    ]


def is_plain(parameter: Tensor) -> bool:
    """Whether a parameter can be changed and put back by anybody."""
    return (
        type(parameter) in (Tensor, torch.nn.Parameter)
        and parameter.layout is torch.strided
        and (parameter.is_cuda or not parameter.is_shared())
    )
