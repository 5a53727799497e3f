"""Reads the rows of a console log by the line pattern of its framework.

A dialect is a pattern that a line of numbers matches, with the groups `step`, `of` and `epoch`
where the line has them; names and values are the shared tokenizer's business.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headway.core.signals import Fold, NonFinite, Scope, Signal
from headway.logs.console_events import ConsoleEventScanner, learn_settings
from headway.logs.key_values import NOWHERE, LineShapes, Pair, number, pairs, split, whole_count
from headway.logs.log_file import Sample, console_lines, is_text, preview_lines, strip_prefix
from headway.logs.log_table import MOST_COLUMNS, Log, Table
from headway.logs.step_counters import ABSENT, LARGEST, LARGEST_EPOCH, StepCounters

_LOOKED_AT_DIGITS = 300
_SETTINGS_UNTIL = 3
"""Rows after which lines are no longer looked at for settings."""
_LABEL = re.compile(r"\s?(\d{1,4}): (?=\S)")
_DROPPED = frozenset(
    {
        "eta",
        "v_num",
        "pid",
        "port",
        "cuda",
        "rank",
        "local_rank",
        "line",
        "gpu",
        "seed",
        "info",
        "debug",
    }
)
_OF_TRAINING = re.compile(r"loss|norm", re.IGNORECASE)
_MAGNITUDE = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Dialect:
    """How one framework's console looks."""

    format: str
    row: re.Pattern[str]
    """A line of training numbers; searched for, after labels were taken off."""
    evaluation: re.Pattern[str] | None = None
    """A line of evaluation numbers: its names get `eval/` before them."""
    marker: re.Pattern[str] | None = None
    """Something only this framework prints, where no line of numbers is in sight."""
    drop: frozenset[str] = frozenset()
    """Names that are no numbers of the training."""
    first_epoch: int | None = None
    """The number of the first epoch, where the counter starts again in every epoch."""
    human: bool = False
    """Numbers are printed as `1.2K`, whatever they count."""


@dataclass(slots=True)
class ConsoleRows:
    """A log being collected."""

    format: str
    path: Path
    human: bool = False
    table: Table = field(default_factory=Table)
    counters: StepCounters = field(default_factory=StepCounters)
    teller: ConsoleEventScanner = field(default_factory=ConsoleEventScanner)
    units: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    digits: dict[str, int] = field(default_factory=dict)
    lines: int = 0
    used: int = 0
    others: int = 0
    rank: str | None = None
    told_rank: bool = False
    notes: list[str] = field(default_factory=list)
    shapes: LineShapes = field(default_factory=LineShapes)
    spellings: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    def tell(self, line: str) -> bool:
        """A line that is no row: what it tells, if anything."""
        told = self.teller.hear(line, len(self.table))
        if not told and len(self.table) < _SETTINGS_UNTIL:
            learn_settings(line, self.facts)
        return told

    def other_rank(self, rank: str, values: dict[str, float]) -> bool:
        """Whether a row is another rank's copy of one that is counted already."""
        if not rank:
            return False
        if self.rank is None:
            self.rank = rank
        if rank == self.rank:
            return False
        self.others += 1
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad and not self.told_rank:
            self.told_rank = True
            self.notes.append(
                f"rank {rank} logged {bad[0]} {values[bad[0]]} "
                f"when rank {self.rank} had {len(self)} rows"
            )
        # Its numbers are a copy; that one of them is not finite is a row of its own.
        for name in [name for name in values if name not in bad or not _OF_TRAINING.search(name)]:
            del values[name]
        return not values

    def add(self, values: dict[str, float], epoch: int, count: int, total: int) -> None:
        """One more row."""
        if self.teller.scale is not None:
            if not any("scale" in name.lower() for name in values):
                values["loss_scale"] = self.teller.scale
            self.teller.scale = None
        self.table.add(0, values)
        self.counters.add(epoch, count, total)

    def values(self, found: list[Pair], prefix: str = "") -> dict[str, float]:
        """The numbers of a line that are not its counters; of two with one name the first."""
        values: dict[str, float] = {}
        looked = len(self.table) < _LOOKED_AT_DIGITS
        for pair in found:
            name = pair.name
            if not name or name.lower() in _DROPPED:
                continue
            value = pair.value
            if self.human and name in self.units:
                value *= _MAGNITUDE.get(self.units[name], 1.0)
            name = prefix + self.spelled(name)
            if name not in values:
                values[name] = value
            if looked and ("." in pair.text or "e" in pair.text or "E" in pair.text):
                self.digits[name] = max(self.digits.get(name, 0), _significant(pair.text))
        return values

    def spelled(self, name: str) -> str:
        """A name as it was written first: `Loss is nan` is of the same number as `loss: 2.3`."""
        if name in self.table.series or len(self.spellings) > MOST_COLUMNS:
            return name
        return self.spellings.setdefault(name.lower().replace("_", " "), name)

    def places(self, found: list[Pair], prefix: str = "") -> list[tuple[str, int, float]]:
        """Name, place and worth of the numbers `values` takes."""
        taken: dict[str, tuple[str, int, float]] = {}
        for pair in found:
            if pair.name and pair.name.lower() not in _DROPPED:
                unit = self.units.get(pair.name, "") if self.human else ""
                name = prefix + self.spelled(pair.name)
                taken.setdefault(name, (name, pair.at, _MAGNITUDE.get(unit, 1.0)))
        return list(taken.values())

    def log(self) -> Log:
        """What was collected, steps worked out."""
        steps, unit = self.counters.steps()
        self.table.steps = steps
        units = {name: unit for name, unit in self.units.items() if name in self.table.series}
        facts = dict(self.facts)
        if units and not self.human:
            facts["units"] = units
        log = Log(self.format, self.path, self.table, unit=unit, lines=self.lines, used=self.used)
        log.happenings, log.facts, log.notes = self.teller.happenings, facts, self.notes
        if self.others:
            log.notes.append(f"{self.others} lines of other ranks than {self.rank} were left out")
        if self.table.dropped:
            log.notes.append(f"{self.table.dropped} values with too many names were left out")
        describe(log, self.digits)
        return log


