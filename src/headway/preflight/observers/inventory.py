"""What is about to be trained, by what, and where it lies: what a person wants to see before
burning a week of GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer
from headway.torch_tools.users_names import users_path

TOPIC = "inventory"
MOST_PARTS = 40
"""Children of a model that are listed one by one."""
SETTINGS = ("lr", "weight_decay", "betas", "momentum", "eps", "maximize", "fused", "foreach")


class Inventory(Observer):
    """Models, their parts and the optimizers' groups, as they are at the first step."""

    def start(self) -> None:
        self._optimizers: set[int] = set()

    def step_begins(self, optimizer: Optimizer) -> None:
        if id(optimizer) in self._optimizers:
            return
        self._optimizers.update(map(id, self.scene.optimizers))
        self._optimizers.add(id(optimizer))
        facts = {
            "models": [describe_model(model) for model in self.scene.models],
            "optimizers": [describe_optimizer(item) for item in self.scene.optimizers],
        }
        self.evidence.tell(TOPIC, facts)


def describe_model(model: nn.Module) -> dict[str, Any]:
    """A model and its parts: how much of each trains, in which dtype, on which device."""
    children = [
        {"name": users_path(name), "class": type(child).__name__, **_sizes(child.parameters())}
        for name, child in model.named_children()
        if any(True for _ in child.parameters())
    ]
    return {
        "class": type(model).__name__,
        **_sizes(model.parameters()),
        "buffers": sum(buffer.numel() for buffer in model.buffers()),
        "training": model.training,
        "parts": children[:MOST_PARTS],
        "parts_left_out": max(len(children) - MOST_PARTS, 0),
    }


def describe_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer's groups: what they hold and how they step."""
    groups = []
    for group in optimizer.param_groups:
        settings = {name: _plain(group[name]) for name in SETTINGS if group.get(name) is not None}
        groups.append({**_sizes(group["params"]), "tensors": len(group["params"]), **settings})
    return {"class": type(optimizer).__name__, "groups": groups}


def _sizes(parameters: Iterable[Tensor]) -> dict[str, Any]:
    listed = list(parameters)
    dtypes: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    for parameter in listed:
        dtypes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
        devices[str(parameter.device)] += parameter.numel()
    return {
        "parameters": sum(p.numel() for p in listed),
        "trainable": sum(p.numel() for p in listed if p.requires_grad),
        "dtypes": dict(dtypes),
        "devices": dict(devices),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else str(tuple(value.shape))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str)) else str(value)
