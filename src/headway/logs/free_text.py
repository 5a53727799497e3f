"""Console logs without a known line pattern: `key: value`, `key=value` or `key value`.

A line with a counter (`step`, `iter`, `epoch`, `3/10`) starts a row. Lines without a counter add to
it until a name occurs a second time. Lines before the first row are settings.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from headway.logs.console_events import find_nonfinite_warning, find_raw_name
from headway.logs.console_rows import (
    Columns,
    ConsoleRows,
    Dialect,
    as_counter,
    describe_columns,
    number_index,
)
from headway.logs.key_values import NOWHERE, Pair, pairs, split, whole_count
from headway.logs.log_file import Sample, console_lines, is_text, preview_lines, strip_prefix
from headway.logs.log_table import MAX_COLUMNS, Log
from headway.logs.setting_names import learn_settings
from headway.logs.step_counters import ABSENT, LARGEST, LARGEST_EPOCH, counter_kind

_METRIC = re.compile(
    r"loss|cost|\berr|error|acc|perplexity|ppl|reward|return|\bmse|\bmae|rmse|bleu|iou|psnr|score"
    r"|\bgrad|gnorm|norm\b|\bkl\b|entropy|elbo|nll|\bbpc|\bbpb|\bbce|\bce\b|dice|\bf1|auc|map\b",
    re.IGNORECASE,
)
_SIDE_METRIC = re.compile(
    r"\blr|learning[_ ]?rate|mem|\brss|\bv?ram\b|reserved|\balloc|scale|mfu|tok|\bdt\b|time"
    r"|throughput|wd\b|mom|^training's\b",
    re.I,
)
_EVALUATION = re.compile(
    r"^\W{0,8}(?:epoch\s?\()?(?:val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?|dev)\b(?!\w)(?!/)",
    re.IGNORECASE,
)
_GRADIENTS = re.compile(r"\[grad(?:ient)?s?\]", re.IGNORECASE)
"""Marks a line whose numbers are norms of gradients."""
_WHOLE = ("global", "total", "overall")
_OWN_EVALUATION = re.compile(r"val|eval|test|dev", re.IGNORECASE)
_BRACKETS = re.compile(
    r"\W{0,6}(?:\w{1,20}:?\s{1,2}){0,2}\[\s{0,6}(?P<epoch>\d{1,12})(?:/\d{1,12})?(?:\s{0,4}\]\s?\[|,)\s{0,8}"
    r"(?P<count>\d{1,12})(?:/(?P<of>\d{1,12}))?\s{0,4}\]|"
    r"\[\s{0,8}(?P<alone>\d{1,12})\s{0,4}\]"
)
_LABEL = re.compile(r"\s?(\d{1,4}): (?=\S)")
_kinds: dict[str, int] = {}


def weight_of(name: str) -> int:
    """2 for a metric (`loss`), 1 for a value logged beside it (`lr`), 0 for any other name."""
    weight = _kinds.get(name)
    if weight is None:
        if len(_kinds) > 10_000:
            _kinds.clear()
        weight = 2 if _METRIC.search(name) else 1 if _SIDE_METRIC.search(name) else 0
        _kinds[name] = weight
    return weight


@dataclass(slots=True)
class FreeTextReading:
    """State while a log is read: the unfinished row and the current counters."""

    rows: ConsoleRows
    started: bool = False
    block: bool = False
    """The last line had only counters: the lines after it belong to them."""
    epoch: int = ABSENT
    count: int = ABSENT
    total: int = ABSENT
    row: dict[str, float] = field(default_factory=dict)
    at: tuple[int, int, int] = (ABSENT, ABSENT, ABSENT)
    shapes: dict[frozenset[str], int] = field(default_factory=dict)

    def line(self, plain: str) -> None:
        """Reads the next line."""
        rows = self.rows
        rows.lines += 1
        parts = split(plain)
        shape = rows.shapes.of(parts)
        if shape is not None:
            values, epoch, count, total = shape.read(parts)
            self._take(values, epoch, count, total, shape.rank)
        else:
            self._new_shape(plain, parts)

    def _new_shape(self, plain: str, parts: list[str]) -> None:
        rows = self.rows
        line, rank = strip_prefix(plain)
        label = None if rank else _LABEL.match(line)
        if label:
            line = line[label.end() :]
        if rows.scanner.scan(line or plain, len(rows) + bool(self.row)):
            scale, rows.scanner.scale = rows.scanner.scale, None
            self.flush()  # the event belongs to the rows after it
            rows.scanner.scale = scale
            return
        if (warning := find_nonfinite_warning(line)) is not None:
            ours, step = warning
            bad = find_raw_name(ours, (*rows.table.series, *self.row))
            self._take({bad: math.nan}, ABSENT, step, ABSENT, rank)
            return
        if len(rows.units) > MAX_COLUMNS:
            rows.units.clear()  # bounds memory; no training has this many names
        tokens = pairs(line, rows.units)
        epoch, count, total, found, best, where = _sorted(tokens)
        if count == ABSENT or epoch == ABSENT:
            epoch, count, total, where, found = _bracketed(
                line, (epoch, count, total), where, found
            )
        if label and found:  # `0: step 5 loss 2.3` is of rank 0, `5: loss 2.3` is step 5
            if count == ABSENT:
                count = int(label[1])
            else:
                rank = label[1]
        counted = epoch != ABSENT or count != ABSENT
        if found and best < 2 and epoch == ABSENT and where[1] in _bare(tokens):
            return  # a progress bar of something else: `Map: 100%|██| 1000/1000`
        if not self.started and not self._starts(line, counted, found, best):
            self._open(counted, found, epoch, count, total)
            learn_settings(line, rows.facts)
            return
        if not counted and best < 2 and not (self.block and found):
            self.block = False
            if len(rows) < 3:
                learn_settings(line, rows.facts)
            return
        if not found:
            self._open(counted, found, epoch, count, total)
            return
        if not counted:  # in a sentence, only known names and `key: value` pairs are metrics
            found = [pair for pair in found if pair.strong or weight_of(pair.name)]
        evaluation = _EVALUATION.match(line) is not None
        gradients = _GRADIENTS.search(plain, 0, 80) is not None
        values = {_column_name(n, evaluation, gradients): v for n, v in rows.values(found).items()}
        if not self._take(values, epoch, count, total, rank):
            return
        if len(rows) >= 300 and not label and (counted or best == 2):
            places = [
                (_column_name(n, evaluation, gradients), at, by) for n, at, by in rows.places(found)
            ]
            rows.shapes.learn(parts, line, places, where, rank)

    def _take(
        self, values: dict[str, float], epoch: int, count: int, total: int, rank: str
    ) -> bool:
        """Adds the numbers of a line to the row. Returns False if it is a copy by another rank."""
        rows = self.rows
        if not values or rows.other_rank(rank, values):
            return False
        self.started = True
        rows.used += 1
        counted = epoch != ABSENT or count != ABSENT
        if counted:
            self._move(epoch, count, total)
        again = self.row and any(name in self.row for name in values)
        if again or (counted and self.at != self._now()):
            self.flush()
        self.block = self.block and not counted
        self.at = self._now()
        if not self.row and rows.scanner.scale is not None:
            self.row["loss_scale"], rows.scanner.scale = rows.scanner.scale, None
        self.row.update(values)
        return True

    def _starts(self, line: str, counted: bool, found: list[Pair], best: int) -> bool:
        """Whether this line is the first with numbers of the training."""
        if not found:
            return False
        if counted:
            return best == 2 or not learn_settings(line, {})
        if self.block:
            return best == 2
        return any("loss" in pair.name.lower() for pair in found) and not learn_settings(line, {})

    def _open(self, counted: bool, found: list[Pair], epoch: int, count: int, total: int) -> None:
        """Handles a line of counters alone: `Epoch 3/10`."""
        if counted and not found:
            self.flush()
            self._move(epoch, count, total)
            self.block = True

    def _now(self) -> tuple[int, int, int]:
        return (self.epoch, self.count, self.total)

    def _move(self, epoch: int, count: int, total: int) -> None:
        if epoch != ABSENT:
            if epoch != self.epoch:
                self.count = self.total = ABSENT
            self.epoch = epoch
        if count != ABSENT:
            self.count, self.total = count, total

    def flush(self) -> None:
        """Adds the unfinished row to the table."""
        if self.row:
            self.rows.add(self.row, *self.at)
            if len(self.rows) < 1000:
                shape = frozenset(self.row) - {"loss_scale"}
                self.shapes[shape] = self.shapes.get(shape, 0) + 1
            self.row = {}


def _bare(found: list[Pair]) -> list[int]:
    """Places of the fractions without a name."""
    return [pair.at for pair in found if not pair.name]


def _bracketed(
    line: str,
    counters: tuple[int, int, int],
    where: tuple[int, int, int],
    found: list[Pair],
) -> tuple[int, int, int, tuple[int, int, int], list[Pair]]:
    """Finds unnamed counters in brackets at the start of a line: `[1,  2000]`,
    `Train: [0/300][10/1251]`, `[120]`."""
    epoch, count, total = counters
    match = _BRACKETS.match(line) if "[" in line[:40] else None
    if match is None or (match["count"] is None and count != ABSENT):
        return epoch, count, total, where, found
    if match["count"] is None:
        place = number_index(line, match.start("alone"))
        return epoch, as_counter(match["alone"], LARGEST), total, (where[0], place, where[2]), found
    groups = ("epoch", "count", "of")
    values = [as_counter(match[name], LARGEST) for name in groups]
    places = [number_index(line, match.start(name)) if match[name] else NOWHERE for name in groups]
    if values[0] > LARGEST_EPOCH:
        return epoch, count, total, where, found
    found = [pair for pair in found if pair.at not in places]
    return values[0], values[1], values[2], (places[0], places[1], places[2]), found


def _column_name(name: str, evaluation: bool, gradients: bool = False) -> str:
    """The column name for a name in a line about an evaluation or about gradients."""
    if gradients and name.lower() in _WHOLE:
        return "global_grad_norm"
    return f"eval/{name}" if evaluation and not _OWN_EVALUATION.search(name) else name


def _sorted(
    found: list[Pair],
) -> tuple[int, int, int, list[Pair], int, tuple[int, int, int]]:
    """(epoch, count, total, the other pairs, their best weight, where the counters are)."""
    epoch = count = total = ABSENT
    at_epoch = at_count = at_total = NOWHERE
    kind = 99
    others = []
    best = -1
    for pair in found:
        name = pair.name
        own = 50 if not name else counter_kind(name, pair.of)
        if own == 99:
            weight = weight_of(name)
            if weight or pair.strong:
                others.append(pair)
                if weight > best:
                    best = weight
        elif own == -1:
            if epoch == ABSENT:
                epoch = whole_count(pair.value, LARGEST_EPOCH)
                if epoch == ABSENT:
                    others.append(pair)  # a fraction of one
                else:
                    at_epoch = pair.at
        elif own < kind:
            value = whole_count(pair.value, LARGEST)
            if value != ABSENT:
                count, kind = value, own
                total = ABSENT if pair.of is None else whole_count(pair.of, LARGEST)
                at_count, at_total = pair.at, NOWHERE if pair.of is None else pair.at + 1
    if count == ABSENT and best == 2:
        # `Steps : 100, loss : 2.3`: beside a loss it is a counter, and no setting.
        for pair in others:
            value = whole_count(pair.value, LARGEST)
            if value != ABSENT and 0 < counter_kind(pair.name, 1) < 99:
                others.remove(pair)
                return epoch, value, total, others, best, (at_epoch, pair.at, at_total)
    return epoch, count, total, others, best, (at_epoch, at_count, at_total)


def read_free_text(dialect: Dialect, path: Path, *, started: bool = False) -> Log:
    """Reads the whole log. `started`: there are no settings before the first row."""
    reading = FreeTextReading(ConsoleRows(dialect.format, path), started=started)
    for line in console_lines(path):
        reading.line(line)
    reading.flush()
    log = reading.rows.log()
    describe_columns(log, _MEANS)
    return log


_MEANS = Columns(r"(?<![a-z])(?:avg|average|mean|running|smooth(?:ed)?)(?![a-z])", fold="mean")

# Prose, source code, settings, tables and JSON are not logs.

_JSON = re.compile(r"^\s*(?:(?:\[\s?){0,20}\{\"|\"[^\"]{1,200}\"\s*:|[{}\[\]],?\s*$)")
_CODE = re.compile(
    r"^\s*(?:def |class |import |from \S+ import|return\b"
    r"|(?:if|for|while|with|elif)\b.*:\s*(?:#.*)?$"
    r"|else:|try:|@\w|#include|#!/|print\(|//|\}|[\w.]+ = [\w.]+\(|#|</?\w)"
)
_PROSE = re.compile(
    r"\b(?:the|and|was|we|for|after|with|that|this|which|it|is|to|of|our|are)\b", re.I
)


def recognise_free_text(dialect: Dialect, sample: Sample) -> float:
    """At most 0.3, so that any dialect with a line pattern comes first."""
    if not is_text(sample):
        return 0.0
    lines = [plain for plain, _ in preview_lines(sample)]
    if not lines or sum(1 for line in lines if _JSON.match(line)) * 2 > len(lines):
        return 0.0
    reading = FreeTextReading(ConsoleRows(dialect.format, sample.path))
    rows = reading.rows
    sentences = 0
    for line in lines:
        used = rows.used
        reading.line(line)
        sentences += rows.used > used and len(_PROSE.findall(line)) >= 4
    reading.flush()
    if not len(rows) or sentences * 2 > rows.used:
        return 0.0
    code = sum(1 for line in lines if _CODE.match(line))
    often = max(reading.shapes.values(), default=0)
    share = rows.used / len(lines)
    if code > rows.used or (often < 2 and share < 0.3):
        return 0.0
    if not any(weight_of(name) for name in rows.table.series):
        return 0.0
    return 0.05 + 0.25 * min(share, 1.0)
