"""Signals: what a logged number means."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from support.strategies import signals, thoroughly

from headway.core.signals import Signal, axis_of, family


@thoroughly
@given(signals)
def test_a_description_comes_back_the_same(signal: Signal) -> None:
    assert Signal.from_json(json.loads(json.dumps(signal.to_json()))) == signal


def test_the_default_needs_no_words() -> None:
    assert Signal().to_json() == {}


@pytest.mark.parametrize("wrong", [{"span": 0}, {"every": 0}, {"span": -1}])
def test_spans_count_from_one(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        Signal(**wrong)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("grad_norm", "grad_norm"), ("grad_norm#1", "grad_norm"), ("loss/box", "loss/box")],
)
def test_a_further_optimizers_signal_belongs_to_the_family(name: str, expected: str) -> None:
    assert family(name) == expected


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("param/grad_norm", "param"),
        ("group/lr", "group"),
        ("loss/box", None),
        ("param", None),
        ("loss", None),
    ],
)
def test_only_a_known_axis_makes_a_column(name: str, axis: str | None) -> None:
    assert axis_of(name) == axis
