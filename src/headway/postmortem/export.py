"""Exports the numbers of a run as a table: one row per step, one column per signal.

Values per tensor are not exported: they would be thousands of columns.
"""

from __future__ import annotations

import csv
import importlib.util
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headway.core.numbers import encode_number
from headway.core.records import Record, StepRecord
from headway.errors import UnreadableInput, UsageError

SUFFIXES = (".parquet", ".csv")
FIRST = ("segment", "step", "held")


class NumberTable:
    """The steps of a run, by column."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.whole: dict[str, array[int]] = {name: array("q") for name in FIRST}
        self.values: dict[str, array[float]] = {}
        self.rows: dict[str, array[int]] = {}
        """Rows in which a signal has a value: a value that was not logged is not NaN."""
        self.count = 0
        for record in records:
            if isinstance(record, StepRecord):
                self._add(record)

    def _add(self, record: StepRecord) -> None:
        for name, value in zip(FIRST, (record.segment, record.step, record.held), strict=True):
            self.whole[name].append(int(value))
        for name, number in record.values.items():
            if name not in self.values:
                self.values[name], self.rows[name] = array("d"), array("q")
            self.values[name].append(number)
            self.rows[name].append(self.count)
        self.count += 1

    def column(self, name: str) -> list[float | None]:
        """The values of a signal, None where it was not logged."""
        found: list[float | None] = [None] * self.count
        for row, value in zip(self.rows[name], self.values[name], strict=True):
            found[row] = value
        return found


def export(path: Path, out: Path) -> int:
    """Writes the numbers of the run at `path` to `out`. Returns the number of rows."""
    from headway.postmortem.diagnose import records_of

    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"the name of {out} must end with one of {', '.join(SUFFIXES)}")
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            "a .parquet file needs pyarrow: pip install 'headway[parquet]', or write a .csv"
        )
    if not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} does not exist")
    numbers = NumberTable(records_of(path))
    if not numbers.count:
        raise UnreadableInput(f"{path} contains no steps")
    _parquet(numbers, out) if suffix == ".parquet" else _csv(numbers, out)
    return numbers.count


def _csv(numbers: NumberTable, out: Path) -> None:
    columns: list[Iterable[Any]] = [*numbers.whole.values()]
    columns += [[_cell(value) for value in numbers.column(name)] for name in numbers.values]
    with open(out, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*FIRST, *numbers.values])
        writer.writerows(zip(*columns, strict=True))


def _cell(value: float | None) -> float | str:
    return "" if value is None else encode_number(value)


def _parquet(numbers: NumberTable, out: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {name: pyarrow.array(values) for name, values in numbers.whole.items()}
    for name in numbers.values:
        columns[name] = pyarrow.array(numbers.column(name), pyarrow.float64(), from_pandas=False)
    parquet.write_table(pyarrow.table(columns), str(out))
