"""The model behind what the documentation says of thousands of ranks."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import thoroughly

PATH = Path(__file__).parents[2] / "benchmarks" / "_reductions.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_reductions", PATH)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


model = load()
WAYS = [(model.ring, model.simulate_ring), (model.tree, model.simulate_tree)]
networks = st.builds(model.Network, alpha=st.floats(1e-7, 1e-3), beta=st.floats(1e-12, 1e-8))


@pytest.mark.parametrize(("closed", "simulated"), WAYS, ids=["ring", "tree"])
@thoroughly
@given(ranks=st.integers(2, 200), size=st.integers(1, 10**6), network=networks)
def test_events_come_to_what_the_formula_says(closed, simulated, ranks, size, network) -> None:
    exact, seen = closed(ranks, size, network), simulated(ranks, size, network)
    assert seen.seconds == pytest.approx(exact.seconds)
    assert seen.sent == pytest.approx(exact.sent)
    assert (seen.messages, seen.most_messages) == (exact.messages, exact.most_messages)


@pytest.mark.parametrize(("closed", "simulated"), WAYS, ids=["ring", "tree"])
@thoroughly
@given(ranks=st.integers(2, 100), seed=st.integers(0, 1000), network=networks)
def test_ranks_that_come_late_delay_all_but_no_longer_than_that(
    closed, simulated, ranks, seed, network
) -> None:
    begin = np.random.default_rng(seed).exponential(1e-3, ranks)
    exact = closed(ranks, 1000, network).seconds
    seen = simulated(ranks, 1000, network, begin).seconds
    assert seen >= begin.max()
    assert seen <= begin.max() + exact * (1 + 1e-9)
    assert begin.max() > 0, "the clocks that were passed in are left alone"


def test_a_tree_is_as_deep_as_the_logarithm() -> None:
    for ranks in (2, 3, 8, 9, 1000, 16000):
        assert model.tree(ranks, 1, model.Network(1.0, 0.0)).seconds == 2 * math.ceil(
            math.log2(ranks)
        )
