"""Many lines at once tell what they tell one by one."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import lightly

from headway.core.codec import NO_RECORD, from_json, to_json
from headway.core.records import Column, StepRecord
from headway.rundir.step_columns import StepColumnReader, TensorColumns, decode_steps


def _line(record: StepRecord) -> bytes:
    return json.dumps(to_json(record), separators=(",", ":")).encode()


numbers = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])
steps = st.builds(
    StepRecord,
    segment=st.just(0),
    seq=st.integers(0, 1000),
    step=st.integers(0, 1000),
    values=st.dictionaries(st.text(max_size=6) | st.sampled_from(["loss", ',"c":{']), numbers),
    columns=st.dictionaries(
        st.sampled_from(["param/grad_norm", "param/update_ratio"]),
        st.builds(
            Column, st.lists(numbers, min_size=2, max_size=2), st.sampled_from([None, [0, 3]])
        ),
    ),
    held=st.booleans(),
)


@lightly
@given(st.lists(steps, max_size=8))
def test_the_same_as_one_by_one(records: list[StepRecord]) -> None:
    rows = decode_steps([_line(record) for record in records])
    assert rows.step.tolist() == [record.step for record in records]
    assert rows.seq.tolist() == [record.seq for record in records]
    assert rows.held.tolist() == [record.held for record in records]
    told = [
        {
            name: values[at.tolist().index(row)]
            for name, (at, values) in rows.values.items()
            if row in at
        }
        for row in range(len(rows))
    ]
    assert [{k: repr(float(v)) for k, v in sorted(row.items())} for row in told] == [
        {k: repr(float(v)) for k, v in sorted(record.values.items())} for record in records
    ]
    looks = {look.row: look for look in rows.tensor_steps}
    assert sorted(looks) == [row for row, record in enumerate(records) if record.columns]
    for row, look in looks.items():
        wanted = {
            name: [*map(str, map(float, c.values))] for name, c in records[row].columns.items()
        }
        assert {
            name: [*map(str, map(float, v))] for name, (v, _) in look.columns().items()
        } == wanted
        for name in wanted:
            fresh, known = TensorColumns(row, look.line).column(name), look.columns()[name]
            assert fresh is not None
            assert str(fresh) == str(known)


BROKEN = [
    b"",
    b"  ",
    b"{",
    b"\x00\xff\xfe",
    b"[1, 2]",
    b"7",
    b"null",
    b'{"seg":0,"seq":2,"step":2}',
    b'{"seg":0,"seq":2,"step":2,"v":[1]}',
    b'{"seg":0,"seq":2,"step":2,"v":{"loss":"much"}}',
    b'{"seg":0,"seq":2,"step":2,"v":{"loss":true}}',
    b'{"seg":0,"seq":2,"step":2,"v":{"loss":null}}',
    b'{"seg":0,"seq":2,"step":-2,"v":{"loss":1}}',
    b'{"seg":0,"seq":2,"step":1e9,"v":{"loss":1}}',
    b'{"seg":0,"seq":true,"step":2,"v":{"loss":1}}',
    b'{"seg":"0","seq":2,"step":2,"v":{"loss":1}}',
    b'{"seg":0,"seq":2,"step":2,"v":{"loss":1' + b"0" * 400 + b"}}",
    b'{"kind":"event","seg":0,"seq":2,"step":2,"v":{"loss":1}}',
    b'{"kind":{},"seg":0,"seq":2,"step":2,"v":{"loss":1}}',
    b'{"seg":0,"seq":2,"step":2,"v":{"loss":1}},{"seg":0,"seq":2,"step":2,"v":{"loss":1}}',
    b"[" * 100_000,
    b'{"seg":0,"seq":2,"step":2,"v":{"loss":1,"c":{"x":1}}}',
]


@pytest.mark.parametrize("broken", BROKEN, ids=range(len(BROKEN)))
def test_a_line_that_is_no_step_spoils_no_other(broken: bytes) -> None:
    good = [_line(StepRecord(0, at, at, {"loss": 1.0})) for at in (1, 3)]
    rows = decode_steps([good[0], broken, good[1]])
    assert rows.step.tolist() == [1, 3]
    assert rows.left_out == (1 if broken.strip() else 0)
    if broken.strip() and b'"kind"' not in broken:
        with pytest.raises(NO_RECORD):  # one by one it is none either
            from_json(json.loads(broken))


def test_another_order_of_keys() -> None:
    line = b'{"v":{"loss":2.0},"c":{"param/grad_norm":[1.0]},"step":4,"seq":5,"seg":0}'
    rows = decode_steps([line])
    assert rows.step.tolist() == [4]
    assert rows.values["loss"][1].tolist() == [2.0]
    column = rows.tensor_steps[0].column("param/grad_norm")
    assert column is not None
    assert column[0].tolist() == [1.0]


def test_a_line_out_of_order_is_left_out() -> None:
    reader = StepColumnReader()
    assert reader.read([_line(StepRecord(1, 5, 5, {}))]).step.tolist() == [5]
    later = [
        _line(StepRecord(*place, {})) for place in ((0, 9, 9), (1, 4, 4), (1, 6, 6), (1, 6, 7))
    ]
    rows = reader.read(later)
    assert rows.step.tolist() == [6, 7]
    assert rows.left_out == 2


@pytest.mark.parametrize("column", ['{"i":[0],"v":[1,2]}', '"x"', "7", '{"i":3,"v":4}', "[1,2"])
def test_a_column_that_is_none(column: str) -> None:
    line = '{"seg":0,"seq":1,"step":1,"v":{"loss":1},"c":{"param/grad_norm":' + column + "}}"
    look = decode_steps([line.encode()]).tensor_steps[0]
    assert look.column("param/grad_norm") is None
    assert look.columns() == {}
