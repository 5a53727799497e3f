"""CSV logs: any file of columns. `framework_csv.py` has the files of Lightning and Ultralytics."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.errors import UnreadableInput
from headway.logs.console_events import TAIL, events_after_rows
from headway.logs.log_file import Sample, line_blocks, sample
from headway.logs.log_table import MAX_COLUMNS, Log, Series, Table
from headway.logs.readers import LogReader
from headway.logs.row_fields import (
    SPLIT_NAMES,
    as_held_out,
    counting,
    is_metric,
    long_form,
    plain,
    says_held_out,
    unroll,
    whole,
)

SEPARATORS = ",\t;"
_SAMPLE_LINES = 50
"""Lines that decide whether a file is a CSV log."""


@dataclass(frozen=True)
class _Words:
    """The columns of words that say what a row is about: the split, or the name of the metric."""

    splits: tuple[int, ...] = ()
    metric: int | None = None
    value: str = ""

    @classmethod
    def of(cls, names: Sequence[str]) -> _Words:
        small = [name.lower() for name in names]
        splits = tuple(place for place, name in enumerate(small) if name in SPLIT_NAMES)
        form = long_form(small)
        if form is None:
            return cls(splits)
        return cls(splits, small.index(form[0]), names[small.index(form[1])])

    def matter(self, columns: Sequence[Sequence[str]]) -> bool:
        if self.metric is not None:
            return True
        return any(any(map(says_held_out, set(columns[place]))) for place in self.splits)

    def applied(
        self, values: dict[str, float], columns: Sequence[Sequence[str]], row: int
    ) -> dict[str, float]:
        if self.metric is not None and self.value in values:
            name = columns[self.metric][row][:200]
            if name and not _is_number(name):
                values[name] = values.pop(self.value)
        if any(says_held_out(columns[place][row]) for place in self.splits):
            return as_held_out(values)
        return values


def header_of(sample: Sample) -> tuple[list[str], list[list[str]], str]:
    """(names, first rows, separator); no names if the file is not a CSV file of numbers."""
    nothing: tuple[list[str], list[list[str]], str] = ([], [], "")
    if not sample.is_text or len(sample.lines) < 1:
        return nothing
    lines = sample.lines[:_SAMPLE_LINES]
    names, rest, separator = _head(lines, sample.path)
    if not names or len(names) > MAX_COLUMNS or any(_is_number(name) for name in names):
        return nothing
    headed = len(rest) < len(lines)
    if headed and (separator == " " or sum(bool(name) for name in names) < 2):
        return nothing
    if any(len(name) > 200 for name in names):
        return nothing
    rows = [_cells(line, separator) for line in rest]
    fitting = [row for row in rows if len(row) == len(names)]
    if rows and 2 * len(fitting) < len(rows):
        return nothing
    filled = [cell for row in fitting for cell in row if cell]
    if fitting and 3 * sum(map(_is_number, filled)) < len(filled):
        return nothing
    return names, fitting, separator


def _head(lines: list[str], path: Path) -> tuple[list[str], list[str], str]:
    """(names, the lines after the header, separator)."""
    separator = max(SEPARATORS, key=lines[0].count)
    names = _names(lines[0], separator)
    if lines[0].startswith("#") and len(lines) > 1:
        second = max(SEPARATORS, key=lines[1].count)
        header = _names(lines[1], second)
        if len(header) > 1 and not any(map(_is_number, header)):  # the first line is a comment
            return header, lines[2:], second
    if len(names) == 1:
        names, separator = lines[0].split(), " "
    if 1 <= len(names) <= 3 and all(map(_is_number, names)) and is_metric(path.stem):
        # One metric per file, without a header: (step,) (time,) value.
        value = _OF_EXPORT.sub("", path.stem)
        return [*("step", "time")[: len(names) - 1], value], lines, separator
    return names, lines[1:], separator


def read_rows(log: Log, path: Path, separator: str, rename: Mapping[str, str]) -> list[str]:
    """Fills the table and returns the header. `rename` gives new names; "" drops a column."""
    names: list[str] = []
    key: int | None = None
    places: list[tuple[int, str]] = []
    words = _Words()
    tail: deque[str] = deque(maxlen=TAIL)
    for lines in _text_blocks(path):
        tail.extend(lines)
        if not names:
            names, lines, _ = _head(lines, path)
            counted, log.unit = counting(_whole_columns(names, lines, separator))
            key = names.index(counted) if counted is not None else None
            chosen: dict[str, int] = {}
            for place, name in enumerate(names):
                if place != key and name and (ours := rename.get(name, name)):
                    chosen.setdefault(ours, place)
            places = [(place, name) for name, place in chosen.items()][:MAX_COLUMNS]
            words = _Words.of(names)
        if lines:
            _add(log, lines, separator, len(names), key, places, words)
    if not names:
        raise UnreadableInput(f"{path} has no header")
    width = len(names)
    log.events += events_after_rows(
        tail, lambda line: len(_cells(line, separator)) == width, len(log.table)
    )
    if skipped := log.lines - log.used:
        log.notes.append(f"{skipped} of {log.lines} lines skipped: no number, or damaged")
    return names


def _whole_columns(names: Sequence[str], lines: Sequence[str], separator: str) -> list[str]:
    """The columns of whole numbers in the first rows: only these can be a step counter."""
    rows = [cells for line in lines[:1000] if len(cells := _cells(line, separator)) == len(names)]
    if not rows:
        return list(names)
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return [
        name
        for name, cells in columns
        if 2 * sum(whole(number) is not None for number in _numbers(cells))
        > sum(bool(cell) for cell in cells)
    ]


def _text_blocks(path: Path) -> Iterator[list[str]]:
    for lines in line_blocks(path):
        text = [line.decode("utf-8", errors="replace").rstrip("\r") for line in lines]
        if text := [line for line in text if line and not line.isspace()]:
            yield text


def _add(
    log: Log,
    lines: Sequence[str],
    separator: str,
    width: int,
    key: int | None,
    places: Sequence[tuple[int, str]],
    words: _Words,
) -> None:
    log.lines += len(lines)
    rows = [_cells(line, separator) for line in lines]
    rows = [row for row in rows if len(row) == width]
    if not rows:
        return
    table, columns = log.table, list(zip(*rows, strict=True))
    numbers = {name: _numbers(columns[place]) for place, name in places}
    steps = array("q", range(len(table), len(table) + len(rows)))
    good = np.ones(len(rows), bool)
    if key is not None:
        # A row without a step has the step of the row before it.
        last = table.steps[-1] if len(table) else None
        for row, (cell, number) in enumerate(
            zip(columns[key], _numbers(columns[key]), strict=True)
        ):
            counted = whole(number)
            last = counted if counted is not None else last
            good[row] = counted is not None or (not cell and last is not None)
            steps[row] = last or 0
    _append(log, steps, good, numbers, columns, places, words)


def _append(
    log: Log,
    steps: array[int],
    good: NDArray[np.bool_],
    numbers: Mapping[str, array[float]],
    columns: Sequence[Sequence[str]],
    places: Sequence[tuple[int, str]],
    words: _Words,
) -> None:
    """Adds the rows that have a step and a number."""
    there: dict[str, NDArray[np.bool_]] = {}
    for place, name in places:
        there[name] = _there(columns[place], numbers[name]) & good
    if words.matter(columns):
        for row, step in enumerate(steps):
            values = {name: numbers[name][row] for _, name in places if there[name][row]}
            if values:
                log.table.add(step, words.applied(values, columns, row))
                log.used += 1
        return
    kept = np.any(list(there.values()), axis=0) if there else np.zeros(len(steps), bool)
    row_of = len(log.table) + np.cumsum(kept) - 1
    log.table.steps.extend(np.frombuffer(steps, dtype=np.int64)[kept].tolist())
    for name, flags in there.items():
        if flags.any():
            series = log.table.series.setdefault(name, Series())
            series.rows.extend(row_of[flags].tolist())
            series.values.extend(np.frombuffer(numbers[name])[flags].tolist())
    log.used += int(kept.sum())


def _there(cells: Sequence[str], numbers: array[float]) -> NDArray[np.bool_]:
    """Where there is a number; NaN only if the cell spells it."""
    flags = ~np.isnan(np.frombuffer(numbers))
    for row in np.flatnonzero(~flags).tolist():
        flags[row] = "nan" in cells[row].lower()
    return flags


def _numbers(cells: Sequence[str]) -> array[float]:
    """The cells as numbers; NaN for a cell that is not a number."""
    try:
        return array("d", map(float, cells))
    except ValueError:
        return array("d", map(_number, cells))


def _number(cell: str) -> float:
    if not cell:
        return math.nan
    try:
        return float(cell)
    except ValueError:
        pass
    try:
        return float(cell.replace(",", ".")) if cell.count(",") == 1 else _tensor(cell)
    except ValueError:
        return math.nan


def _tensor(cell: str) -> float:
    """`tensor(0.5)`, written by a logger that was passed a tensor."""
    inside = cell.partition("tensor(")[2].partition(")")[0].partition(",")[0]
    return float(inside) if cell.startswith("tensor(") else math.nan


def _is_number(cell: str) -> bool:
    number = _number(cell)
    return number == number or cell.strip().lower() in ("nan", "-nan")


def _names(line: str, separator: str) -> list[str]:
    return [name.strip() for name in _cells(line.lstrip("\ufeff# "), separator)]


def _cells(line: str, separator: str) -> list[str]:
    if separator == " ":
        return line.split()
    if '"' not in line:
        return [cell.strip() for cell in line.split(separator)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]
    except (csv.Error, StopIteration):
        return []


# Any CSV file with a header and numbers. Two exports have their own layout: TensorBoard's (`Wall
# time,Step,Value`, with the tag in the file name) and W&B's (`run - loss`, `__MIN`, `__MAX`).

CSV = "csv"

_OF_EXPORT = re.compile(r"^metrics?[_.-]")
_TAG = re.compile(r"tag-(.+)$")


def recognise_csv(sample: Sample) -> float:
    """Fairly certain if there is a header with a step column, and numbers below it."""
    names, rows, separator = header_of(sample)
    counted = 0.7 if counting(names)[0] is not None and separator != " " else 0.3
    return counted if names and rows else 0.0


def read_csv(path: Path) -> Log:
    """Reads the whole file."""
    names, _, separator = header_of(sample(path))
    log = Log(CSV, path, Table())
    read_rows(log, path, separator or ",", _renamed(names, path, log))
    unroll(log)
    return log


def _renamed(names: list[str], path: Path, log: Log) -> dict[str, str]:
    """The logged names of the two exports."""
    if {plain(name) for name in names} == {"wall_time", "step", "value"}:
        tag = _TAG.search(path.stem)
        value = next(name for name in names if plain(name) == "value")
        return {value: tag.group(1) if tag else path.stem}
    if set(names) == {"r", "l", "t"}:  # `monitor.csv` of Gymnasium and Stable-Baselines3
        return {"r": "reward", "l": "episode_length", "t": "time"}
    split = [name for name in names if " - " in name]
    if len(split) < 2:
        return {}
    runs = list(dict.fromkeys(name.rpartition(" - ")[0] for name in split))
    if len(runs) > 1:
        log.notes.append(f"{len(runs)} runs in one file; only {runs[0]} was read")
    renamed = {}
    for name in split:
        run, _, own = name.rpartition(" - ")
        renamed[name] = own if run == runs[0] and not own.endswith(("__MIN", "__MAX")) else ""
    return renamed


READERS = (LogReader(CSV, "CSV of numbers", recognise_csv, read_csv),)
