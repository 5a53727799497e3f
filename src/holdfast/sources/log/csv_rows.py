"""Rows of a CSV file: a header, then numbers, blanks where a column has none in that row."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from holdfast.errors import UnreadableInput
from holdfast.sources.log.blocks import blocks
from holdfast.sources.log.log import Log
from holdfast.sources.log.sample import Sample
from holdfast.sources.log.steps import counting
from holdfast.sources.log.table import MOST_COLUMNS
from holdfast.sources.log.values import whole

SEPARATORS = ",\t;"
LOOKED_AT = 50
"""Lines that decide."""


def header_of(sample: Sample) -> tuple[list[str], list[list[str]], str]:
    """The names, the first rows and the separator; no names where this is no CSV of numbers."""
    nothing: tuple[list[str], list[list[str]], str] = ([], [], "")
    if not sample.is_text or len(sample.lines) < 1:
        return nothing
    first, *rest = sample.lines[:LOOKED_AT]
    separator = max(SEPARATORS, key=first.count)
    names = _names(first, separator)
    if len(names) < 2 or len(names) > MOST_COLUMNS or any(_is_number(name) for name in names):
        return nothing
    if sum(bool(name) for name in names) < 2 or any(len(name) > 200 for name in names):
        return nothing
    rows = [_cells(line, separator) for line in rest]
    fitting = [row for row in rows if len(row) == len(names)]
    if rows and 2 * len(fitting) < len(rows):
        return nothing
    filled = [cell for row in fitting for cell in row if cell]
    if fitting and 3 * sum(map(_is_number, filled)) < len(filled):
        return nothing
    return names, fitting, separator


def read_rows(log: Log, path: Path, separator: str, rename: Mapping[str, str]) -> list[str]:
    """Fills the log's table; returns the header. `rename`: other names, "" leaves a column out."""
    names: list[str] = []
    key: int | None = None
    places: list[tuple[int, str]] = []
    for lines in _text_blocks(path):
        if not names:
            names = _names(lines[0], separator)
            lines = lines[1:]
            counted, log.unit = counting(_whole_columns(names, lines, separator))
            key = names.index(counted) if counted is not None else None
            chosen: dict[str, int] = {}
            for place, name in enumerate(names):
                if place != key and name and (ours := rename.get(name, name)):
                    chosen.setdefault(ours, place)
            places = [(place, name) for name, place in chosen.items()][:MOST_COLUMNS]
        if lines:
            _add(log, lines, separator, len(names), key, places)
    if not names:
        raise UnreadableInput(f"{path} has no header")
    if torn := log.lines - log.used:
        log.notes.append(f"{torn} of {log.lines} lines have no number or could not be read")
    return names


def _whole_columns(names: Sequence[str], lines: Sequence[str], separator: str) -> list[str]:
    """The columns without fractions, from the first rows: only these can count."""
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
    for lines in blocks(path):
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
) -> None:
    log.lines += len(lines)
    rows = [_cells(line, separator) for line in lines]
    rows = [row for row in rows if len(row) == width]
    if not rows:
        return
    table, columns = log.table, list(zip(*rows, strict=True))
    numbers = {name: _numbers(columns[place]) for place, name in places}
    if key is None:
        steps = array("q", range(len(table), len(table) + len(rows)))
        good = [True] * len(rows)
    else:
        counted = [whole(value) for value in _numbers(columns[key])]
        # A row without a count, of a union of columns, belongs to the last that had one.
        last = table.steps[-1] if len(table) else None
        steps, good = array("q"), []
        for cell, value in zip(columns[key], counted, strict=True):
            last = value if value is not None else last
            good.append(value is not None or (not cell.strip() and last is not None))
            steps.append(last or 0)
    _append(log, steps, good, numbers, columns, places)


def _append(
    log: Log,
    steps: array[int],
    good: list[bool],
    numbers: Mapping[str, array[float]],
    columns: Sequence[Sequence[str]],
    places: Sequence[tuple[int, str]],
) -> None:
    """The rows that have a step and a number."""
    full: dict[int, list[bool] | None] = {}
    for place, name in places:
        nans = np.isnan(np.frombuffer(numbers[name]))
        full[place] = (
            [not nan or _spells_nan(cell) for cell, nan in zip(columns[place], nans, strict=True)]
            if nans.any()
            else None
        )
    if all(good) and all(flags is None for flags in full.values()) and places:
        log.table.extend(steps, numbers)
        log.used += len(steps)
        return
    for row, step in enumerate(steps):
        if not good[row]:
            continue
        values = {}
        for place, name in places:
            flags = full[place]
            if flags is None or flags[row]:
                values[name] = numbers[name][row]
        if values:
            log.table.add(step, values)
            log.used += 1


def _numbers(cells: Sequence[str]) -> array[float]:
    """The cells as numbers, NaN where they are none."""
    try:
        return array("d", map(float, cells))
    except ValueError:
        return array("d", map(_number, cells))


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        pass
    try:
        return float(cell.replace(",", ".")) if cell.count(",") == 1 else _tensor(cell)
    except ValueError:
        return math.nan


def _tensor(cell: str) -> float:
    """`tensor(0.5)` and its like, as a logger writes that was handed no number."""
    inside = cell.partition("tensor(")[2].partition(")")[0].partition(",")[0]
    return float(inside) if cell.startswith("tensor(") else math.nan


def _spells_nan(cell: str) -> bool:
    return "nan" in cell.lower()


def _is_number(cell: str) -> bool:
    number = _number(cell)
    return number == number or cell.strip().lower() in ("nan", "-nan")


def _names(line: str, separator: str) -> list[str]:
    return [name.strip() for name in _cells(line.lstrip("\ufeff# "), separator)]


def _cells(line: str, separator: str) -> list[str]:
    if '"' not in line:
        return [cell.strip() for cell in line.split(separator)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]
    except (csv.Error, StopIteration):
        return []
