"""Console logs whose rows are not one line each: progress bars that redraw themselves (Keras,
Lightning, Ultralytics), and tables with the names in a head line.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.logs.console_rows import ConsoleRows, Dialect
from headway.logs.free_text import weight_of
from headway.logs.key_values import Pair, number, pairs, whole_count
from headway.logs.log_file import Sample, console_lines, is_text, preview_lines, strip_prefix
from headway.logs.log_table import Log
from headway.logs.step_counters import ABSENT, LARGEST, LARGEST_EPOCH, counter_kind

# A table printed as text: a head with the names, and a line of numbers for each epoch or step. For
# example fastai's `epoch  train_loss  valid_loss  time`, or a notebook's `Step  Training Loss`.

_COLUMN_BAR = re.compile(r"\s*[|│┃]\s*|\t|\s{2,}")
_COLUMN_RULE = re.compile(r"^[\s|│┃+:=─━┄╇┿╪═_-]*$")
_COLUMN_NAME = re.compile(r"[A-Za-z_][\w /.()@%-]{0,60}$")
_COLUMN_NUMBER = re.compile(
    r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:e[-+]?\d{1,4})?|nan|inf)%?$", re.IGNORECASE
)
_COLUMN_CLOCK = re.compile(r"(?:\d{1,3}:)+\d\d$|(?i:no log|none|n/a|-+|—)$")
_MAX_COLUMNS = 200


def split_cells(line: str) -> list[str]:
    """Splits a line at bars, tabs or two blanks, or at any blank if that gives only one cell."""
    found = [cell for cell in _COLUMN_BAR.split(line.strip()) if cell]
    return found if len(found) > 1 else line.split()


def table_header(line: str) -> list[str] | None:
    """The names in a head line: a counter, and at least one metric. None for other lines."""
    names = split_cells(line)
    if names[:2] == ["E", "#"]:  # spaCy
        names[:2] = ["epoch", "step"]
    elif names[:1] == ["#"] or line.startswith("#"):
        names = split_cells(line.lstrip("# "))
    if not 2 <= len(names) <= _MAX_COLUMNS or not all(_COLUMN_NAME.match(name) for name in names):
        return None
    at = _counter_at(names)
    if at is None or not any(weight_of(name) == 2 for name in names[:at] + names[at + 1 :]):
        return None
    return names


def _counter_at(names: list[str]) -> int | None:
    """The place of the column that counts steps, or else epochs: first, or a whole word."""
    kinds = [(counter_kind(name), at) for at, name in enumerate(names)]
    steps = min((item for item in kinds if 0 <= item[0] < 99), default=None)
    epochs = next((item for item in kinds if item[0] == -1), None)
    best = steps or epochs
    return best[1] if best else None


def row_numbers(line: str, names: list[str]) -> list[Pair] | None:
    """The numbers of a row, the counter first, without clock times and dashes. None for other
    lines."""
    found = split_cells(line)
    if len(found) != len(names):
        found = line.replace("|", " ").split()
    if len(found) == len(names) + 1 and found[0].isdigit():
        found = found[1:]  # the index of a data frame
    at = _counter_at(names)
    if at is None or len(found) != len(names) or not _COLUMN_NUMBER.match(found[at]):
        return None
    if not all(_COLUMN_NUMBER.match(cell) or _COLUMN_CLOCK.match(cell) for cell in found):
        return None
    numbers = [
        Pair(name, number(cell.rstrip("%")), None, True, cell, place)
        for place, (name, cell) in enumerate(zip(names, found, strict=True))
        if _COLUMN_NUMBER.match(cell)
    ]
    return sorted(numbers, key=lambda pair: pair.at != at)


def recognise_text_table(dialect: Dialect, sample: Sample) -> float:
    """Fairly certain if there is a head with rows under it; other dialects are more specific."""
    if not is_text(sample):
        return 0.0
    names: list[str] | None = None
    rows = 0
    lines = preview_lines(sample)
    for _, line in lines:
        names = table_header(line) or names
        if names and row_numbers(line, names):
            rows += 1
    return 0.35 + 0.3 * rows / len(lines) if rows else 0.0


def read_text_table(dialect: Dialect, path: Path) -> Log:
    """Reads a table; a second head may change the columns."""
    rows = ConsoleRows(dialect.format, path)
    names: list[str] | None = None
    for plain in console_lines(path):
        rows.lines += 1
        line, _ = strip_prefix(plain)
        found = row_numbers(line, names) if names else None
        if found is None:
            names = table_header(line) or names
            if not _COLUMN_RULE.match(line):
                rows.scan(line)
            continue
        rows.used += 1
        first, *others = found
        epochs = counter_kind(first.name) == -1
        rows.add(
            rows.values(others),
            whole_count(first.value, LARGEST_EPOCH) if epochs else ABSENT,
            ABSENT if epochs else whole_count(first.value, LARGEST),
            ABSENT,
        )
    return rows.log()


# Keras. Each redraw of a bar shows the mean over the epoch so far; only the last one is kept.

KERAS_BAR = re.compile(
    r"(?P<step>\d{1,9})/(?P<of>\d{1,9}) (?:\[[=>.]{5,60}\]|[━╸╺][━╸╺ ]{2,60})\s{0,2}-?\s?"
    r".{0,60}?(?=\w+: )"
)
_KERAS_EPOCH = re.compile(r"^Epoch (\d{1,9})/(\d{1,9})\s*$")


def read_keras(dialect: Dialect, path: Path) -> Log:
    """Reads one row per epoch."""
    rows = ConsoleRows(dialect.format, path)
    epoch = ABSENT
    last: dict[str, float] = {}
    at = ABSENT
    for plain in console_lines(path):
        rows.lines += 1
        line, _ = strip_prefix(plain)
        head = _KERAS_EPOCH.match(line)
        if head:
            if last:
                rows.add(last, at, ABSENT, ABSENT)
                last = {}
            epoch = whole_count(number(head[1]), LARGEST_EPOCH)
            continue
        bar = KERAS_BAR.search(line)
        if bar is None:
            rows.scan(line, pending=bool(last))
            continue
        rows.used += 1
        values = rows.values(pairs(line[bar.end() :], rows.units))
        if values:
            last, at = values, epoch
    if last:
        rows.add(last, at, ABSENT, ABSENT)
    return rows.log()


# Lightning. The step is epoch · length of the bar + batches done. If a bar is redrawn at the same
# count, only the last redraw has all numbers of that step.

LIGHTNING_BAR = re.compile(
    r"(?:Epoch|Training)\s?(?P<epoch>\d{0,9})(?:/\d{1,9})?:?\s{1,6}"
    r"(?:\d{1,3}%\|[^|]{0,200}\||[━╸╺ ]{3,200})"
    r"\s?(?P<step>\d{1,15})/(?P<of>\d{1,15})\s[^=\]]{0,80}?(?=\w[\w/ .-]{0,80}[=:])"
)


def read_lightning_bar(dialect: Dialect, path: Path) -> Log:
    """Reads one row per count of the bar."""
    rows = ConsoleRows(dialect.format, path)
    drawn: tuple[dict[str, float], int, int, int] | None = None
    for plain in console_lines(path):
        rows.lines += 1
        line, _ = strip_prefix(plain)
        bar = LIGHTNING_BAR.search(line)
        if bar is None:
            rows.scan(line, pending=drawn is not None)
            continue
        rows.used += 1
        values = rows.values(pairs(line[bar.end() :], rows.units))
        count = whole_count(number(bar["step"]), LARGEST)
        if not values or not count:
            continue  # a new bar still shows the numbers of the last epoch
        epoch = whole_count(number(bar["epoch"] or "0"), LARGEST_EPOCH)
        # Lightning counts epochs from 0; a tqdm bar of the user's own loop may count from 1.
        if rows.counters.first_epoch is None:
            rows.counters.first_epoch = int(epoch == 1 and "%|" in line)
        if drawn is not None and drawn[1:3] != (epoch, count):
            rows.add(*drawn)
        drawn = (values, epoch, count, whole_count(number(bar["of"]), LARGEST))
    if drawn is not None:
        rows.add(*drawn)
    return rows.log()


# Ultralytics. The names are in a head line, and each redraw of a bar shows the mean over the epoch
# so far; only the last one is kept. The metrics of the evaluation follow in a line `all`.

_ULTRALYTICS_HEAD = re.compile(r"^\s*Epoch\s+(?:GPU_mem|gpu_mem)\s+(\S.*?)\s*$", re.IGNORECASE)
_ULTRALYTICS_CELL = r"[-+]?(?:\d{1,20}(?:\.\d{0,20})?(?:e[-+]?\d{1,4})?|nan|inf)"
_ULTRALYTICS_ROW = re.compile(
    rf"^\s*(\d{{1,9}})/(\d{{1,9}})\s+([\d.]{{1,20}})([KMG]?B?)\s+((?:{_ULTRALYTICS_CELL}\s+){{1,40}}{_ULTRALYTICS_CELL})(?::|\s*$)",
    re.I,
)
_ULTRALYTICS_ALL = re.compile(rf"^\s*all((?:\s+{_ULTRALYTICS_CELL}){{3,12}})\s*$", re.IGNORECASE)
_ULTRALYTICS_CLASS = re.compile(r"^\s*Class\s+Images\s+(\S.*?)\)?:?(?:\s+\d+%.*)?$")
_ULTRALYTICS_NOT_METRICS = ("Instances", "Size", "labels", "img_size", "GPU_mem")


def recognise_ultralytics(dialect: Dialect, sample: Sample) -> float:
    """Certain if there is a head line and a row."""
    if not is_text(sample):
        return 0.0
    lines = preview_lines(sample)
    head = any(_ULTRALYTICS_HEAD.match(line) for line, _ in lines)
    return 0.9 if head and any(_ULTRALYTICS_ROW.match(line) for line, _ in lines) else 0.0


def read_ultralytics(dialect: Dialect, path: Path) -> Log:
    """Reads one row per epoch."""
    rows = ConsoleRows(dialect.format, path)
    names: list[str] = []
    classes: list[str] = []
    drawn: dict[str, float] = {}
    at = ABSENT
    for line in console_lines(path):
        rows.lines += 1
        head = _ULTRALYTICS_HEAD.match(line)
        if head:
            names = head[1].split()
            continue
        row = _ULTRALYTICS_ROW.match(line)
        if row and names:
            rows.used += 1
            epoch = whole_count(number(row[1]), LARGEST_EPOCH)
            if drawn and epoch != at:
                rows.add(drawn, at, ABSENT, ABSENT)
            at = epoch
            cells = row[5].split()
            found = [
                Pair(name, number(cell), None, True, cell, 0)
                for name, cell in zip(names, cells, strict=False)
                if name not in _ULTRALYTICS_NOT_METRICS
            ]
            drawn = rows.values(found)
            drawn["GPU_mem"] = number(row[3]) if row[3].count(".") <= 1 and row[3] != "." else 0.0
            rows.units["GPU_mem"] = row[4] or "G"
            continue
        kind = _ULTRALYTICS_CLASS.match(line)
        if kind:
            classes = kind[1].replace("(P", "(P)").split()
            continue
        every = _ULTRALYTICS_ALL.match(line)
        if every and classes and drawn:
            rows.used += 1
            cells = every[1].split()[1:]
            found = [
                Pair(name, number(cell), None, True, cell, 0)
                for name, cell in zip(classes, cells, strict=False)
                if name not in _ULTRALYTICS_NOT_METRICS
            ]
            drawn.update(rows.values(found, "eval/"))
            continue
        rows.scan(line, pending=bool(drawn))
    if drawn:
        rows.add(drawn, at, ABSENT, ABSENT)
    return rows.log()
