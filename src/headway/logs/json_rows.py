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

# A file that is one JSON text, read whole; Python's reading, which knows NaN and Infinity.

BAD_JSON = (ValueError, RecursionError)
LARGEST = 1 << 28
"""Bytes; the history of a million steps is about half of it."""


_SPACE = re.compile(r"[ \t\r\n]*")


def whole_json(path: Path, says: str) -> Any:
    """What is in the file. Raises UnreadableInput."""
    text = whole_text(path, says)
    try:
        return json.loads(text)
    except BAD_JSON as error:
        raise UnreadableInput(f"{path} is no whole {says}: {error}") from error


def whole_text(path: Path, says: str) -> str:
    """The file's text, if it is not too large. Raises UnreadableInput."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise UnreadableInput(
                f"{path} is a {says} of {size} bytes; up to {LARGEST} bytes are read"
            )
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


class Elements:
    """The elements of an array within a text, one after the other, none kept."""

    def __init__(self, text: str, begin: int) -> None:
        self._text = text
        self.end = begin
        """After the last element: where the array is closed."""

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
        except IndexError:  # the text is at its end
            pass
        if not closing and text[at : at + 1] != "]":
            raise ValueError(f"the rows break off at character {at}")
        self.end = at


def _spaced(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


# Rows that are JSON objects: flattened, made numbers, put into a table, a whole block at once.

# A log of a million lines is mostly lines with the same keys. These are parsed together, as one
# array, and become columns without a look at the single row; whatever does not fit goes row by
# row.

DEEPEST = 8
"""Objects within objects beyond this are left out."""
FEW = 4
"""Fewer rows are not worth being made columns of."""
RARE = 0.1
"""Nulls in a larger share of the rows than this, scattered, say that nothing was logged there."""

PER_EPOCH = ("iter", "iteration", "batch", "batch_idx")
"""Counts that may begin anew, and are of their own data."""


class JsonRows:
    """Fills a log's table from JSON objects."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._key: str | None = None
        self._decided = False
        self._last: int | None = None
        self._nulls: dict[str, array[int]] = {}

    def add_lines(self, lines: Sequence[bytes]) -> None:
        """A block of lines, one object in each."""
        lines = [line for line in lines if line and not line.isspace()]
        # Text between the objects is no reason to parse every line by itself.
        own = [line for line in lines if line[:1] == b"{" or line.lstrip()[:1] == b"{"]
        self._log.lines += len(lines) - len(own)
        if not (lines := own):
            return
        try:
            rows = json.loads(b"[" + b",".join(lines) + b"]")
        except BAD_JSON:
            rows = None
        # More rows than lines, or fewer: the lines were torn where they seem whole together.
        if rows is None or len(rows) != len(lines) or set(map(type, rows)) != {dict}:
            rows = [_one(line) for line in lines]
        self.add(rows)

    def add(self, rows: Sequence[Any]) -> None:
        """Rows that are parsed; None or no object: a line that could not be read."""
        self._log.lines += len(rows)
        rows = [row for row in rows if type(row) is dict]
        if not rows:
            return
        if not self._decided:
            self._decide(rows)
        if not self._at_once(rows):
            for _, alike in groupby(rows, key=tuple):  # rows of training, a row of evaluation, …
                self._alike(list(alike))

    def _alike(self, rows: list[dict[str, Any]]) -> None:
        if len(rows) < FEW or not self._at_once(rows):
            for row in rows:
                self._one_by_one(row)

    def finish(self) -> None:
        """To be called after the last row: what null meant is known only then."""
        _settle_nulls(self._log, self._nulls)
        if self._log.table.dropped:
            self._log.notes.append(
                f"more than {MAX_COLUMNS} different names: {self._log.table.dropped} values of "
                "later ones were left out"
            )

    def _decide(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Which key counts the steps, from the first rows that have numbers."""
        seen: dict[str, int] = {}
        for row in rows:
            for name, value in row.items():
                if whole(value) is not None:
                    seen[name] = seen.get(name, 0) + 1
                elif number(value) is not None:
                    seen[name] = seen.get(name, 0) - len(rows)  # no count has fractions
        if not seen:
            return
        fit = [name for name, count in seen.items() if count > 0]
        most = max((seen[name] for name in fit), default=0)
        often = [name for name in fit if 2 * seen[name] >= most]
        self._key, self._log.unit = counting(often)
        self._decided = True

    def _at_once(self, rows: Sequence[dict[str, Any]]) -> bool:
        """Rows that all have the same keys; False where they do not."""
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
        """A column with nulls in it."""
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
                step = None  # it counts the batches of the held-out data
        if not values and not nulls:
            return
        table = self._log.table
        if step is None:
            # A row without a count belongs to the last that had one; without any, rows count.
            step = len(table) if self._key is None else (self._last or 0)
        for name in nulls:
            if name in self._nulls or len(self._nulls) < MAX_COLUMNS:
                self._nulls.setdefault(name, array("q")).append(len(table))
        table.add(step, values)
        self._log.used += 1
        self._last = step


def _is_flagged_by_word(name: str, values: Sequence[str]) -> bool:
    """Whether the words of a column change what the rows mean, or are numbers."""
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
            if depth < DEEPEST:
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
    """Null in the place of a loss: NaN, as some writers put it, or nothing logged.

    It is NaN where this log has no other word for what is not finite, the row has nothing that the
    rows with a number do not have, and the nulls are few or go on to the end of the log.
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
            log.notes.append(f"{len(own)} nulls in {name} are taken for rows without a value")
    for name, own in settled:
        one = series[name]
        places = np.concatenate((one.where(), own))
        values = np.concatenate((one.numbers(), np.full(len(own), np.nan)))
        order = np.argsort(places, kind="stable")
        series[name] = Series(array("q", places[order]), array("d", values[order]))
        log.notes.append(f"{len(own)} nulls in {name} are taken for NaN")


def _beside_others(log: Log, name: str) -> NDArray[np.bool_]:
    """The rows that have a column which no row with a number of this name has."""
    has = np.zeros(len(log.table), bool)
    has[log.table.series[name].where()] = True
    others = np.zeros(len(log.table), bool)
    for one in log.table.series.values():
        if not has[one.where()].any():
            others[one.where()] = True
    return others


def rows_of(log: Log, rows: Iterable[Any], at_once: int = 10_000) -> None:
    """Rows that are parsed already, in pieces."""
    filler = JsonRows(log)
    piece: list[Any] = []
    for row in rows:
        piece.append(row)
        if len(piece) >= at_once:
            filler.add(piece)
            piece = []
    filler.add(piece)
    filler.finish()
