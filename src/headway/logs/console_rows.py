"""Reads a console log row by row, with the line pattern of the framework that printed it.

A `Dialect` has the pattern of a line of numbers, whose groups are the counters; `key_values.py`
finds the names and values in the rest of the line, whatever the framework.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headway.core.signals import Fold, NonFinite, Scope, Signal
from headway.logs.console_events import ConsoleEventScanner
from headway.logs.key_values import NOWHERE, LineShapes, Pair, number, pairs, split, whole_count
from headway.logs.log_file import Sample, console_lines, is_text, preview_lines, strip_prefix
from headway.logs.log_table import MAX_COLUMNS, Log, Table
from headway.logs.setting_names import learn_settings
from headway.logs.step_counters import ABSENT, LARGEST, LARGEST_EPOCH, StepCounters

_DIGIT_ROWS = 300
"""First rows: the printed precision is taken from them, and no line shapes are learned."""
_SETTINGS_ROWS = 3
"""Rows after which lines are no longer searched for settings."""
_RANK_LABEL = re.compile(r"\s?(\d{1,4}): (?=\S)")
_NOT_METRICS = frozenset(("eta", "v_num", "pid", "port", "cuda", "rank", "local_rank", "line"))
_NOT_METRICS |= frozenset(("gpu", "seed", "info", "debug"))
_TRAINING_METRIC = re.compile(r"loss|norm", re.IGNORECASE)
_MAGNITUDE = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_COUNTERS = frozenset(("known", "step", "iter", "count", "json", "epoch", "of"))
"""Groups of a line pattern that are counters."""
_MATCHES_NOTHING = re.compile(r"(?!)")


@dataclass(frozen=True)
class Columns:
    """What the columns are whose name matches: a value of one step, or a mean over several."""

    names: str
    """Regular expression, searched for in the name of the column; case is ignored."""
    fold: Fold = "last"
    span: int | None = None
    """Steps that a mean covers; None for the interval between two rows."""
    nonfinite: NonFinite = "kept"
    scope: Scope = "rank"


@dataclass(frozen=True)
class Dialect:
    """How one framework prints its numbers; a log reader.

    The patterns have the groups `step`, `of` (the total) and `epoch` where the line has them. Two
    alternatives of a pattern cannot both have a group `step`: `known`, `iter`, `count` and `json`
    are other names for it. A step called `known` counts over all epochs. Any other group is a
    number that the line gives without a name; the group has the name.
    """

    format: str
    label: str
    row: re.Pattern[str] = _MATCHES_NOTHING
    """Finds a line of training numbers, after the prefixes of launcher and logger are removed."""
    evaluation: re.Pattern[str] | None = None
    """Finds a line of evaluation numbers; their names get the prefix `eval/`."""
    marker: re.Pattern[str] | None = None
    """Text that only this framework prints, for logs whose first lines have no numbers."""
    drop: frozenset[str] = frozenset()
    """Names that are not metrics."""
    first_epoch: int | None = None
    """Number of the first epoch, if the step counter starts over in every epoch."""
    abbreviated: bool = False
    """Numbers are printed as `1.2K`."""
    columns: tuple[Columns, ...] = ()
    weight: float = 1.0
    """Factor on the certainty; below 1 for lines that also appear in logs of other dialects."""
    recognise_with: Callable[[Dialect, Sample], float] | None = None
    """Replaces the share of matching lines as certainty."""
    read_with: Callable[[Dialect, Path], Log] | None = None
    """Replaces `read_console`."""
    finish: Callable[[Log], None] | None = None
    """Called with the finished log."""

    def recognise(self, sample: Sample) -> float:
        """How certain it is that a file is in this dialect."""
        if self.recognise_with is not None:
            return self.recognise_with(self, sample)
        return self.weight * line_share(self, sample)

    def read(self, path: Path) -> Log:
        """Reads the whole file."""
        log = (self.read_with or read_console)(self, path)
        for columns in self.columns:
            describe_columns(log, columns)
        if self.finish is not None:
            self.finish(log)
        return log


@dataclass(slots=True)
class ConsoleRows:
    """The rows of a log that is being read, and what its other lines say."""

    format: str
    path: Path
    abbreviated: bool = False
    table: Table = field(default_factory=Table)
    counters: StepCounters = field(default_factory=StepCounters)
    scanner: ConsoleEventScanner = field(default_factory=ConsoleEventScanner)
    units: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    digits: dict[str, int] = field(default_factory=dict)
    lines: int = 0
    used: int = 0
    others: int = 0
    rank: str | None = None
    reported_rank: bool = False
    notes: list[str] = field(default_factory=list)
    shapes: LineShapes = field(default_factory=LineShapes)
    spellings: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    def scan(self, line: str, *, pending: bool = False) -> None:
        """Looks for events and settings in a line that is not a row. `pending`: a row before it
        will be added later."""
        found = self.scanner.scan(line, len(self.table) + pending)
        if not found and len(self.table) < _SETTINGS_ROWS:
            learn_settings(line, self.facts)

    def other_rank(self, rank: str, values: dict[str, float]) -> bool:
        """Whether a row is another rank's copy of a row that was already added."""
        if not rank:
            return False
        if self.rank is None:
            self.rank = rank
        if rank == self.rank:
            return False
        self.others += 1
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad and not self.reported_rank:
            self.reported_rank = True
            self.notes.append(
                f"rank {rank} logged {bad[0]} {values[bad[0]]} "
                f"when rank {self.rank} had {len(self)} rows"
            )
        # Copies are dropped; a non-finite loss or norm of another rank is added as a row.
        for name in [
            name for name in values if name not in bad or not _TRAINING_METRIC.search(name)
        ]:
            del values[name]
        return not values

    def add(self, values: dict[str, float], epoch: int, count: int, total: int) -> None:
        """Adds a row."""
        if self.scanner.scale is not None:
            if not any("scale" in name.lower() for name in values):
                values["loss_scale"] = self.scanner.scale
            self.scanner.scale = None
        self.table.add(0, values)
        self.counters.add(epoch, count, total)

    def values(self, found: list[Pair], prefix: str = "") -> dict[str, float]:
        """The metrics of a line; the first of two with the same name."""
        values: dict[str, float] = {}
        early = len(self.table) < _DIGIT_ROWS
        for pair in found:
            name = pair.name
            if not name or name.lower() in _NOT_METRICS:
                continue
            value = pair.value
            if self.abbreviated and name in self.units:
                value *= _MAGNITUDE.get(self.units[name], 1.0)
            name = prefix + self.first_spelling(name)
            if name not in values:
                values[name] = value
            if early and ("." in pair.text or "e" in pair.text or "E" in pair.text):
                self.digits[name] = max(self.digits.get(name, 0), _significant(pair.text))
        return values

    def first_spelling(self, name: str) -> str:
        """The first spelling of a name: `Loss is nan` and `loss: 2.3` are the same metric."""
        if name in self.table.series or len(self.spellings) > MAX_COLUMNS:
            return name
        return self.spellings.setdefault(name.lower().replace("_", " "), name)

    def places(self, found: list[Pair], prefix: str = "") -> list[tuple[str, int, float]]:
        """(name, place in the line, factor) of the numbers that `values` takes."""
        taken: dict[str, tuple[str, int, float]] = {}
        for pair in found:
            if pair.name and pair.name.lower() not in _NOT_METRICS:
                unit = self.units.get(pair.name, "") if self.abbreviated else ""
                name = prefix + self.first_spelling(pair.name)
                taken.setdefault(name, (name, pair.at, _MAGNITUDE.get(unit, 1.0)))
        return list(taken.values())

    def log(self) -> Log:
        """The finished log, with the steps worked out from the counters."""
        steps, unit = self.counters.steps()
        self.table.steps = steps
        units = {name: unit for name, unit in self.units.items() if name in self.table.series}
        facts = dict(self.facts)
        if units and not self.abbreviated:
            facts["units"] = units
        log = Log(self.format, self.path, self.table, unit=unit, lines=self.lines, used=self.used)
        log.events, log.facts, log.notes = self.scanner.collect(), facts, self.notes
        if self.others:
            log.notes.append(f"{self.others} lines of ranks other than {self.rank} skipped")
        if self.table.dropped:
            log.notes.append(f"{self.table.dropped} values skipped: over {MAX_COLUMNS} columns")
        describe_digits(log, self.digits)
        return log


