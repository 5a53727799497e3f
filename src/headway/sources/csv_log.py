"""Any CSV file that has a header, a column that counts, and numbers.

Two exports have ways of their own: TensorBoard's (`Wall time,Step,Value`, the tag in the file's
name) and Weights & Biases' (`run - loss`, with `__MIN` and `__MAX` beside it).
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.csv_rows import header_of, read_rows
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample, sample
from headway.sources.log.steps import counting, plain, unroll
from headway.sources.log.table import Table

FORMAT = "csv"
SAYS = "CSV of numbers"

_TAG = re.compile(r"tag-(.+)$")


def recognise(sample: Sample) -> float:
    """Rather sure of a header with something that counts, and numbers below it."""
    names, rows, _ = header_of(sample)
    if not names or not rows:
        return 0.0
    return 0.7 if counting(names)[0] is not None else 0.3


def read(path: Path) -> Log:
    """The whole of it."""
    looked = sample(path)
    names, _, separator = header_of(looked)
    log = Log(FORMAT, path, Table())
    read_rows(log, path, separator or ",", _renamed(names, path, log))
    unroll(log)
    return log


def _renamed(names: list[str], path: Path, log: Log) -> dict[str, str]:
    """The names of the two exports, as they were logged."""
    if {plain(name) for name in names} == {"wall_time", "step", "value"}:
        tag = _TAG.search(path.stem)
        value = next(name for name in names if plain(name) == "value")
        return {value: tag.group(1) if tag else path.stem}
    split = [name for name in names if " - " in name]
    if len(split) < 2:
        return {}
    runs = list(dict.fromkeys(name.rpartition(" - ")[0] for name in split))
    if len(runs) > 1:
        log.notes.append(f"{len(runs)} runs in one file: {runs[0]} is read")
    renamed = {}
    for name in split:
        run, _, own = name.rpartition(" - ")
        renamed[name] = own if run == runs[0] and not own.endswith(("__MIN", "__MAX")) else ""
    return renamed
