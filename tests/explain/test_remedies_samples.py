"""Guilty samples left out: named ones, and ones that have to be found."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.remedy_runs import attempt, bits, leaves_nothing, run, scene_of
from torch import Tensor, nn

from headway.explain.counterfactual import select_remedies, worth_bisecting
from headway.explain.explanation import Origin, Spike
from headway.explain.remedies.drop_samples import (
    Bisection,
    DropSamples,
    bad_rows,
    batch_size,
    with_rows_from,
)

Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass(frozen=True)
class Record:
    x: Tensor
    y: Tensor
    name: str = "record"


class Encoding(UserDict):  # type: ignore[type-arg]
    """Like the batches of transformers: a mapping that is no dict, with attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


X = torch.arange(12.0).reshape(4, 3)
Y = torch.arange(4)
SOURCE = [0, 1, 0, 3]
"""Sample 2 is replaced by sample 0."""


def moved(batch: Any) -> Any:
    assert batch_size(batch) == 4
    return with_rows_from(batch, SOURCE)


def test_a_tensor() -> None:
    given_ = X.clone().requires_grad_()
    got = moved(given_)
    assert torch.equal(got, X[SOURCE])
    assert got.requires_grad
    assert got.is_leaf
    assert torch.equal(given_, X)  # the batch itself is untouched


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: Pair(x, y),
    ],
    ids=["tuple", "list", "named tuple"],
)
def test_columns_in_a_sequence(make: Callable[[Any, Any], Any]) -> None:
    batch = make(X, Y)
    got = moved(batch)
    assert type(got) is type(batch)
    assert torch.equal(got[0], X[SOURCE])
    assert torch.equal(got[1], Y[SOURCE])


@pytest.mark.parametrize("kind", [dict, OrderedDict, Encoding])
def test_columns_in_a_mapping(kind: Any) -> None:
    batch = kind({"x": X, "deep": {"y": Y}, "weights": torch.ones(7), "ids": ["a", "b", "c", "d"]})
    got = moved(batch)
    assert type(got) is kind
    assert torch.equal(got["x"], X[SOURCE])
    assert torch.equal(got["deep"]["y"], Y[SOURCE])
    assert got["weights"] is batch["weights"]
    assert got["ids"] == ["a", "b", "a", "d"]
    assert torch.equal(batch["x"], X)


def test_columns_in_a_dataclass_and_an_array() -> None:
    got = moved(Record(X, Y))
    assert isinstance(got, Record)
    assert got.name == "record"
    assert torch.equal(got.x, X[SOURCE])
    arrays = moved((X.numpy(), Y))
    assert np.array_equal(arrays[0], X.numpy()[SOURCE])


def test_two_columns_of_two_samples() -> None:
    batch = (torch.ones(2, 3), torch.zeros(2, 3))
    assert batch_size(batch) == 2
    got = with_rows_from(batch, [1, 1])
    assert torch.equal(got[0], batch[0])
    assert torch.equal(got[1], batch[1])


@pytest.mark.parametrize(
    "batch",
    [
        [(X[0], 0), (X[1], 1), (X[2], 2), (X[3], 3)],
        [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)],
        [torch.ones(5), torch.ones(3), torch.ones(4), torch.ones(2)],
        [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0), torch.tensor(4.0)],
    ],
    ids=["tuples", "dicts", "ragged", "scalars"],
)
def test_a_list_of_samples(batch: list[Any]) -> None:
    got = moved(batch)
    assert [id(item) for item in got] == [id(batch[row]) for row in SOURCE]


def test_detection_batches() -> None:
    images = [torch.zeros(3, 8, 8 + at) for at in range(4)]
    targets = [{"boxes": torch.zeros(at, 4)} for at in range(4)]
    for batch in [(images, targets), (tuple(images), tuple(targets))]:
        got = moved(batch)
        assert [id(item) for item in got[0]] == [id(images[row]) for row in SOURCE]
        assert [id(item) for item in got[1]] == [id(targets[row]) for row in SOURCE]


def test_two_views_of_every_sample() -> None:
    views = [torch.rand(4, 3, 5, 5), torch.rand(4, 3, 5, 5)]
    got = moved((views, Y))
    assert torch.equal(got[0][1], views[1][SOURCE])


