"""Any log of `key: value`, `key=value` or `key value`, whoever printed it.

A line with a counter (`step`, `iter`, `epoch`, `3/10`) begins a row; lines without one add to it, until
a name comes a second time. What stands before the first of these is settings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.sources.log.console import Rows, signal, whole
from holdfast.sources.log.counters import ABSENT, LARGEST, LARGEST_EPOCH, counter_kind
from holdfast.sources.log.key_values import Pair, pairs
from holdfast.sources.log.lines import lines_of, unlabelled
from holdfast.sources.log.log import Log
from holdfast.sources.log.settings import learn

_METRIC = re.compile(
    r"loss|cost|\berr|error|acc|perplexity|ppl|reward|return|\bmse|\bmae|rmse|bleu|iou|psnr|score"
    r"|\bgrad|gnorm|norm\b|\bkl\b|entropy|elbo|nll|\bbpc|\bbpb|\bbce|\bce\b|dice|\bf1|auc|map\b",
    re.IGNORECASE,
)
_ALSO = re.compile(r"\blr|learning[_ ]?rate|mem|scale|mfu|tok|\bdt\b|time|throughput|wd\b|mom", re.I)
_EVALUATION = re.compile(
    r"^\W{0,8}(?:val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?|dev)\b(?!\w)(?!/)", re.IGNORECASE
)
_OWN_EVALUATION = re.compile(r"val|eval|test|dev", re.IGNORECASE)
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
class Reading:
    """A log being read: the row that is not finished, and the counters in force."""

    rows: Rows
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
        line, rank = unlabelled(plain)
        label = None if rank else _LABEL.match(line)
        if label:
            line = line[label.end() :]
        if rows.teller.hear(line or plain, len(rows) + bool(self.row)):
            return
        epoch, count, total, found, best = _sorted(pairs(line, rows.units))
        if label and found:  # `0: step 5 loss 2.3` is rank 0's, `5: loss 2.3` is step 5
            if count == ABSENT:
                count = int(label[1])
            else:
                rank = label[1]
        counted = epoch != ABSENT or count != ABSENT
        if not self.started and not self._starts(line, counted, found, best):
            self._open(counted, found, epoch, count, total)
            learn(line, rows.facts)
            return
        if not counted and best < 2 and not (self.block and found):
            self.block = False
            if len(rows) < 3:
                learn(line, rows.facts)
            return
        if not found:
            self._open(counted, found, epoch, count, total)
            return
        if not counted:  # a sentence names little, and what it names counts
            found = [pair for pair in found if pair.strong or weight_of(pair.name)]
        prefix = "eval/" if _EVALUATION.match(line) else ""
        values = rows.values(found, "")
        if not values or rows.other_rank(rank, values):
            return
        if prefix:
            values = {
                name if _OWN_EVALUATION.search(name) else prefix + name: value
                for name, value in values.items()
            }
        self.started = True
        rows.used += 1
        if counted:
            self._move(epoch, count, total)
        if counted or any(name in self.row for name in values):
            same = counted and self.at == self._now() and not any(n in self.row for n in values)
            if not same:
                self.flush()
        self.block = self.block and not counted
        self.at = self._now()
        self.row.update(values)

    def _starts(self, line: str, counted: bool, found: list[Pair], best: int) -> bool:
        """Whether the numbers of the training begin here."""
        if not found:
            return False
        if counted:
            return best == 2 or not learn(line, {})
        if self.block:
            return best == 2
        return any("loss" in pair.name.lower() for pair in found) and not learn(line, {})

    def _open(
        self, counted: bool, found: list[Pair], epoch: int, count: int, total: int
    ) -> None:
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
            if len(self.shapes) < 1000:
                shape = frozenset(self.row)
                self.shapes[shape] = self.shapes.get(shape, 0) + 1
            self.row = {}


def _sorted(found: list[Pair]) -> tuple[int, int, int, list[Pair], int]:
    """(epoch, count, total, the other pairs, the best weight among them)."""
    epoch = count = total = ABSENT
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
                epoch = whole(pair.value, LARGEST_EPOCH)
                if epoch == ABSENT:
                    others.append(pair)  # a fraction of one
        elif own < kind:
            value = whole(pair.value, LARGEST)
            if value != ABSENT:
                count, kind = value, own
                total = ABSENT if pair.of is None else whole(pair.of, LARGEST)
    return epoch, count, total, others, best


def read_free(path: Path, name: str) -> Log:
    """The whole of a log that keeps to no form."""
    reading = Reading(Rows(name, path))
    for line in lines_of(path):
        reading.line(line)
    reading.flush()
    log = reading.rows.log()
    signal(log, r"(?<![a-z])(?:avg|average|mean|running|smooth(?:ed)?)(?![a-z])", fold="mean")
    return log
