"""State: whatever a check keeps goes through JSON and comes back the same."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.strategies import floats, same, thoroughly

from headway.core.bound import Bound, History
from headway.core.state import decode, encode, register_state_class
from headway.core.window import DownsampledSeries, Window

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.floats(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(st.integers(), max_size=3),
    max_leaves=4,
)
kept = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.sets(st.integers(), max_size=4)
        | st.frozensets(st.text(max_size=3), max_size=4)
        | st.sets(st.frozensets(st.integers(), max_size=2), max_size=1)
    ),
    max_leaves=20,
)


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value), allow_nan=False)))


def just_the_same(one: Any, other: Any) -> bool:
    """Equal, NaN included, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return all(map(just_the_same, one, other)) and all(
            map(just_the_same, one.values(), other.values())
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(just_the_same, one, other))
    return same(one, other)


@thoroughly
@given(kept)
@example([math.nan, (math.inf,), {-math.inf: "NaN"}])
@example({1: {frozenset({2})}, (3, None): [{"4"}]})
def test_any_nesting_of_plain_values_comes_back_the_same(value: Any) -> None:
    assert just_the_same(through_json(value), value)


def test_a_dict_that_looks_like_our_own_tags_comes_back_the_same() -> None:
    value = {"$tuple": [1], "$Window": {"$number": "NaN"}}
    assert through_json(value) == value


def test_windows_and_histories_come_back_from_deep_inside() -> None:
    window, thinned, history = Window(3), DownsampledSeries(4), History(Bound("loss", patience=2))
    for value in (3.0, 1.0, 2.0, 5.0):
        window.push(value)
        thinned.push(value, value)
        history.admit(value, outside=False)
    back = through_json({("a", 1): [window], "b": (thinned, {"h": history})})
    assert back["a", 1][0].values == [1.0, 2.0, 5.0]
    assert back["b"][0].points == thinned.points
    assert back["b"][1]["h"].window.values == history.window.values
    assert back["b"][1]["h"].bound == history.bound


def test_the_state_is_a_snapshot_that_later_values_do_not_change() -> None:
    window = Window(3)
    values = [1.0]
    state = encode([window, values])
    window.push(9.0)
    values.append(9.0)
    back = decode(state)
    assert back[0].values == []
    assert back[1] == [1.0]


Pair = namedtuple("Pair", "a b")


class Unknown:
    """Nobody marked this one."""


@pytest.mark.parametrize(
    "value",
    [
        Unknown(),
        Unknown,
        object(),
        b"bytes",
        1j,
        range(3),
        deque([1]),
        iter([]),
        len,
        # These would come back as plain dicts and tuples, and fail only after a resume.
        defaultdict(int),
        Counter("aab"),
        OrderedDict(a=1),
        Pair(1, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_could_not_be_read_back_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=f"cannot keep a {type(value).__name__}"):
        encode(value)
    with pytest.raises(TypeError, match="across a resume"):
        encode({"deep": [(1, value)]})


def test_a_class_that_only_shares_a_remembered_name_is_refused() -> None:
    impostor = type("Window", (), {"to_state": lambda self: [1, []]})
    with pytest.raises(TypeError, match="cannot keep a Window"):
        encode(impostor())


def test_a_class_joins_by_the_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.core.state._CLASSES", {})

    @register_state_class
    class Tally:
        def __init__(self, count: int) -> None:
            self.count = count

        def to_state(self) -> Any:
            return {"count": self.count}

        @classmethod
        def from_state(cls, state: Any) -> Tally:
            return cls(state["count"])

    assert through_json([Tally(3)])[0].count == 3