def test_bad_rows() -> None:
    poisoned = X.clone()
    poisoned[2, 1] = float("nan")
    assert bad_rows((poisoned, Y)) == (2,)
    assert bad_rows([{"x": x} for x in poisoned]) == (2,)
    assert bad_rows((X, Y)) == ()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))


def log_step(net: nn.Module) -> Callable[[Any], Tensor]:
    """Samples whose label is 0 or less have no logarithm."""

    def step(batch: Any) -> Tensor:
        x, y = batch
        return (net(x).squeeze(-1) - torch.log(y)).square().mean()

    return step


def labels(*guilty: int, size: int = 8) -> tuple[Tensor, Tensor]:
    y = torch.ones(size)
    y[list(guilty)] = 0.0
    return torch.randn(size, 3, generator=torch.Generator().manual_seed(3)), y


def test_named_samples_are_left_out() -> None:
    net = model()
    step = log_step(net)
    scene = scene_of(net, labels(3, 5), sample_names=lambda at, rows: [1868 + r for r in rows])
    origin = Origin("log-of-zero", "", "forward", "log", rows=(3, 5))
    assert not run(scene, step).finite
    (remedy,) = select_remedies(origin, None, scene, "deterministic")
    assert remedy.text == "Fix or remove data-set samples 1871, 1873"
    assert remedy.safe
    assert not remedy.keepable
    assert attempt(scene, step, remedy).tried == "cured"
    leaves_nothing(scene, step, remedy, scene_of(net, labels()))
    x, y = scene.batches[0]
    kept = [0, 1, 2, 4, 6, 7]
    assert run(scene_of(net, (x[kept], y[kept])), step).finite  # by hand


def test_other_samples_do_not_cure() -> None:
    net = model()
    scene = scene_of(net, labels(3, 5))
    trial = attempt(scene, log_step(net), DropSamples(scene, {0: [3]}))
    assert trial.tried == "not cured"


def test_a_poisoned_batch_whose_rows_nobody_named() -> None:
    net = model()
    x, y = labels()
    x[6] = float("inf")
    scene = scene_of(net, (x, y))
    origin = Origin("poisoned-batch", "", "forward", "linear")
    (remedy,) = select_remedies(origin, None, scene, "deterministic")
    assert remedy.text == "Fix or remove sample 6"
    assert attempt(scene, log_step(net), remedy).tried == "cured"


def test_a_batch_of_nothing_but_guilty_samples() -> None:
    net = model()
    scene = scene_of(net, labels(0, 1, size=2))
    trial = attempt(scene, log_step(net), DropSamples(scene, {0: [0, 1]}))
    assert trial.tried == "not tried"
    assert "none can replace them" in trial.why


def test_several_batches_in_a_step() -> None:
    net = model()
    step = log_step(net)
    scene = scene_of(net, labels(), labels(2), labels(0, 1, size=2))
    assert not run(scene, step).finite
    remedy = DropSamples(scene, {1: [2], 2: [0, 1]})
    assert remedy.text == (
        "Fix or remove sample 2 of batch 1 of the step; samples 0, 1 of batch 2 of the step"
    )
    assert attempt(scene, step, remedy).tried == "cured"
    there = DropSamples.fitting(
        Origin("log-of-zero", "", "forward", "log", rows=(2,), batch=1), scene
    )
    assert there is not None
    assert there.rows == {1: (2,)}


def test_the_samples_of_a_spike() -> None:
    net = model()
    x, y = labels()
    x[4] *= 1e4
    scene = scene_of(net, (x, y), symptom="spike", limit=100.0)
    step = log_step(net)
    found = select_remedies(None, Spike("mse", rows=(4,)), scene, "deterministic")
    assert [r.key for r in found] == ["drop-samples", "component-weight", "smaller-rate"]
    assert run(scene, step).norm > 100
    assert attempt(scene, step, found[0]).tried == "cured"
    assert all(attempt(scene, step, r).tried == "not tried" for r in found[1:])
    trial = attempt(scene, step, DropSamples(scene, {0: [3]}))
    assert trial.tried == "not cured"
    assert "still above 100" in trial.why


