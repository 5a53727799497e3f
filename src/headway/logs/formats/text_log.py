"""Any console log of `key: value`, `key=value` or `key value` lines, whatever printed it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from headway.logs.console_events import find_nonfinite_warning, find_raw_name, learn_settings
from headway.logs.console_rows import ConsoleRows, as_counter, number_index, signal
from headway.logs.key_values import NOWHERE, Pair, pairs, split, whole_count
from headway.logs.log_file import Sample, console_lines, is_text, preview_lines, strip_prefix
from headway.logs.log_table import MOST_COLUMNS, Log
from headway.logs.step_counters import ABSENT, LARGEST, LARGEST_EPOCH, counter_kind

# Any log of `key: value`, `key=value` or `key value`, whoever printed it.

# A line with a counter (`step`, `iter`, `epoch`, `3/10`) begins a row; lines without one add to
# it, until a name comes a second time. What stands before the first of these is settings.

_METRIC = re.compile(
    r"loss|cost|\berr|error|acc|perplexity|ppl|reward|return|\bmse|\bmae|rmse|bleu|iou|psnr|score"
    r"|\bgrad|gnorm|norm\b|\bkl\b|entropy|elbo|nll|\bbpc|\bbpb|\bbce|\bce\b|dice|\bf1|auc|map\b",
    re.IGNORECASE,
)
_ALSO = re.compile(
    r"\blr|learning[_ ]?rate|mem|scale|mfu|tok|\bdt\b|time|throughput|wd\b|mom", re.I
)
_EVALUATION = re.compile(
    r"^\W{0,8}(?:val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?|dev)\b(?!\w)(?!/)", re.IGNORECASE
)
_GRADIENTS = re.compile(r"\[grad(?:ient)?s?\]", re.IGNORECASE)
"""A mark at the beginning of a line that says what its numbers are of."""
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
    """2 for a number of a training (`loss`), 1 for one beside it (`lr`), 0 for any other."""
    weight = _kinds.get(name)
    if weight is None:
        if len(_kinds) > 10_000:
            _kinds.clear()
        weight = 2 if _METRIC.search(name) else 1 if _ALSO.search(name) else 0
        _kinds[name] = weight
    return weight


@dataclass(slots=True)
class FreeTextReading:
    """A log being read: the row that is not finished, and the counters in force."""

    rows: ConsoleRows
    started: bool = False
    block: bool = False
    """A line of counters alone came last: what follows belongs to it."""
    epoch: int = ABSENT
    count: int = ABSENT
    total: int = ABSENT
    row: dict[str, float] = field(default_factory=dict)
    at: tuple[int, int, int] = (ABSENT, ABSENT, ABSENT)
    shapes: dict[frozenset[str], int] = field(default_factory=dict)

    def line(self, plain: str) -> None:
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
        if rows.teller.hear(line or plain, len(rows) + bool(self.row)):
            scale, rows.teller.scale = rows.teller.scale, None
            self.flush()  # what was told is of the rows to come
            rows.teller.scale = scale
            return
        if (told := find_nonfinite_warning(line)) is not None:
            ours, step = told
            bad = find_raw_name(ours, (*rows.table.series, *self.row))
            self._take({bad: math.nan}, ABSENT, step, ABSENT, rank)
            return
        if len(rows.units) > MOST_COLUMNS:
            rows.units.clear()  # no log has so many names
        tokens = pairs(line, rows.units)
        epoch, count, total, found, best, where = _sorted(tokens)
        if count == ABSENT or epoch == ABSENT:
            epoch, count, total, where, found = _bracketed(
                line, (epoch, count, total), where, found
            )
        if label and found:  # `0: step 5 loss 2.3` is rank 0's, `5: loss 2.3` is step 5
            if count == ABSENT:
                count = int(label[1])
            else:
                rank = label[1]
        counted = epoch != ABSENT or count != ABSENT
        if found and best < 2 and epoch == ABSENT and where[1] in _bare(tokens):
            return  # a bar of something else: `Map: 100%|██| 1000/1000`
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
        if not counted:  # a sentence names little, and what it names counts
            found = [pair for pair in found if pair.strong or weight_of(pair.name)]
        evaluation = _EVALUATION.match(line) is not None
        gradients = _GRADIENTS.search(plain, 0, 80) is not None
        values = {_called(n, evaluation, gradients): v for n, v in rows.values(found).items()}
        if not self._take(values, epoch, count, total, rank):
            return
        if len(rows) >= 300 and not label and (counted or best == 2):
            places = [
                (_called(n, evaluation, gradients), at, by) for n, at, by in rows.places(found)
            ]
            rows.shapes.learn(parts, line, places, where, rank)

    def _take(
        self, values: dict[str, float], epoch: int, count: int, total: int, rank: str
    ) -> bool:
        """The numbers of a line. Whether they were taken."""
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
        if not self.row and rows.teller.scale is not None:
            self.row["loss_scale"], rows.teller.scale = rows.teller.scale, None
        self.row.update(values)
        return True

    def _starts(self, line: str, counted: bool, found: list[Pair], best: int) -> bool:
        """Whether the numbers of the training begin here."""
        if not found:
            return False
        if counted:
            return best == 2 or not learn_settings(line, {})
        if self.block:
            return best == 2
        return any("loss" in pair.name.lower() for pair in found) and not learn_settings(line, {})

    def _open(self, counted: bool, found: list[Pair], epoch: int, count: int, total: int) -> None:
        """A line of counters alone: `Epoch 3/10`."""
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
        """The row is finished."""
        if self.row:
            self.rows.add(self.row, *self.at)
            if len(self.rows) < 1000:
                shape = frozenset(self.row) - {"loss_scale"}
                self.shapes[shape] = self.shapes.get(shape, 0) + 1
            self.row = {}


def _bare(found: list[Pair]) -> list[int]:
    """Where the fractions without a name are."""
    return [pair.at for pair in found if not pair.name]


def _bracketed(
    line: str,
    counters: tuple[int, int, int],
    where: tuple[int, int, int],
    found: list[Pair],
) -> tuple[int, int, int, tuple[int, int, int], list[Pair]]:
    """Counters in brackets at the beginning of a line, which nobody names: `[1,  2000]`,
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


