"""The plain parts of a snapshot: nested states, random numbers, room in memory."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import lightly
from support.trainings import assert_same
from torch import nn

from headway.guard.recovery import snapshotter
from headway.guard.recovery.snapshots import take_snapshot
from headway.torch_adapters import rng
from headway.torch_adapters.nested_state import find_tensors, make_loadable

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False), st.text(max_size=3)
)
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
    ),
    max_leaves=10,
)


@lightly
@given(states)
def test_plain_data_stay_as_they_are(state: Any) -> None:
    assert make_loadable(state) == state


def test_what_could_not_be_loaded_safely_becomes_none_in_its_place() -> None:
    odd = {"f": len, "list": [1, object(), 3], "float": np.float64(2.5), "zero": np.int32(7)}
    made = make_loadable({**odd, "counter": Counter([3, 3])})
    assert made == {
        "f": None,
        "list": [1, None, 3],
        "float": 2.5,
        "zero": 7,
        "counter": Counter({3: 2}),
    }
    assert type(made["float"]) is float


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    def draw() -> list[Any]:
        return [random.random(), np.random.rand(), torch.rand(1).item(), random.gauss(0, 1)]

    draw()
    torch.save(rng.capture(), tmp_path / "rng.pt")
    expected = draw()
    draw()
    rng.restore(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert draw() == expected


shapes = st.lists(st.integers(0, 4), max_size=4)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])


@lightly
@given(st.lists(st.tuples(shapes, dtypes, st.randoms()), max_size=8))
def test_a_copy_is_equal_in_values_and_layout(kinds: list[Any]) -> None:
    state = {}
    for at, (shape, dtype, dice) in enumerate(kinds):
        tensor = (10 * torch.randn(shape)).to(dtype)
        order = list(range(tensor.ndim))
        dice.shuffle(order)
        state[f"t{at}"] = tensor.permute(order)
    snapshot = take_snapshot(3, state)
    assert snapshot.good
    assert_same(state, snapshot.state)
    for name, tensor in state.items():
        if tensor.numel():
            assert snapshot.state[name].shape == tensor.shape
            assert snapshot.state[name].data_ptr() != tensor.data_ptr()
    for tensor in state.values():
        tensor.zero_() if tensor.dtype is not torch.bool else tensor.logical_not_()
    assert all(not torch.isnan(t.float()).any() for _, t in find_tensors(snapshot.state))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.complex64])
def test_one_bad_number_anywhere_and_it_is_no_good(value: float, dtype: torch.dtype) -> None:
    state = {"a": torch.ones(100), "b": {"c": [torch.ones(50).to(dtype)]}}
    assert take_snapshot(0, state).good
    state["b"]["c"][0][17] = value  # type: ignore[index]
    assert not take_snapshot(0, state).good
    assert take_snapshot(0, state, tolerated={("b", "c", 0)}).good


def test_tied_weights_are_copied_once() -> None:
    weight = nn.Parameter(torch.ones(1000))
    snapshot = take_snapshot(0, {"one": weight, "other": weight})
    assert snapshot.state["one"].data_ptr() == snapshot.state["other"].data_ptr()


def test_a_container_has_less_room_than_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4096 kB\n")
    monkeypatch.setattr(snapshotter, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(snapshotter, "CGROUP", tmp_path)
    assert snapshotter.available_bytes() == 4096 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert snapshotter.available_bytes() == 4096 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert snapshotter.available_bytes() == 4000
    (tmp_path / "meminfo").write_text("nothing\n")
    (tmp_path / "memory.max").unlink()
    assert snapshotter.available_bytes() is None