def search(scene: Any, step: Any, most: int) -> Bisection:
    bisection = Bisection(scene, most)
    for remedy in bisection:
        bisection.learn(cured=run(scene, step, remedy).cured(scene.limit))
    return bisection


@pytest.mark.parametrize("guilty", range(8))
def test_one_guilty_sample_is_found_in_few_passes(guilty: int) -> None:
    net = model()
    scene = scene_of(net, labels(guilty))
    found = search(scene, log_step(net), most=8)
    assert found.found is not None
    assert found.found.rows == {0: (guilty,)}
    assert found.minimal
    assert found.passes <= 4
    assert attempt(scene, log_step(net), found.found).tried == "cured"


def test_no_sample_is_blamed_where_none_is_guilty() -> None:
    net = model()
    scene = scene_of(net, labels())
    found = search(scene, lambda batch: log_step(net)(batch) * float("nan"), most=8)
    assert found.found is None
    assert found.passes == 8
    assert found.why == "8 passes are not enough"
    without_end = search(scene, lambda batch: log_step(net)(batch) * float("nan"), most=1000)
    assert without_end.found is None
    assert without_end.why == "leaving out samples does not fix the step"
    assert search(scene_of(net, labels(0, size=1)), log_step(net), most=8).why == (
        "the step has only one sample"
    )


def test_several_guilty_samples_and_too_few_passes() -> None:
    net = model()
    scene = scene_of(net, labels(0, 3, 5, size=16))
    found = search(scene, log_step(net), most=5)
    assert found.found is not None
    assert not found.minimal
    assert {0, 3, 5} <= set(found.found.rows[0])
    assert found.why == "5 passes are not enough"
    assert attempt(scene, log_step(net), found.found).tried == "cured"


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 15), min_size=1, max_size=15), st.integers(1, 4))
@pytest.mark.slow
def test_any_set_of_guilty_samples_is_found(guilty: set[int], batches: int) -> None:
    """The bisection alone: a pass is cured if all the guilty were left out."""
    size = 16 // batches
    rows = [(at, row) for at in range(batches) for row in range(size)]
    bad = {rows[one % len(rows)] for one in guilty}
    scene = scene_of(nn.Linear(1, 1), *[torch.zeros(size, 3) for _ in range(batches)])
    bisection = Bisection(scene, most=1000)
    for remedy in bisection:
        left_out = {(at, row) for at, those in remedy.rows.items() for row in those}
        assert not remedy.why_not
        bisection.learn(cured=bad <= left_out)
    if len(bad) == len(rows):
        assert bisection.found is None
        return
    assert bisection.found is not None
    found = {(at, row) for at, those in bisection.found.rows.items() for row in those}
    assert found == bad
    assert bisection.minimal
    assert bisection.passes <= len(bad) * (len(rows).bit_length() + 1)


def test_when_a_search_is_worth_it() -> None:
    scene = scene_of(nn.Linear(1, 1), torch.zeros(4, 3))
    assert worth_bisecting(Origin("log-of-zero", "", "forward", "log"), None, scene)
    assert not worth_bisecting(Origin("log-of-zero", "", "forward", "log", rows=(1,)), None, scene)
    assert not worth_bisecting(Origin("poisoned-weight", "", "forward", "mm"), None, scene)
    assert worth_bisecting(None, Spike(), scene)
    assert not worth_bisecting(None, Spike(), scene_of(nn.Linear(1, 1), torch.zeros(1, 3)))


def test_a_batch_is_what_it_was_after_the_trial() -> None:
    net = model()
    scene = scene_of(net, labels(1))
    before = [tensor.clone() for tensor in scene.batches[0]]
    run(scene, log_step(net), DropSamples(scene, {0: [1]}))
    assert all(torch.equal(a, b) for a, b in zip(before, scene.batches[0], strict=True))
    healthy = scene_of(net, labels())
    nothing = DropSamples(healthy, {0: []})
    assert bits(run(healthy, log_step(net), nothing)) == bits(run(healthy, log_step(net)))
