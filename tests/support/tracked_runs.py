"""A small real training with two bad steps, shown to trackers; what a run directory holds of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway import Guard
from headway.core.records import Header, StepRecord
from headway.output.trackers.tracker_group import make_metrics_row
from headway.rundir.run_reader import RunDir
from support.trainings import batches, make_net, squared_error

STEPS = 36
NAN_STEP, INF_STEP = 30, 33


def train(
    trackers: Sequence[Any], run_dir: Path | None = None, *, steps: int = STEPS
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """(the losses, the weights at the end)."""
    model = make_net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    with Guard(model, optimizer, run_dir=run_dir, max_norm=1.0, trackers=trackers) as guard:
        for number, batch in enumerate(guard(batches(steps))):
            loss = squared_error(model, batch) + torch.rand(())  # a tracker must throw no dice
            if not guard.replaying:
                losses.append(loss.detach().clone())
            loss = loss * {NAN_STEP: math.nan, INF_STEP: math.inf}.get(number, 1.0)
            guard.backward(loss, main=loss.detach())
            optimizer.step()
            optimizer.zero_grad()
    return losses, {name: value.clone() for name, value in model.state_dict().items()}


def recorded(run_dir: Path) -> dict[int, Mapping[str, float]]:
    """Step → the numbers that the run directory holds, under the trackers' keys."""
    rows: dict[int, Mapping[str, float]] = {}
    names: Sequence[str] = ()
    for record in RunDir(run_dir).records():
        if isinstance(record, Header):
            names = record.names("param")
        elif isinstance(record, StepRecord):
            rows[record.step] = make_metrics_row(record, names).values
    assert sorted(rows) == list(range(STEPS))
    assert math.isnan(rows[NAN_STEP]["loss"])
    assert rows[INF_STEP]["loss"] == math.inf
    assert rows[NAN_STEP]["headway/held"] == 1
    assert "grad_layer/inner.weight" in rows[0]
    return rows


def same(one: float, other: float) -> bool:
    """NaN is NaN."""
    return one == other or (math.isnan(one) and math.isnan(other))


def assert_same_rows(
    found: Mapping[int, Mapping[str, float]], expected: Mapping[int, Mapping[str, float]]
) -> None:
    """Every number of every step, and none besides."""
    assert sorted(found) == sorted(expected)
    for step, values in expected.items():
        assert sorted(found[step]) == sorted(values), step
        for key, value in values.items():
            assert same(found[step][key], value), (step, key, found[step][key], value)
