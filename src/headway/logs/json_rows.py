"""Reads JSON objects into the rows of a table, a block of lines at a time or as one whole
document.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.errors import UnreadableInput
from headway.logs.log_file import open_log
from headway.logs.log_table import MAX_COLUMNS, Log, Series
from headway.logs.row_fields import (
    METRIC_NAMES,
    SPLIT_NAMES,
    as_held_out,
    counting,
    held_out,
    is_metric,
    long_form,
    may_be_nulled,
    number,
    says_held_out,
    spelled,
    whole,
)

# A file that is one JSON document. Python's parser also accepts NaN and Infinity.

BAD_JSON = (ValueError, RecursionError)
MAX_FILE_BYTES = 1 << 28
"""The history of a million steps is about half of it."""


_SPACE = re.compile(r"[ \t\r\n]*")


def whole_json(path: Path, label: str) -> Any:
    """The content of the file. Raises UnreadableInput."""
    text = whole_text(path, label)
    try:
        return json.loads(text)
    except BAD_JSON as error:
        raise UnreadableInput(f"{path} is not a complete {label}: {error}") from error


def whole_text(path: Path, label: str) -> str:
    """The text of the file. Raises UnreadableInput, also if it is too large."""
    try:
        with open_log(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UnreadableInput(f"{path} is a {label} of over {MAX_FILE_BYTES} bytes")
        return data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


class Elements:
    """Iterates over the elements of an array inside a text, without keeping them."""

    def __init__(self, text: str, begin: int) -> None:
        self._text = text
        self.end = begin
        """After the iteration: the position of the closing bracket."""

    def __iter__(self) -> Iterator[Any]:
        decode, text, space = json.JSONDecoder().raw_decode, self._text, _SPACE.match
        at, closing = _spaced(text, self.end), False
        try:
            while not (closing := text[at] == "]"):
                element, at = decode(text, at)
                yield element
                after = space(text, at)
                at = after.end() if after else at
                if text[at] != ",":
                    break
                at = _spaced(text, at + 1)
        except IndexError:  # end of the text
            pass
        if not closing and text[at : at + 1] != "]":
            raise ValueError(f"the rows end at character {at}")
        self.end = at


def _spaced(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


# Rows that are JSON objects. Most lines of a long log have the same keys: these are parsed
# together, as one array, and become columns at once. All others are added row by row.

MAX_NESTING = 8
"""Objects nested deeper than this are skipped."""
MIN_BLOCK = 4
"""Fewer rows are added one by one."""
RARE = 0.1
"""Share of scattered nulls above which null means that nothing was logged."""

PER_EPOCH = ("iter", "iteration", "batch", "batch_idx")
"""Counters that may start over in each epoch, and count training and validation separately."""


class JsonRows:
    """Fills the table of a log from JSON objects."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._key: str | None = None
        self._decided = False
        self._last: int | None = None
        self._nulls: dict[str, array[int]] = {}

    def add_lines(self, lines: Sequence[bytes]) -> None:
        """Adds a block of lines with one object each."""
        lines = [line for line in lines if line and not line.isspace()]
        # Other text between the objects is dropped, so that the block can still be parsed at once.
        own = [line for line in lines if line[:1] == b"{" or line.lstrip()[:1] == b"{"]
        self._log.lines += len(lines) - len(own)
        if not (lines := own):
            return
        try:
            rows = json.loads(b"[" + b",".join(lines) + b"]")
        except BAD_JSON:
            rows = None
        # Another number of rows than lines: damaged lines happened to be valid together.
        if rows is None or len(rows) != len(lines) or set(map(type, rows)) != {dict}:
            rows = [_one(line) for line in lines]
        self.add(rows)

    def add(self, rows: Sequence[Any]) -> None:
        """Adds parsed rows; anything but a dict is a line that could not be read."""
        self._log.lines += len(rows)
        rows = [row for row in rows if type(row) is dict]
        if not rows:
            return
        if not self._decided:
            self._decide(rows)
        if not self._at_once(rows):
            for _, alike in groupby(rows, key=tuple):  # training rows, an evaluation row, …
                self._alike(list(alike))

    def _alike(self, rows: list[dict[str, Any]]) -> None:
        if len(rows) < MIN_BLOCK or not self._at_once(rows):
            for row in rows:
                self._one_by_one(row)

    def finish(self) -> None:
        """Call after the last row: only then is it known what null means."""
        _settle_nulls(self._log, self._nulls)
        if self._log.table.dropped:
            self._log.notes.append(
                f"{self._log.table.dropped} values skipped: over {MAX_COLUMNS} columns"
            )

    def _decide(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Chooses the key that is the step, from the first rows that have numbers."""
        seen: dict[str, int] = {}
        for row in rows:
            for name, value in row.items():
                if whole(value) is not None:
                    seen[name] = seen.get(name, 0) + 1
                elif number(value) is not None:
                    seen[name] = seen.get(name, 0) - len(rows)  # a counter has no fractions
        if not seen:
            return
        fit = [name for name, count in seen.items() if count > 0]
        most = max((seen[name] for name in fit), default=0)
        often = [name for name in fit if 2 * seen[name] >= most]
        self._key, self._log.unit = counting(often)
        self._decided = True

    def _at_once(self, rows: Sequence[dict[str, Any]]) -> bool:
        """Adds rows that all have the same keys; False if they have not."""
        key, names = self._key, list(rows[0])
        table = self._log.table
        if set(map(len, rows)) != {len(names)} or len(names) > MAX_COLUMNS:
            return False
        columns: dict[str, list[Any]] = {}
        try:
            for name in names:
                columns[name] = list(map(itemgetter(name), rows))
        except KeyError:
            return False
        counted = columns.pop(key, None) if key is not None else None
        if counted is None or set(map(type, counted)) != {int}:
            return False
        numbers: dict[str, array[float]] = {}
        gaps: dict[str, list[float | None]] = {}
        for name, values in columns.items():
            kinds = set(map(type, values))
            if kinds <= {float, int, bool}:
                try:
                    numbers[name] = array("d", values)
                except OverflowError:
                    return False
            elif kinds <= {float, int, bool, type(None)}:
                gaps[name] = values
            elif kinds != {str} or _is_flagged_by_word(name, values):
                return False
        known = table.series.keys() | numbers.keys() | gaps.keys()
        if not numbers or len(known) > MAX_COLUMNS or abs(max(counted, key=abs)) >= 1 << 62:
            return False
        begin = len(table)
        try:
            parts = {
                name: array("d", [value for value in values if value is not None])
                for name, values in gaps.items()
            }
        except OverflowError:
            return False
        table.extend(counted, numbers)
        for name, part in parts.items():
            self._with_gaps(name, part, gaps[name], begin)
        self._log.used += len(rows)
        self._last = counted[-1]
        return True

    def _with_gaps(
        self, name: str, part: array[float], values: list[float | None], begin: int
    ) -> None:
        """Adds a column with nulls."""
        if part:
            series = self._log.table.series.setdefault(name, Series())
            series.values.extend(part)
            series.rows.extend(row for row, v in enumerate(values, begin) if v is not None)
        if may_be_nulled(name) and (name in self._nulls or len(self._nulls) < MAX_COLUMNS):
            nulls = self._nulls.setdefault(name, array("q"))
            nulls.extend(row for row, v in enumerate(values, begin) if v is None)

    def _one_by_one(self, row: Mapping[str, Any]) -> None:
        values: dict[str, float] = {}
        nulls: list[str] = []
        _flatten(row, "", 0, values, nulls)
        step = whole(row.get(self._key)) if self._key is not None else None
        if self._key is not None:
            values.pop(self._key, None)
        if (form := long_form(row)) and isinstance(row[form[0]], str) and form[1] in values:
            values[row[form[0]][:200]] = values.pop(form[1])
        if held_out(row):
            values = as_held_out(values)
            if self._key in PER_EPOCH:
                step = None  # it counts validation batches
        if not values and not nulls:
            return
        table = self._log.table
        if step is None:
            # A row without a step has that of the row before it; without any, rows are counted.
            step = len(table) if self._key is None else (self._last or 0)
        for name in nulls:
            if name in self._nulls or len(self._nulls) < MAX_COLUMNS:
                self._nulls.setdefault(name, array("q")).append(len(table))
        table.add(step, values)
        self._log.used += 1
        self._last = step


def _is_flagged_by_word(name: str, values: Sequence[str]) -> bool:
    """Whether the words of a column say what the rows are about, or are numbers."""
    if name in METRIC_NAMES or (name in SPLIT_NAMES and any(map(says_held_out, values))):
        return True
    return is_metric(name) or any(number(value) is not None for value in values)


def _one(line: bytes) -> Any:
    try:
        return json.loads(line)
    except BAD_JSON:
        return None


def _flatten(
    row: Mapping[str, Any], before: str, depth: int, values: dict[str, float], nulls: list[str]
) -> None:
    for name, value in row.items():
        if type(value) is dict:
            if depth < MAX_NESTING:
                _flatten(value, f"{before}{name}/", depth + 1, values, nulls)
        elif value is None:
            if may_be_nulled(name):
                nulls.append(before + name)
        else:
            found = number(value)
            if found is None and isinstance(value, str):
                found = spelled(name, value)
            if found is not None:
                values[before + name] = found


def _settle_nulls(log: Log, nulls: Mapping[str, array[int]]) -> None:
    """Decides whether null in a loss column is NaN, as some writers put it, or a missing value.

    It is NaN if the log has no other non-finite value, the row has no column that rows with a
    number do not have, and the nulls are rare or continue to the end of the log.
    """
    series = log.table.series
    if any(not np.isfinite(one.numbers()).all() for one in series.values()):
        return
    settled: list[tuple[str, NDArray[np.int64]]] = []
    for name, rows in nulls.items():
        if name not in series or not len(series[name]):
            continue
        own = np.frombuffer(rows, dtype=np.int64)
        own = own[~_beside_others(log, name)[own]]
        if not len(own):
            continue
        last = series[name].rows[-1]
        if len(own) <= RARE * (len(own) + len(series[name])) or own.min() > last:
            settled.append((name, own))
        else:
            log.notes.append(f"{len(own)} nulls in {name} treated as missing")
    for name, own in settled:
        one = series[name]
        places = np.concatenate((one.where(), own))
        values = np.concatenate((one.numbers(), np.full(len(own), np.nan)))
        order = np.argsort(places, kind="stable")
        series[name] = Series(array("q", places[order]), array("d", values[order]))
        log.notes.append(f"{len(own)} nulls in {name} treated as NaN")


def _beside_others(log: Log, name: str) -> NDArray[np.bool_]:
    """The rows that have a column which no row with a number in this column has."""
    has = np.zeros(len(log.table), bool)
    has[log.table.series[name].where()] = True
    others = np.zeros(len(log.table), bool)
    for one in log.table.series.values():
        if not has[one.where()].any():
            others[one.where()] = True
    return others


def rows_of(log: Log, rows: Iterable[Any], at_once: int = 10_000) -> None:
    """Adds parsed rows, in blocks."""
    filler = JsonRows(log)
    piece: list[Any] = []
    for row in rows:
        piece.append(row)
        if len(piece) >= at_once:
            filler.add(piece)
            piece = []
    filler.add(piece)
    filler.finish()
