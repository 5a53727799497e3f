"""Every sort of loader, and none at all."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.paired_trainings import steps_of, tensors_of
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from headway import Guard
from headway.guard.measure.step_measure import HostReadings
from headway.guard.memory.retained_graphs import GraphRetention
from headway.torch_adapters.tensor_values import token_count


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples one after the other, without a length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = whole(self.count)
        yield from zip(x, y, strict=True)


def whole(samples: int) -> tuple[Tensor, Tensor]:
    (found,) = batches(1, size=samples)
    return found


class Run:
    """A net in training under a guard that writes everything down."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.model = make_net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.guard = Guard(self.model, self.optimizer, run_dir=run_dir)

    def step(self, batch: Any, factor: float = 1.0) -> None:
        (squared_error(self.model, batch) * factor).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def over(self, loader: Any) -> list[Any]:
        seen = []
        for batch in self.guard(loader):
            seen.append(batch)
            self.step(batch)
        self.guard.close()
        return seen


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.guard.close()


def test_a_list(run: Run) -> None:
    data = batches(5)
    assert all(one is other for one, other in zip(run.over(data), data, strict=True))
    assert len(steps_of(run.run_dir)) == 5


def test_a_generator(run: Run) -> None:
    data = batches(5)
    assert_same(run.over(batch for batch in data), data)
    assert len(steps_of(run.run_dir)) == 5


def test_an_endless_generator_is_not_run_ahead_of(run: Run) -> None:
    drawn: list[int] = []

    def endless() -> Iterator[Any]:
        for number in itertools.count():
            drawn.append(number)
            yield batches(1, seed=number)[0]

    for number, batch in enumerate(run.guard(endless())):
        run.step(batch)
        if number == 4:
            break
    run.guard.close()
    assert drawn == [0, 1, 2, 3, 4]
    assert len(steps_of(run.run_dir)) == 5


def test_a_dataloader(run: Run) -> None:
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*whole(40)), batch_size=8, shuffle=True)
    assert len(run.guard(loader)) == 5
    assert len(run.over(loader)) == 5


def test_a_dataloader_with_workers(run: Run) -> None:
    dataset = TensorDataset(*whole(32))
    loader = DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context="fork")
    seen = run.over(loader)
    assert_same([x for x, _ in seen], list(whole(32)[0].split(8)))
    steps = steps_of(run.run_dir)
    assert len(steps) == 4
    assert all(step.values["loader_wait_s"] >= 0 for step in steps)


def test_a_stream(run: Run) -> None:
    assert len(run.over(DataLoader(Stream(24), batch_size=8))) == 3


def test_shuffling_is_the_same_with_and_without_a_guard(tmp_path: Path) -> None:
    orders = []
    for guarded in (True, False):
        torch.manual_seed(3)
        run = Run(tmp_path / str(guarded))
        if not guarded:
            run.guard.close()
        loader = DataLoader(TensorDataset(*whole(32)), batch_size=8, shuffle=True)
        seen = []
        for _ in range(2):
            for x, y in run.guard(loader) if guarded else loader:
                seen.append(x)
                run.step((x, y))
        orders.append([seen, state_of(run.model, run.optimizer)])
        run.guard.close()
    assert_same(orders[0], orders[1])


def test_the_length_is_the_loaders(run: Run) -> None:
    assert len(run.guard([1, 2, 3])) == 3
    with pytest.raises(TypeError):
        len(run.guard(number for number in range(3)))
    assert list(run.guard(number for number in range(3))) == [0, 1, 2]


def test_two_epochs_of_the_same_guarded_loader(run: Run) -> None:
    loader = run.guard(batches(4))
    for _ in range(2):
        for batch in loader:
            run.step(batch)
    run.guard.close()
    assert [step.step for step in steps_of(run.run_dir)] == list(range(8))


def test_an_early_break_and_a_fresh_start(run: Run) -> None:
    for number, batch in enumerate(run.guard(batches(10))):
        if number == 3:
            break
        run.step(batch)
    for batch in run.guard(batches(2)):
        run.step(batch)
    run.guard.close()
    assert [step.step for step in steps_of(run.run_dir)] == list(range(5))


def test_a_break_closes_the_users_generator(run: Run) -> None:
    closed = []

    def source() -> Iterator[Any]:
        try:
            yield from batches(10)
        finally:
            closed.append(True)

    for _ in run.guard(source()):
        break
    assert closed == [True]


def test_an_exception_of_the_loader_is_the_users(run: Run) -> None:
    def source() -> Iterator[Any]:
        yield from batches(2)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        run.over(source())
    run.guard.close()
    assert len(steps_of(run.run_dir)) == 2


def test_zipped_loaders(run: Run) -> None:
    labelled, unlabelled = batches(4), batches(6, seed=1)
    seen = []
    for (x, y), (other, _) in run.guard(zip(labelled, unlabelled, strict=False)):
        loss = squared_error(run.model, (x, y)) + run.model(other).pow(2).mean()
        loss.backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        seen.append(loss.item())
    run.guard.close()
    assert [step.values["loss"] for step in steps_of(run.run_dir)] == pytest.approx(seen)
    assert all("loader_wait_s" in step.values for step in steps_of(run.run_dir))


