"""Converts records to JSON and back: the only module that knows the line format of run directories.

A step is `{"seg", "seq", "step", "v": {…}, "c": {…}}`; a column is a list, or
`{"i": […], "v": […]}` if it covers some positions only. All other records have a `kind`.
Keys at their default are omitted. A non-finite number is written as its name, in facts and data
as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from headway.core.numbers import (
    decode_number,
    decode_numbers,
    encode_number,
    encode_numbers,
    encode_values,
)
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

SCHEMA = 1
NO_RECORD = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of `json.loads` and `from_json` for a line that is not a record."""


def to_json(record: Record) -> dict[str, Any]:
    """One record as JSON data (finite numbers and strings only)."""
    if isinstance(record, StepRecord):
        return _step_to_json(record)
    if isinstance(record, Header):
        return _header_to_json(record)
    line = _place(record)
    if isinstance(record, SetupRecord):
        return {"kind": "setup", **line, "topic": record.topic, "facts": _plain(record.facts)}
    if isinstance(record, EventRecord):
        return {"kind": "event", **line, "event": record.kind, "data": _plain(record.data)}
    return {
        "kind": "tensor",
        **line,
        "name": record.name,
        "role": record.role,
        "dtype": record.dtype,
        "shape": list(record.shape),
        "stats": _plain(record.stats),
        "facts": _plain(record.facts),
    }


def from_json(line: Mapping[str, Any], *, rank: int = 0) -> Record:
    """The record of a line. Raises one of `NO_RECORD` if it is not one."""
    kind = line.get("kind", "step")
    try:
        read = _READERS[kind]
    except (KeyError, TypeError):
        raise ValueError(f"unknown kind of record: {kind!r}") from None
    return read(line, rank)


def _place(record: SetupRecord | EventRecord | TensorRecord) -> dict[str, Any]:
    return {"seg": record.segment, "seq": record.seq, "step": record.step}


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    encoded: dict[str, Any] = encode_numbers(dict(data))
    return encoded


def _facts(data: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = decode_numbers(dict(data))
    return decoded


def _step_to_json(record: StepRecord) -> dict[str, Any]:
    line: dict[str, Any] = {
        "seg": record.segment,
        "seq": record.seq,
        "step": record.step,
        "v": encode_values(record.values),
    }
    if record.columns:
        line["c"] = {name: _column_to_json(column) for name, column in record.columns.items()}
    if record.held:
        line["held"] = True
    return line


_forms: dict[tuple[str, ...], str] = {}
"""Names of values → their JSON, with a place for each number."""
MOST_FORMS = 256


def step_line(record: StepRecord) -> str | None:
    """The line of a step with finite values only, as most steps are; None for another step.

    The same text as that of `to_json` and an encoder, in a fraction of the time.
    """
    if record.columns or record.held:
        return None
    numbers = tuple(record.values.values())
    if not (_FLOATS.issuperset(map(type, numbers)) and all(map(isfinite, numbers))):
        return None
    names = tuple(record.values)
    form = _forms.get(names)
    if form is None:
        form = ",".join(f"{json.dumps(name)}:".replace("%", "%%") + "%r" for name in names)
        if len(_forms) < MOST_FORMS:
            _forms[names] = form
    place = f'"seg":{record.segment},"seq":{record.seq},"step":{record.step}'
    return f'{{{place},"v":{{{form % numbers}}}}}'


_FLOATS = frozenset({float})


def _column_to_json(column: Column) -> Any:
    values = [encode_number(value) for value in column.values]
    return values if column.index is None else {"i": list(column.index), "v": values}


def _column_from_json(data: Any) -> Column:
    if isinstance(data, list):
        return Column([decode_number(value) for value in data])
    index, values = data["i"], [decode_number(value) for value in data["v"]]
    if len(index) != len(values) or not all(type(at) is int and at >= 0 for at in index):
        raise ValueError("index and values of a column do not match")
    return Column(values, index)


def _step_from_json(line: Mapping[str, Any], rank: int) -> StepRecord:
    return StepRecord(
        segment=_count(line["seg"]),
        seq=_count(line["seq"]),
        step=_count(line["step"]),
        values={str(name): decode_number(value) for name, value in line["v"].items()},
        columns={str(name): _column_from_json(data) for name, data in line.get("c", {}).items()},
        held=bool(line.get("held", False)),
        rank=rank,
    )


def _header_to_json(header: Header) -> dict[str, Any]:
    line = {
        "kind": "header",
        "schema": SCHEMA,
        "seg": header.segment,
        "seq": header.seq,
        "source": header.source,
        "world_size": header.world_size,
        "signals": {name: signal.to_json() for name, signal in header.signals.items()},
        "axes": {name: list(names) for name, names in header.axes.items()},
        "facts": _plain(header.facts),
    }
    if header.cadence != "steps":
        line["cadence"] = header.cadence
    if header.training:
        line["training"] = header.training
    return line


def _header_from_json(line: Mapping[str, Any], rank: int) -> Header:
    return Header(
        source=str(line["source"]),
        signals={str(name): Signal.from_json(data) for name, data in line["signals"].items()},
        axes={str(axis): tuple(map(str, names)) for axis, names in line["axes"].items()},
        facts=_facts(line.get("facts", {})),
        world_size=_count(line.get("world_size", 1)),
        segment=_count(line.get("seg", 0)),
        seq=_count(line.get("seq", 0)),
        rank=rank,
        cadence="rows" if line.get("cadence") == "rows" else "steps",
        training=_count(line.get("training", 0)),
    )


def _setup_from_json(line: Mapping[str, Any], rank: int) -> SetupRecord:
    return SetupRecord(
        *_order(line), topic=str(line["topic"]), facts=_facts(line["facts"]), **_label(line, rank)
    )


def _event_from_json(line: Mapping[str, Any], rank: int) -> EventRecord:
    return EventRecord(
        *_order(line), kind=str(line["event"]), data=_facts(line["data"]), **_label(line, rank)
    )


def _tensor_from_json(line: Mapping[str, Any], rank: int) -> TensorRecord:
    return TensorRecord(
        *_order(line),
        name=str(line["name"]),
        role=str(line["role"]),
        dtype=str(line["dtype"]),
        shape=tuple(_count(size) for size in line["shape"]),
        stats={str(name): decode_number(value) for name, value in line["stats"].items()},
        facts=_facts(line.get("facts", {})),
        **_label(line, rank),
    )


def _order(line: Mapping[str, Any]) -> tuple[int, int]:
    return _count(line["seg"]), _count(line["seq"])


def _label(line: Mapping[str, Any], rank: int) -> dict[str, int]:
    return {"step": _count(line["step"]), "rank": rank}


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"not a count: {value!r}")
    return value


_READERS: dict[str, Callable[[Mapping[str, Any], int], Record]] = {
    "step": _step_from_json,
    "header": _header_from_json,
    "setup": _setup_from_json,
    "event": _event_from_json,
    "tensor": _tensor_from_json,
}