def describe_digits(log: Log, digits: dict[str, int]) -> None:
    """Describes each column by how often it is printed, and with how many significant digits."""
    for name, count in digits.items():
        if name in log.table.series and 0 < count < 7:
            log.signals[name] = Signal(every=spacing(log, name), digits=count)


def spacing(log: Log, name: str) -> int:
    """The usual number of steps between two values of a column."""
    where = log.table.series[name].where()
    if len(where) < 2 or log.unit != "step":
        return 1
    apart = np.diff(np.frombuffer(log.table.steps, dtype=np.int64)[where])
    apart = apart[apart > 0]
    return max(int(np.median(apart)), 1) if len(apart) else 1


def describe_columns(log: Log, columns: Columns) -> None:
    """Describes the columns whose name matches. A column that has a NaN is not filtered."""
    wanted = re.compile(columns.names, re.IGNORECASE)
    for name, series in log.table.series.items():
        if not wanted.search(name):
            continue
        every = spacing(log, name)
        finite = bool(np.isfinite(series.numbers()).all())
        known = log.signals.get(name)
        log.signals[name] = Signal(
            span=(columns.span or every) if columns.fold != "last" else 1,
            fold=columns.fold,
            nonfinite=columns.nonfinite if finite else "kept",
            scope=columns.scope,
            digits=known.digits if known else None,
            every=every,
        )


