"""Trainings run twice, guarded and not, to be compared; and reading what a guard wrote down."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_  # by name, long before any guard exists

from headway import Guard
from headway.core.records import EventRecord, Header, Record, SetupRecord, StepRecord, TensorRecord
from headway.rundir.run_reader import RunDir
from support.trainings import state_of

STEPS = 24
"""Past the grace period of the spike rule, with three sampled steps in it."""


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


class Attention(nn.Module):
    """A small transformer with dropout: its losses depend on the random numbers it draws."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.2, batch_first=True)
        self.embed = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(ids)).mean(dim=1))


@dataclass(frozen=True)
class Kind:
    """A model and batches for it."""

    make: Callable[[], nn.Module]
    draw: Callable[[], Tensor]

    def batches(self, count: int) -> list[tuple[Tensor, Tensor]]:
        torch.manual_seed(7)
        return [(self.draw(), torch.randint(0, 3, (6,))) for _ in range(count)]


KINDS = {
    "mlp": Kind(mlp, lambda: torch.randn(6, 6)),
    "cnn": Kind(cnn, lambda: torch.randn(6, 2, 6, 6)),
    "transformer": Kind(Attention, lambda: torch.randint(0, 11, (6, 5))),
}

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


@dataclass(frozen=True)
class Recipe:
    """How a healthy training is run, apart from the guard."""

    kind: str = "mlp"
    precision: str = "float32"
    optimizer: str = "Adam"
    clip: float | None = None
    accumulate: int = 1
    scheduled: bool = False
    init_scale: float = 2.0**10

    def but(self, **changes: Any) -> Recipe:
        return replace(self, **changes)


@dataclass
class Outcome:
    """Everything a training leaves behind."""

    losses: list[Tensor]
    state: dict[str, Any]
    rng: tuple[Any, ...]
    guard: Guard | None = None
    scale: float | None = None


def carry_out(recipe: Recipe, *, guarded: bool, steps: int = STEPS, **options: Any) -> Outcome:
    """The training of a recipe, with a guard (that gets the options) or without."""
    data = KINDS[recipe.kind].batches(steps * recipe.accumulate)
    seed_everything()
    model = KINDS[recipe.kind].make()
    optimizer = OPTIMIZERS[recipe.optimizer](model.parameters())
    scaler = (
        torch.amp.GradScaler("cpu", init_scale=recipe.init_scale)
        if recipe.precision == "float16"
        else None
    )
    scheduler = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if recipe.scheduled else None
    )
    guard = Guard(model, optimizer, **options) if guarded else None
    losses = []
    for number, (x, y) in enumerate(guard(data) if guard else data, start=1):
        with autocast(recipe.precision):
            loss = nn.functional.cross_entropy(model(x), y) / recipe.accumulate
        losses.append(loss.detach())
        (scaler.scale(loss) if scaler else loss).backward()
        if number % recipe.accumulate:
            continue
        if recipe.clip is not None:
            if scaler:
                scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), recipe.clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
        if scheduler:
            scheduler.step()
    if guard:
        guard.close()
    scale = scaler.get_scale() if scaler else None
    return Outcome(losses, state_of(model, optimizer), rng_state(), guard, scale)


@functools.cache
def unguarded(recipe: Recipe) -> Outcome:
    """The training of a recipe without a guard: the same for every test that compares with it."""
    return carry_out(recipe, guarded=False)


def autocast(precision: str) -> contextlib.AbstractContextManager[Any]:
    dtype = PRECISIONS[precision]
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def seed_everything(seed: int = 3) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def rng_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), name, keys.tolist(), *rest


def records_of(run_dir: Path | str | None) -> list[Record]:
    """Everything a run directory holds, in order."""
    assert run_dir is not None
    return list(RunDir(Path(run_dir)).records())


def steps_of(run_dir: Path | str | None) -> list[StepRecord]:
    return [record for record in records_of(run_dir) if isinstance(record, StepRecord)]


def events_of(run_dir: Path | str | None, kind: str) -> list[EventRecord]:
    return [
        record
        for record in records_of(run_dir)
        if isinstance(record, EventRecord) and record.kind == kind
    ]


def setups_of(run_dir: Path | str | None, topic: str) -> list[SetupRecord]:
    return [
        record
        for record in records_of(run_dir)
        if isinstance(record, SetupRecord) and record.topic == topic
    ]


def tensors_of(run_dir: Path | str | None) -> list[TensorRecord]:
    return [record for record in records_of(run_dir) if isinstance(record, TensorRecord)]


def headers_of(run_dir: Path | str | None) -> list[Header]:
    return [record for record in records_of(run_dir) if isinstance(record, Header)]


def column_by_name(record: StepRecord, name: str, header: Header) -> dict[str, float]:
    """A column of a step, by the names of its axis."""
    axis = header.names(name.partition("/")[0])
    return {axis[at]: value for at, value in record.columns[name].items()}


def all_finite(state: Any) -> bool:
    """Whether there is no NaN or Inf anywhere in a state."""
    return all(bool(torch.isfinite(value).all()) for value in _tensors(state))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value.to_dense() if value.is_sparse else value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list):
        for item in value:
            yield from _tensors(item)
