"""States in plain containers: whatever is in them, torch loads them without trust."""

from __future__ import annotations

import io
import math
from collections import Counter, OrderedDict
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import lightly

from headway.torch_adapters.nested_state import make_loadable


def reloaded(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


simple = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 4000), 1 << 4000)
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
)
keys = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats()
states = st.recursive(
    simple,
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@lightly
@given(states)
def test_whatever_is_plain_loads(state: Any) -> None:
    found = make_loadable(state)
    assert repr(reloaded(found)) == repr(found)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", None),
        (b"x", b"x"),
        (1 << 5000, None),
        (-(1 << 5000), None),
        (1 << 128, 1 << 128),  # NumPy's generators have such a state
        ({b"": 1}, {None: 1}),
        ([b"", 3], [None, 3]),
        (numpy.float64(2.5), 2.5),
        (numpy.int64(7), 7),
        (numpy.str_("s"), "s"),
        (numpy.bytes_(b""), None),
        (numpy.datetime64("2020-01-01"), None),
        (OrderedDict(a=(1, print)), {"a": (1, None)}),
        (Counter({3: 2}), Counter({3: 2})),
        (math.inf, math.inf),
    ],
)
def test_what_becomes_of_it(value: Any, expected: Any) -> None:
    found = make_loadable(value)
    assert found == expected
    assert type(found) is type(expected)
    assert reloaded(found) == expected