def line_share(dialect: Dialect, sample: Sample) -> float:
    """The certainty that a file is in a dialect, from the share of its lines that match."""
    if not is_text(sample):
        return 0.0
    lines = preview_lines(sample)
    hits = sum(1 for _, line in lines if dialect.row.search(line))
    if not hits:
        marked = dialect.marker and any(dialect.marker.search(line) for line, _ in lines)
        return 0.35 if marked else 0.0
    return 0.6 + 0.35 * hits / len(lines)


def read_console(dialect: Dialect, path: Path) -> Log:
    """Reads a log whose rows are one line each."""
    rows = ConsoleRows(dialect.format, path, abbreviated=dialect.abbreviated)
    rows.counters.first_epoch = dialect.first_epoch
    for plain in console_lines(path):
        rows.lines += 1
        parts = split(plain)
        shape = rows.shapes.of(parts)
        if shape is None:
            _new_shape(dialect, rows, plain, parts)
        else:
            values, epoch, count, total = shape.read(parts)
            if not rows.other_rank(shape.rank, values):
                rows.scanner.in_traceback = 0
                rows.used += 1
                rows.add(values, epoch, count, total)
    return rows.log()


def _new_shape(dialect: Dialect, rows: ConsoleRows, plain: str, parts: list[str]) -> None:
    """Reads a line of a shape that is not known yet."""
    line, rank = strip_prefix(plain)
    match = dialect.row.search(line)
    prefix = ""
    if match is None and dialect.evaluation is not None:
        match = dialect.evaluation.search(line)
        prefix = "eval/"
    if match is None:
        rows.scan(line if line.strip() else plain)
        return
    label = None if rank else _RANK_LABEL.match(line)
    if label and label.end() <= match.start() + 1:
        rank = label[1]
    if dialect.abbreviated:
        rows.units = {}  # a metric is `990` in one line and `1.2K` in the next
    rest = line[match.end() :]
    before = len(split(line)) // 2 - len(split(rest)) // 2
    unnamed = [
        Pair(name, number(text), None, True, text, number_index(line, match.start(name)) - before)
        for name, text in match.groupdict().items()
        if text and name not in _COUNTERS
    ]
    found = [pair for pair in pairs(rest, rows.units) if pair.name not in dialect.drop] + unnamed
    values = rows.values(found, prefix)
    if not values or rows.other_rank(rank, values):
        return
    rows.scanner.in_traceback = 0
    rows.used += 1
    step = _first(match, "known", "step", "iter", "count", "json")
    epoch = "" if step == "known" else _first(match, "epoch")
    total = _first(match, "of")
    rows.add(
        values,
        as_counter(match[epoch] if epoch else None, LARGEST_EPOCH),
        as_counter(match[step] if step else None, LARGEST),
        as_counter(match[total] if total else None, LARGEST),
    )
    learnable = all(pair.at + before >= 0 for pair in unnamed)
    if len(rows) >= _DIGIT_ROWS and not label and learnable:
        where = [
            number_index(line, match.start(name)) if name else NOWHERE
            for name in (epoch, step, total)
        ]
        rows.shapes.learn(
            parts,
            line,
            [(name, at + before, factor) for name, at, factor in rows.places(found, prefix)],
            (where[0], where[1], where[2]),
            rank,
        )


def number_index(line: str, position: int) -> int:
    """The index of the number that starts at a position of the line; NOWHERE if none does."""
    here = 0
    for at, part in enumerate(split(line)):
        if at % 2 and here == position:
            return at // 2
        here += len(part)
    return NOWHERE


def _first(match: re.Match[str], *names: str) -> str:
    """The first of these groups that matched, or ""."""
    groups = match.groupdict()
    return next((name for name in names if groups.get(name)), "")


def as_counter(text: str | None, largest: int) -> int:
    """Text as a counter; ABSENT if it is not one."""
    if not text:
        return ABSENT
    return whole_count(number(text), largest)


def _significant(text: str) -> int:
    """The number of significant digits in a printed number; 0 for NaN."""
    mantissa = re.split("[eE]", text.lstrip("+-"))[0].replace(",", "").replace(".", "")
    return len(mantissa.lstrip("0")) if mantissa.isdigit() else 0
