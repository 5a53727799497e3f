"""Records as JSON lines and back."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import (
    columns,
    counts,
    events,
    headers,
    junk,
    records,
    same,
    setups,
    steps,
    tensors,
    thoroughly,
)

from headway.core.codec import SCHEMA, from_json, step_line, to_json
from headway.core.records import (
    Column,
    EventRecord,
    Header,
    Record,
    SetupRecord,
    StepRecord,
    TensorRecord,
)
from headway.core.signals import Signal

NO_RECORD = (ValueError, KeyError, TypeError, AttributeError)
"""What a reader has to expect from a line that is no record."""


def as_line(record: Record) -> str:
    return json.dumps(to_json(record), allow_nan=False)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(headers, id="header"),
        pytest.param(steps, id="step"),
        pytest.param(setups, id="setup"),
        pytest.param(tensors, id="tensor"),
        pytest.param(events, id="event"),
    ],
)
def test_every_kind_comes_back_the_same(kind: st.SearchStrategy[Record]) -> None:
    @thoroughly
    @given(kind, st.integers(0, 99))
    def check(record: Record, rank: int) -> None:
        record = replace(record, rank=rank)
        assert same(from_json(json.loads(as_line(record)), rank=rank), record)

    check()


@thoroughly
@given(records)
def test_a_line_is_one_line_of_ascii(record: Record) -> None:
    line = as_line(record)
    assert "\n" not in line
    assert line.isascii()


def test_the_three_nonfinite_numbers_come_back_wherever_they_stand() -> None:
    odd = {"a": math.nan, "b": math.inf, "c": -math.inf}
    column = Column([math.nan, math.inf, -math.inf, 0.5], [0, 2, 4, 6])
    for record in (
        StepRecord(0, 1, 1, odd, {"param/grad_norm": column}),
        TensorRecord(0, 1, 1, "fc.weight", "weight", stats=odd, facts={"rows": [math.nan]}),
        EventRecord(0, 1, 1, "action", {"deep": [{"value": math.inf}]}),
        SetupRecord(0, 1, "precision", odd),
        Header("headway", facts=odd),
        Header("headway", segment=2, training=1),
    ):
        assert same(from_json(json.loads(as_line(record))), record)


def test_a_step_is_written_compactly() -> None:
    plain = StepRecord(1, 2, 3, {"loss": 0.5})
    assert to_json(plain) == {"seg": 1, "seq": 2, "step": 3, "v": {"loss": 0.5}}
    full = replace(plain, columns={"a": Column([1.0]), "b": Column([2.0], [7])}, held=True)
    assert to_json(full) == {
        **to_json(plain),
        "c": {"a": [1.0], "b": {"i": [7], "v": [2.0]}},
        "held": True,
    }


def test_a_header_says_its_schema_and_only_what_is_not_default() -> None:
    line = to_json(Header("headway", signals={"loss": Signal(), "lr": Signal(every=5)}))
    assert line["schema"] == SCHEMA
    assert line["signals"] == {"loss": {}, "lr": {"every": 5}}


@thoroughly
@given(junk)
def test_junk_is_refused_with_an_error_readers_expect(data: Any) -> None:
    with contextlib.suppress(*NO_RECORD):
        from_json(data)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A record's line of which one part, at any depth, was replaced or removed."""
    line = json.loads(as_line(draw(records)))
    part: Any = line
    while True:
        place = draw(st.sampled_from(list(part) if isinstance(part, dict) else range(len(part))))
        deeper = isinstance(part[place], (dict, list)) and len(part[place])
        if not deeper or draw(st.booleans()):
            break
        part = part[place]
    if draw(st.booleans()):
        part[place] = draw(junk)
    else:
        del part[place]
    return line


@thoroughly
@given(damaged())
def test_a_damaged_line_is_refused_or_gives_a_whole_record(line: Any) -> None:
    try:
        record = from_json(line)
    except NO_RECORD:
        return
    # What was let through can be used and written again.
    assert type(record.segment) is int
    assert type(record.seq) is int
    if isinstance(record, StepRecord):
        for value in record.values.values():
            assert type(value) is float
        for column in record.columns.values():
            for position, value in column.items():
                assert type(position) is int
                assert type(value) is float
    if isinstance(record, Header):
        for signal in record.signals.values():
            assert type(signal.span) is int
            assert type(signal.every) is int
    assert same(from_json(json.loads(as_line(record))), record)


@pytest.mark.parametrize(
    "line",
    [
        [],
        None,
        "step",
        {},
        {"kind": "novel"},
        {"kind": ["step"]},
        {"seg": 0, "seq": 0, "step": 0},
        {"seg": -1, "seq": 0, "step": 0, "v": {}},
        {"seg": True, "seq": 0, "step": 0, "v": {}},
        {"seg": 0, "seq": 0.0, "step": 0, "v": {}},
        {"seg": 0, "seq": 0, "step": 0, "v": {"loss": "high"}},
        {"seg": 0, "seq": 0, "step": 0, "v": {"loss": None}},
        {"seg": 0, "seq": 0, "step": 0, "v": {"loss": 10**400}},
        {"seg": 0, "seq": 0, "step": 0, "v": {}, "c": {"a": {"i": [1, 2], "v": [1.0]}}},
        {"seg": 0, "seq": 0, "step": 0, "v": {}, "c": {"a": {"i": [-1], "v": [1.0]}}},
    ],
    ids=lambda line: repr(line)[:60],
)
def test_this_is_no_record(line: Any) -> None:
    with pytest.raises(NO_RECORD):
        from_json(line)


@thoroughly
@given(columns(), counts)
def test_a_column_gives_its_positions_with_its_values(column: Column, seq: int) -> None:
    record = from_json(json.loads(as_line(StepRecord(0, seq, 0, {}, {"c": column}))))
    assert isinstance(record, StepRecord)
    positions = range(len(column.values)) if column.index is None else column.index
    assert same(list(record.columns["c"].items()), list(zip(positions, column.values, strict=True)))


def test_a_header_of_a_later_version_is_read_for_what_we_know_of_it() -> None:
    line = to_json(Header("headway", signals={"loss": Signal(span=3)}))
    line["signals"]["loss"] |= {"fold": "geometric", "units": "nats", "every": 0}
    line["novel"] = {"anything": 1}
    header = from_json(line)
    assert isinstance(header, Header)
    assert header.signals["loss"] == Signal(span=3)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"loss": 0.1, "lr": 1e-300, "grad_norm#1": 3.0, 'loss/ä "b"': -0.0},
        {"loss": math.nan},
        {"loss": 1},
    ],
)
def test_the_quick_line_of_a_step_is_the_line_of_the_encoder(values: dict[str, float]) -> None:
    step = StepRecord(1, 20, 300, values)
    plain = json.dumps(to_json(step), separators=(",", ":"))
    assert step_line(step) in (plain, None)
    assert (step_line(step) is None) == (values.get("loss") not in (None, 0.1))
    assert step_line(StepRecord(1, 2, 3, {}, held=True)) is None
    assert step_line(StepRecord(1, 2, 3, {}, {"param/grad_norm": Column([1.0])})) is None
