"""Layers that are so at one look after the other."""

from __future__ import annotations

from headway.checks.weights._shared import LayerStreaks
from headway.core.findings import Where
from headway.core.records import Column, SetupRecord, StepRecord
from headway.core.state import decode, encode


def look(layers: LayerStreaks, step: int, *shares: float) -> list[tuple[int, float]]:
    record = StepRecord(0, step + 1, step)
    return list(layers.reached(record, Column(list(shares)), share=0.9, looks=2))


def test_told_once_until_it_is_better() -> None:
    layers = LayerStreaks()
    assert look(layers, 0, 1.0, 0.1) == []
    layers = decode(encode(layers))
    assert look(layers, 1, 1.0, 0.95) == [(0, 1.0)]
    assert layers.since[0][2] == 0
    assert look(layers, 2, 1.0, 0.5) == []
    assert look(layers, 3, 0.5, 0.5) == []
    assert look(layers, 4, 0.9, 0.5) == []
    assert look(layers, 5, 0.9, 0.5) == [(0, 0.9)]


def test_steps_that_are_taken_again_count_anew() -> None:
    layers = LayerStreaks()
    look(layers, 0, 1.0)
    layers.begin()
    assert look(layers, 0, 1.0) == []
    assert look(layers, 1, 1.0) == [(0, 1.0)]


def test_the_line_is_told_where_it_is_known() -> None:
    layers = LayerStreaks()
    place = {"file": "net.py", "line": 3, "function": "forward"}
    layers.learn(SetupRecord(0, 1, "activation", {"member": "act", "place": place}))
    look(layers, 0, 1.0, 1.0)
    assert layers.where(0, "act") == Where("net.py", 3, "forward", "act")
    assert layers.where(1, "other") == Where(module="other")
