"""Gradient accumulation: a step is the sum of its micro-batches, and is judged as one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.paired_trainings import steps_of, tensors_of
from support.trainings import Batch, assert_same, batches, make_net, squared_error, state_of
from torch import Tensor

from headway import Guard

WINDOW = 4
WINDOWS = 12
BAD_WINDOW = 7

Spoil = Callable[[Batch], Batch]


def spoiled(data: list[Batch], at: int) -> list[Batch]:
    """The same batches with one NaN in the input of one of them."""
    x, y = data[at]
    x = x.clone()
    x[2, 3] = math.nan
    return [*data[:at], (x, y), *data[at + 1 :]]


def run(
    data: list[Batch], *, guarded: bool, clear_first: bool = False, run_dir: Path | None = None
) -> tuple[dict[str, Tensor], list[list[float]]]:
    """The state at the end, and the losses of each window."""
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    guard = Guard(model, optimizer, run_dir=run_dir) if guarded else None
    windows: list[list[float]] = [[]]
    for number, batch in enumerate(guard(data) if guard else data):
        if clear_first and number % WINDOW == 0:
            optimizer.zero_grad(set_to_none=False)
        loss = squared_error(model, batch) / WINDOW
        loss.backward()
        windows[-1].append(loss.item())
        if number % WINDOW == WINDOW - 1:
            optimizer.step()
            windows.append([])
            if not clear_first:
                optimizer.zero_grad()
    if guard:
        guard.close()
        assert [action.step for action in guard.actions] in ([], [BAD_WINDOW])
    return state_of(model, optimizer), windows[:-1]


@pytest.mark.parametrize("clear_first", [False, True], ids=["clear after", "clear before"])
@pytest.mark.parametrize("position", range(WINDOW))
def test_a_bad_micro_batch_spoils_its_own_window_only(position: int, clear_first: bool) -> None:
    """Windows before and after it are those of a run that never had that window."""
    data = batches(WINDOW * WINDOWS)
    first = WINDOW * BAD_WINDOW
    with_bad, _ = run(spoiled(data, first + position), guarded=True, clear_first=clear_first)
    without, _ = run(data[:first] + data[first + WINDOW :], guarded=False, clear_first=clear_first)
    assert_same(without, with_bad)


@pytest.mark.parametrize("clear_first", [False, True], ids=["clear after", "clear before"])
def test_the_loss_of_a_step_is_the_sum_of_its_micro_losses(
    clear_first: bool, tmp_path: Path
) -> None:
    data = batches(WINDOW * WINDOWS)
    _, windows = run(data, guarded=True, clear_first=clear_first, run_dir=tmp_path)
    steps = steps_of(tmp_path)
    assert [step.step for step in steps] == list(range(WINDOWS))
    assert [step.values["micro_batches"] for step in steps] == [WINDOW] * WINDOWS
    for step, losses in zip(steps, windows, strict=True):
        assert step.values["loss"] == pytest.approx(sum(losses), rel=1e-6)


def test_the_spoiled_micro_batch_is_named(tmp_path: Path) -> None:
    data = spoiled(batches(WINDOW * WINDOWS), WINDOW * BAD_WINDOW + 2)
    run(data, guarded=True, run_dir=tmp_path)
    (found,) = (record for record in tensors_of(tmp_path) if record.role == "input")
    assert (found.step, found.name) == (BAD_WINDOW, "batch[0]")
    assert found.facts["rows"] == [2]
    assert found.facts["features"] == [3]


def test_a_single_backward_is_not_called_a_micro_batch(tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(batches(3)):
            squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all("micro_batches" not in step.values for step in steps_of(tmp_path))


def test_named_components_are_summed_over_the_window(tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(8))):
            loss = squared_error(model, batch)
            guard.backward(loss, half=loss / 2, number=number)
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    first, second = steps_of(tmp_path)
    assert first.values["loss/half"] == pytest.approx(first.values["loss"] / 2)
    assert (first.values["loss/number"], second.values["loss/number"]) == (6, 22)


def test_several_losses_of_one_batch_are_one_step(tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    expected = []
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(batches(3)):
            output = model(batch[0])
            one, other = output.pow(2).mean(), output.abs().mean()
            one.backward(retain_graph=True)
            other.backward()
            expected.append(one.item() + other.item())
            optimizer.step()
            optimizer.zero_grad()
    assert [step.values["loss"] for step in steps_of(tmp_path)] == pytest.approx(expected)
    assert [step.values["micro_batches"] for step in steps_of(tmp_path)] == [2, 2, 2]


def test_gradients_never_cleared_are_reported(tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(batches(5)):
            squared_error(model, batch).backward()
            optimizer.step()
    carried = [step.values.get("grads_carried") for step in steps_of(tmp_path)]
    assert carried == [None, 1, 1, 1, 1]