def describe(log: Log, digits: dict[str, int]) -> None:
    """What is known of every column: how often it is there and how many digits were printed."""
    for name, count in digits.items():
        if name in log.table.series and 0 < count < 7:
            log.signals[name] = Signal(every=spacing(log, name), digits=count)


def spacing(log: Log, name: str) -> int:
    """How many steps lie between two values of a column, as a rule."""
    where = log.table.series[name].where()
    if len(where) < 2 or log.unit != "step":
        return 1
    apart = np.diff(np.frombuffer(log.table.steps, dtype=np.int64)[where])
    apart = apart[apart > 0]
    return max(int(np.median(apart)), 1) if len(apart) else 1


def signal(
    log: Log,
    names: str,
    *,
    fold: Fold = "last",
    span: int | None = None,
    nonfinite: NonFinite = "kept",
    scope: Scope = "rank",
) -> None:
    """Say what the columns are whose name matches: a mean spans the interval between two rows, if
    no other span is told. A column that shows a NaN is not filtered."""
    wanted = re.compile(names, re.IGNORECASE)
    for name, series in log.table.series.items():
        if not wanted.search(name):
            continue
        every = spacing(log, name)
        finite = bool(np.isfinite(series.numbers()).all())
        known = log.signals.get(name)
        log.signals[name] = Signal(
            span=(span or every) if fold != "last" else 1,
            fold=fold,
            nonfinite=nonfinite if finite else "kept",
            scope=scope,
            digits=known.digits if known else None,
            every=every,
        )


def recognised(dialect: Dialect, sample: Sample) -> float:
    """How sure it is that a file speaks a dialect: by the share of its lines that do."""
    if not is_text(sample):
        return 0.0
    looked = preview_lines(sample)
    hits = sum(1 for _, line in looked if dialect.row.search(line))
    if not hits:
        marked = dialect.marker and any(dialect.marker.search(line) for line, _ in looked)
        return 0.35 if marked else 0.0
    return 0.6 + 0.35 * hits / len(looked)


def collect(dialect: Dialect, path: Path) -> Log:
    """The whole of a log in a dialect."""
    rows = ConsoleRows(dialect.format, path, human=dialect.human)
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
                rows.teller.in_traceback = 0
                rows.used += 1
                rows.add(values, epoch, count, total)
    return rows.log()


def _new_shape(dialect: Dialect, rows: ConsoleRows, plain: str, parts: list[str]) -> None:
    """A line that is not like any before it."""
    line, rank = strip_prefix(plain)
    match = dialect.row.search(line)
    prefix = ""
    if match is None and dialect.evaluation is not None:
        match = dialect.evaluation.search(line)
        prefix = "eval/"
    if match is None:
        rows.tell(line if line.strip() else plain)
        return
    label = None if rank else _LABEL.match(line)
    if label and label.end() <= match.start() + 1:
        rank = label[1]
    if dialect.human:
        rows.units = {}  # the same name is `990` here and `1.2K` there
    rest = line[match.end() :]
    found = [pair for pair in pairs(rest, rows.units) if pair.name not in dialect.drop]
    values = rows.values(found, prefix)
    if not values or rows.other_rank(rank, values):
        return
    rows.teller.in_traceback = 0
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
    if len(rows) >= _LOOKED_AT_DIGITS and not label:
        before = len(split(line)) // 2 - len(split(rest)) // 2
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
    """Which number of a line stands at a position."""
    here = 0
    for at, part in enumerate(split(line)):
        if at % 2 and here == position:
            return at // 2
        here += len(part)
    return NOWHERE


def _first(match: re.Match[str], *names: str) -> str:
    """The group that matched: alternatives of a pattern cannot share one, so a step has several."""
    groups = match.groupdict()
    return next((name for name in names if groups.get(name)), "")


def as_counter(text: str | None, largest: int) -> int:
    """A counter out of text; absent where it is none."""
    if not text:
        return ABSENT
    return whole_count(number(text), largest)


def _significant(text: str) -> int:
    """The significant digits a number was printed with; 0 for a NaN."""
    mantissa = re.split("[eE]", text.lstrip("+-"))[0].replace(",", "").replace(".", "")
    return len(mantissa.lstrip("0")) if mantissa.isdigit() else 0