def _called(name: str, evaluation: bool, gradients: bool = False) -> str:
    """A name in a line that tells of an evaluation, or is marked as one of gradients."""
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
    return epoch, count, total, others, best, (at_epoch, at_count, at_total)


def read_free_text(path: Path, name: str, *, started: bool = False) -> Log:
    """The whole of a log that keeps to no form. `started`: no settings come before its numbers."""
    reading = FreeTextReading(ConsoleRows(name, path), started=started)
    for line in console_lines(path):
        reading.line(line)
    reading.flush()
    log = reading.rows.log()
    signal(log, r"(?<![a-z])(?:avg|average|mean|running|smooth(?:ed)?)(?![a-z])", fold="mean")
    return log


# Any log of `key: value`, `key=value` or `key value`, whoever printed it.

# Recognised with little certainty: whoever knows the lines better goes first. Prose, source code,
# settings, tables and JSON are no logs.

FORMAT = "text"
SAYS = "text log of `key: value` or `key=value`"

_JSON = re.compile(r"^\s*(?:(?:\[\s?){0,20}\{\"|\"[^\"]{1,200}\"\s*:|[{}\[\]],?\s*$)")
_CODE = re.compile(
    r"^\s*(?:def |class |import |from \S+ import|return\b"
    r"|(?:if|for|while|with|elif)\b.*:\s*(?:#.*)?$"
    r"|else:|try:|@\w|#include|#!/|print\(|//|\}|[\w.]+ = [\w.]+\(|#|</?\w)"
)
_PROSE = re.compile(
    r"\b(?:the|and|was|we|for|after|with|that|this|which|it|is|to|of|our|are)\b", re.I
)


def recognise(sample: Sample) -> float:
    if not is_text(sample):
        return 0.0
    looked = [plain for plain, _ in preview_lines(sample)]
    if not looked or sum(1 for line in looked if _JSON.match(line)) * 2 > len(looked):
        return 0.0
    reading = FreeTextReading(ConsoleRows(FORMAT, sample.path))
    rows = reading.rows
    sentences = 0
    for line in looked:
        used = rows.used
        reading.line(line)
        sentences += rows.used > used and len(_PROSE.findall(line)) >= 4
    reading.flush()
    if not len(rows) or sentences * 2 > rows.used:
        return 0.0
    code = sum(1 for line in looked if _CODE.match(line))
    often = max(reading.shapes.values(), default=0)
    share = rows.used / len(looked)
    if code > rows.used or (often < 2 and share < 0.3):
        return 0.0
    if not any(weight_of(name) for name in rows.table.series):
        return 0.0
    return 0.05 + 0.25 * min(share, 1.0)


def read(path: Path) -> Log:
    return read_free_text(path, FORMAT)
