"""What a scenario of the set is: a small training step that goes bad, and what is true of it.

The guilty line is marked in the source, with `# born: <name>` behind it; one line may be guilty in
several scenarios.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

Batch = dict[str, Tensor]
Losses = Tensor | dict[str, Tensor]

_MARK = re.compile(r"#\s*born:\s*(?P<names>[\w, -]+)\s*$")


@dataclass
class Case:
    """One training, ready to take its bad step."""

    model: nn.Module
    healthy: tuple[Batch, ...]
    """Batches that go well; none where it is the state that is bad."""
    bad: Batch
    step: Callable[[nn.Module, Batch], Losses]
    """The forward and the loss, or its named parts."""
    repair: Callable[[], None] | None = None
    """Undoes what is wrong with the state: then the bad batch goes well, too."""
    autocast: torch.dtype | None = None
    scale: float | None = None
    """Of the loss, where a scaler is used."""
    sample_dims: Mapping[str, int] = field(default_factory=dict)
    """The dimension that counts the samples, where it is not the first."""
    optimizer: Optimizer = field(init=False)
    scaler: GradScaler | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        if self.scale is not None:
            self.scaler = GradScaler(self.device, init_scale=self.scale)

    @property
    def device(self) -> str:
        return next(self.model.parameters()).device.type

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and its named parts where there are some."""
        made = autocasting(self.device, self.autocast)
        with made:
            losses = self.step(self.model, batch)
            if isinstance(losses, dict):
                return torch.stack([part.float() for part in losses.values()]).sum(), losses
        return losses, {}

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)

    def with_rows(self, batch: Batch, rows: tuple[int, ...], other: Batch) -> Batch:
        """The batch, with these samples taken from another one."""
        changed = {name: value.clone() for name, value in batch.items()}
        for name, value in changed.items():
            dim = self.sample_dims.get(name, 0)
            for row in rows:
                value.select(dim, row).copy_(other[name].select(dim, row))
        return changed

    def run(self, batch: Batch) -> bool:
        """Take the step up to the optimizer: whether loss and gradients are finite."""
        self.model.zero_grad(set_to_none=True)
        loss, _ = self.forward(batch)
        self.scaled(loss).backward()
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        return all(bool(torch.isfinite(value).all()) for value in (loss, *gradients))


@dataclass(frozen=True)
class Scenario:
    """A case, and the answer."""

    name: str
    build: Callable[[], Case]
    kind: str
    op: str | tuple[str, ...]
    """Several where several names are as right."""
    module: str | tuple[str, ...] = ""
    """Empty where the op runs outside of any module, or in the model's own forward."""
    phase: str = "forward"
    rows: tuple[int, ...] | None = None
    """The guilty samples; None where they cannot be told apart."""
    component: str | None = None
    decoy: bool = False
    """There is a -inf elsewhere in the forward, and it is meant."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Dtypes of autocast under which it would be another story, and why."""

    @property
    def ops(self) -> tuple[str, ...]:
        return (self.op,) if isinstance(self.op, str) else self.op

    @property
    def modules(self) -> tuple[str, ...]:
        return (self.module,) if isinstance(self.module, str) else self.module

    def case(self, device: str = "cpu", autocast: torch.dtype | None = None) -> Case:
        """A fresh case on a device. `autocast` is for those that bring none of their own."""
        torch.manual_seed(0)
        made = self.build()
        if device != "cpu":
            made = _moved(made, device)
        return replace(made, autocast=autocast) if autocast is not None else made

    def line(self) -> tuple[str, int]:
        """File and number of the guilty line."""
        return _marked()[self.name]


def autocasting(device: str, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if dtype is None else torch.autocast(device, dtype)


def draw(seed: int) -> torch.Generator:
    """Random numbers for one batch."""
    return torch.Generator().manual_seed(seed)


def _moved(case: Case, device: str) -> Case:
    """The same on another device: parameters and buffers keep their identity for `repair`."""
    case.model.to(device)
    for module in case.model.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                setattr(module, name, value.to(device))
    return replace(
        case,
        healthy=tuple(_batch_on(batch, device) for batch in case.healthy),
        bad=_batch_on(case.bad, device),
    )


def _batch_on(batch: Batch, device: str) -> Batch:
    return {name: value.to(device) for name, value in batch.items()}


@cache
def _marked() -> dict[str, tuple[str, int]]:
    return {name: (file, line) for file, line, name in _marks()}


def _marks() -> Iterator[tuple[str, int, str]]:
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for number, text in enumerate(path.read_text("utf-8").splitlines(), start=1):
            if path.name != Path(__file__).name and (match := _MARK.search(text)):
                for name in match["names"].split(","):
                    yield str(path), number, name.strip()