def test_a_loader_within_a_loader(run: Run) -> None:
    """An outer guarded loop over tasks, an inner one over their batches."""
    for task in run.guard([0, 1]):
        for batch in run.guard(batches(3, seed=task)):
            run.step(batch)
    run.guard.close()
    assert [step.step for step in steps_of(run.run_dir)] == list(range(6))


def test_times_and_throughput_are_on_record(run: Run) -> None:
    run.over(batches(6, size=8))
    first, *later = steps_of(run.run_dir)
    assert "step_time_s" not in first.values, "there is nothing to measure it from"
    for step in later:
        assert step.values["samples_per_s"] == pytest.approx(
            8 / step.values["step_time_s"], rel=1e-3
        )
        assert 0 <= step.values["loader_wait_s"] <= step.values["step_time_s"]
    assert "loader_wait_s" in first.values


def test_tokens_are_counted_where_they_are_known() -> None:
    ids, scores = torch.zeros(4, 16, dtype=torch.int64), torch.zeros(4, 16)
    assert token_count({"input_ids": ids, "attention_mask": ids}) == 64
    assert token_count((ids, ids.clone())) == 64
    assert token_count((ids, ids[:, 0])) == 0, "a class for each row: columns of a table"
    assert token_count((scores, scores)) == 0
    assert token_count({"x": ids}) == token_count(ids) == token_count([ids]) == 0
    readings = HostReadings(GraphRetention(lambda *_: None), lambda *_: None)
    for started in (10.0, 12.0):
        readings.batch_handed(0.1, 4, 64)
        readings.batch_handed(0.1, 4, 64)
        context: Any = SimpleNamespace(started=started, sampled=False)
        values = readings.read(context)
    assert (values["samples_per_s"], values["tokens_per_s"]) == (4.0, 64.0)


def test_samples_of_a_whole_window_count(run: Run) -> None:
    for number, batch in enumerate(run.guard(batches(8, size=8))):
        squared_error(run.model, batch).backward()
        if number % 4 == 3:
            run.optimizer.step()
            run.optimizer.zero_grad()
    run.guard.close()
    _, second = steps_of(run.run_dir)
    assert second.values["samples_per_s"] * second.values["step_time_s"] == pytest.approx(
        32, rel=1e-3
    )


def test_without_a_guarded_loader(run: Run) -> None:
    """A plain `while` loop: the optimizer's hooks are enough to hold a step."""
    data = iter(batches(12))
    number = 0
    while (batch := next(data, None)) is not None:
        before = state_of(run.model, run.optimizer)
        run.step(batch, math.nan if number == 7 else 1.0)
        if number == 7:
            assert_same(before, state_of(run.model, run.optimizer))
        number += 1
    run.guard.close()
    steps = steps_of(run.run_dir)
    assert [step.step for step in steps] == list(range(12))
    assert [step.step for step in steps if step.held] == [7]
    assert all("loader_wait_s" not in step.values for step in steps)
    assert all("samples_per_s" not in step.values for step in steps)


@dataclass
class Sample:
    x: Tensor
    y: Tensor


SHAPES = {
    "tuple": (lambda x, y: (x, y), "batch[0]"),
    "list": (lambda x, y: [x, y], "batch[0]"),
    "dict": (lambda x, y: {"pixels": x, "y": y}, "batch['pixels']"),
    "dataclass": (Sample, "batch.x"),
    "nested": (
        lambda x, y: {"inputs": [{"x": x}], "y": y, "ids": ["a"]},
        "batch['inputs'][0]['x']",
    ),
    "tensor": (lambda x, y: torch.cat([x, y], dim=1), "batch"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_bad_sample_is_named_in_every_sort_of_batch(shape: str, run: Run) -> None:
    make, name = SHAPES[shape]
    data = batches(6)
    data[4][0][5, 2] = math.nan

    def loader() -> Iterator[tuple[Any, Any]]:
        for x, y in data:
            yield make(x, y)

    for batch, pair in zip(run.guard(loader()), data, strict=False):
        assert batch is not None
        run.step(pair)
    run.guard.close()
    (found,) = tensors_of(run.run_dir)
    assert (found.role, found.name, found.step) == ("input", name, 4)
    assert found.facts["rows"] == [5]
    assert found.facts["features"] == [2]


def test_batches_are_let_go(run: Run) -> None:
    """At most the batches of the present step are kept alive."""
    alive: list[weakref.ref[Tensor]] = []
    for x, y in run.guard(batch for batch in fresh(8)):
        alive.append(weakref.ref(x))
        run.step((x, y))
        del x, y
    gc.collect()
    assert sum(ref() is not None for ref in alive) <= 2


def fresh(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    for number in range(count):
        yield batches(1, seed=number)[0]
