"""Decodes many step lines at once into arrays, without building a record per line.

Decoding a million lines one by one into records takes most of the time, and a chart needs neither
the records nor tensors that it does not draw. So the scalar part of each line is cut out, a whole
block is decoded at once, and the numbers of one name become one array. A line that is no step is
skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core.codec import NO_RECORD
from headway.core.numbers import decode_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_COLUMNS = b',"c":{'
_HELD = b'"held":true}'
SEQ_BITS = 44
_COUNTS = (("seg", 18), ("seq", SEQ_BITS), ("step", 53))
"""Counts and their bits; a larger number is damage."""


Column = tuple[Floats, Sequence[int] | None]
"""Values and their positions; None for all positions, in order."""


@dataclass(slots=True)
class TensorColumns:
    """A step with values per tensor; they are decoded on demand."""

    row: int
    line: bytes
    _all: dict[str, Column] | None = field(default=None, repr=False)

    def columns(self) -> dict[str, Column]:
        """All columns."""
        if self._all is None:
            data = _parse_json(self.line)
            data = data.get("c") if isinstance(data, dict) else None
            found = {
                name: column
                for name, values in (data.items() if isinstance(data, dict) else ())
                if (column := _column(values)) is not None
            }
            self._all = found
        return self._all

    def column(self, name: str) -> Column | None:
        """One column, without decoding the others."""
        if self._all is not None:
            return self._all.get(name)
        begin = self.line.find(b'"' + name.encode() + b'":', self.line.find(_COLUMNS))
        if begin < 0:
            return None
        begin += len(name) + 3
        # Neither form contains another bracket of its own kind.
        close = {b"[": b"]", b"{": b"}"}.get(self.line[begin : begin + 1])
        end = self.line.find(close, begin) if close else -1
        return _column(_parse_json(self.line[begin : end + 1]))


def _column(data: Any) -> Column | None:
    index = None
    if isinstance(data, dict):
        data, index = data.get("v"), data.get("i")
        if not isinstance(index, list) or set(map(type, index)) - {int}:
            return None
    if not isinstance(data, list) or (index is not None and len(index) != len(data)):
        return None
    try:
        values = np.asarray(data, np.float64)  # understands the names of non-finite numbers
    except (TypeError, ValueError, OverflowError):
        return None
    return (values, index) if values.ndim == 1 else None


@dataclass
class StepColumns:
    """Consecutive steps as arrays."""

    segment: Ints
    seq: Ints
    step: Ints
    held: NDArray[np.bool_]
    values: dict[str, tuple[Ints, Floats]] = field(default_factory=dict)
    """Name: the rows that have it, and the numbers."""
    tensor_steps: list[TensorColumns] = field(default_factory=list)
    lines: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """The line number of each row."""
    left_out: int = 0
    """Lines that are no step."""

    def __len__(self) -> int:
        return len(self.step)

    @property
    def order(self) -> Ints:
        """(segment, seq) as one increasing number."""
        return (self.segment << SEQ_BITS) + self.seq

    def kept(self, keep: NDArray[np.bool_]) -> StepColumns:
        """Some of the rows."""
        if keep.all():
            return self
        new = np.cumsum(keep) - 1
        values = {}
        for name, (at, numbers) in self.values.items():
            chosen = keep[at]
            if chosen.any():
                values[name] = (new[at[chosen]], numbers[chosen])
        return StepColumns(
            self.segment[keep],
            self.seq[keep],
            self.step[keep],
            self.held[keep],
            values,
            [
                TensorColumns(int(new[step.row]), step.line)
                for step in self.tensor_steps
                if keep[step.row]
            ],
            self.lines[keep],
            self.left_out,
        )


class StepColumnReader:
    """Decodes the lines of a file in order. A line that is out of order is skipped."""

    def __init__(self) -> None:
        self._last = -1

    def read(self, lines: Sequence[bytes]) -> StepColumns:
        """The steps in some lines."""
        rows = decode_steps(lines)
        if not len(rows):
            return rows
        order = rows.order
        before = np.maximum.accumulate(np.concatenate([[self._last], order]))
        self._last = int(before[-1])
        keep = order >= before[:-1]
        rows.left_out += int(np.count_nonzero(~keep))
        return rows.kept(keep)


def has_numbers(line: bytes) -> bool:
    """Whether a line that may be cut off contains all numbers of its step but those of tensors."""
    return line.endswith(b"}") or _COLUMNS in line


def decode_steps(lines: Sequence[bytes]) -> StepColumns:
    """The steps in some lines, in their order."""
    full = [line for line in lines if line and not line.isspace()]
    cut: list[bytes] = []
    columns: list[int] = []
    for at, line in enumerate(full):
        end = line.find(_COLUMNS)
        if end >= 0:
            columns.append(at)
            held = line.rstrip().endswith(_HELD)
            line = line[:end] + (b',"held":true}' if held else b"}")
        cut.append(line)
    return _rows(_decode_block(cut), full, columns)


def _decode_block(lines: Sequence[bytes]) -> list[Any]:
    """The content of the lines; None for one that is no JSON."""
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")
        if len(found) == len(lines):
            return list(found)
    except NO_RECORD:
        pass
    return [_parse_json(line) for line in lines]


def _parse_json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except NO_RECORD:
        return None


def _rows(found: list[Any], full: Sequence[bytes], columns: Sequence[int]) -> StepColumns:
    valid = _is_valid(found, full, set(columns))
    where = np.flatnonzero(valid).astype(np.int64)
    steps = found if len(where) == len(found) else [found[at] for at in where.tolist()]
    count = len(steps)
    rows = StepColumns(
        np.fromiter([step["seg"] for step in steps], np.int64, count),
        np.fromiter([step["seq"] for step in steps], np.int64, count),
        np.fromiter([step["step"] for step in steps], np.int64, count),
        np.fromiter([bool(step.get("held")) for step in steps], np.bool_, count),
        lines=where,
        left_out=len(full) - count,
    )
    row_of = np.cumsum(valid) - 1
    rows.tensor_steps = [TensorColumns(int(row_of[at]), full[at]) for at in columns if valid[at]]
    good = _fill(rows, [step["v"] for step in steps])
    rows.left_out += int(np.count_nonzero(~good))
    return rows.kept(good)


def _is_valid(found: list[Any], full: Sequence[bytes], cut: set[int]) -> NDArray[np.bool_]:
    """Which of the items are steps, by their counts and shape."""
    if _are_all_valid(found):
        return np.ones(len(found), bool)
    valid = np.zeros(len(found), bool)
    for at, item in enumerate(found):
        valid[at] = _are_all_valid([item])
        if at in cut and not valid[at]:  # cut at the wrong place: its keys are in another order
            found[at] = _parse_json(full[at])
            valid[at] = _are_all_valid([found[at]])
    return valid


def _are_all_valid(items: list[Any]) -> bool:
    try:
        for name, bits in _COUNTS:
            counts = [item[name] for item in items]
            if set(map(type, counts)) - {int} or min(counts) < 0 or max(counts) >= 1 << bits:
                return False
        kinds = {item.get("kind", "step") for item in items}
        return kinds <= {"step"} and {type(item["v"]) for item in items} <= {dict}
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        return False


def _fill(rows: StepColumns, table: Sequence[dict[str, Any]]) -> NDArray[np.bool_]:
    """Store the numbers in the rows; which rows are valid."""
    shapes: dict[tuple[str, ...], list[int]] = {}
    for at, values in enumerate(table):
        shapes.setdefault(tuple(values), []).append(at)
    parts: dict[str, list[tuple[Ints, Floats]]] = {}
    good = np.ones(len(table), bool)
    for names, members in shapes.items():
        where = np.asarray(members, np.int64)
        some = table if len(shapes) == 1 else [table[at] for at in members]
        for name, (numbers, bad) in zip(names, _numbers(names, some), strict=True):
            parts.setdefault(name, []).append((where, numbers))
            good[where[bad]] = False
    rows.values = {name: _join_arrays(arrays) for name, arrays in parts.items()}
    return good


def _numbers(
    names: Sequence[str], table: Sequence[dict[str, Any]]
) -> Iterator[tuple[Floats, list[int]]]:
    """Per name: the numbers of steps with the same names, and the invalid positions."""
    for name in names:
        raw = [values[name] for values in table]
        if {float, int}.issuperset(map(type, raw)):
            try:
                yield np.asarray(raw, np.float64), []
                continue
            except OverflowError:
                pass
        numbers, bad = np.zeros(len(raw)), []
        for at, value in enumerate(raw):
            try:
                numbers[at] = decode_number(value)
            except ValueError:
                bad.append(at)
        yield numbers, bad


def _join_arrays(parts: list[tuple[Ints, Floats]]) -> tuple[Ints, Floats]:
    if len(parts) == 1:
        return parts[0]
    at = np.concatenate([part[0] for part in parts])
    numbers = np.concatenate([part[1] for part in parts])
    order = np.argsort(at, kind="stable")
    return at[order], numbers[order]
