from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from headway.core.check import Check, Needs
from headway.core.checkpoint_tensors import CHECKPOINT, Saved, Succession
from headway.core.facts import LISTED, Facts, Parameters, say_list, trained_positions
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import say
from headway.core.records import (
    Column,
    EventRecord,
    Header,
    Moment,
    SetupRecord,
    StepRecord,
    TensorRecord,
    moment_of,
    record_at,
)


class WeightUnchanged(Check):
    """A trained weight never moves although the optimizer steps and its gradient is not zero.

    ## What it checks
    That an optimizer's steps change every parameter which has a gradient; live, and between two
    checkpoints that hold the optimizer's moments.

    ## Why it matters
    The optimizer may hold another tensor than the model's, write its result to a copy, or make
    steps that rounding swallows. The loss still falls, carried by the other layers.

    ## How it is measured
    The update of a weight was exactly 0 in 5 samples, it never moved before in this run or since
    its resume, its norm did not change between the samples, and its gradient was not 0. At the
    end of a run of 3 or 4 samples, these must do. That a weight stops later is another matter.
    Between checkpoints: a weight is the same bit by bit, its moments are not, and others moved.

    ## False alarms
    Not counted: steps held back or skipped by a GradScaler; a learning rate that is rising, 0, or
    below a hundredth of its peak; all weights while some group's rate is 0 (it may be theirs);
    parameters that are frozen or in no optimizer; weights for which a move as large, for their
    gradient, as the others make would be less than a millionth of them, so that rounding may
    swallow it (a bias in front of BatchNorm, SGD with a tiny rate). With several optimizers it is
    information only: one of them may be waiting on purpose. In checkpoints, 16-bit weights are not
    judged: what was saved may be a rounded copy. A weight whose moments rest too was frozen.

    ## What to do
    Compare `id(parameter)` in the model and in the optimizer's groups: build the optimizer after
    the model was moved, wrapped or changed. With 16-bit weights keep fp32 master weights.

    ## References
    pytorch/pytorch#118115 (updates lost on non-contiguous tensors); huggingface/accelerate#3256.
    """

    code = "HD306"
    name = "weight-unchanged"
    severity = Severity.ERROR
    summary = "a trainable weight does not move although the optimizer steps"
    needs = Needs(
        signals=("param/update_ratio", "param/grad_norm", "lr"),
        kinds=(StepRecord, SetupRecord, TensorRecord, EventRecord),
        roles=("weight", "moment"),
        events=(CHECKPOINT,),
        checkpoints=2,
        decisive=("moment",),
    )
    explains = ()

    @dataclass(frozen=True)
    class Limits:
        samples: int = 5
        """Samples without any change."""
        short_samples: int = 3
        """The same, at the end of a run too short for more."""
        least_ratio: float = 1e-6
        """An expected update below this share of the weight may be lost to rounding."""
        least_gradient: float = 1e-5
        """Where nothing moves at all, a norm below this is taken for a minimum that was reached."""

    def start(self) -> None:
        self.trained: set[int] = set()
        self.group_at_rest = False
        self.rate, self.peak = 0.0, 0.0
        self.lost: tuple[str | None, int | None, str | None] = (None, None, None)
        """The line of the user's optimizer that makes a copy and writes to that."""
        self.saved = Succession()
        self._restart()

    def _restart(self) -> None:
        self.samples = 0
        self.last: Moment = (0, 0, 0, 0)
        self.several = False
        self.reach = 0.0
        """How far weights move for their gradient: the median, when last seen."""
        self.cleared: set[int] = set()
        """Positions that moved once, or were told."""
        self.still: dict[int, tuple[int, float]] = {}
        """Position → samples without change, and the weight's norm meanwhile."""

    def begin(self, header: Header) -> None:
        self.saved = Succession()
        self._restart()

    def observe(
        self, record: StepRecord | SetupRecord | TensorRecord | EventRecord
    ) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            yield from self._compare()
            self.saved.announce(record)
            return
        if isinstance(record, TensorRecord):
            self.saved.add(record)
            return
        if isinstance(record, SetupRecord):
            if record.topic == "lost-write":
                where = Facts.of(record).where()
                self.lost = (where.file, where.line, where.function)
            parameters = Parameters.of(record)
            if parameters is not None:
                self.trained = set(trained_positions(parameters))
                self._restart()
            return
        rates = record.columns.get("group/lr")
        if rates is not None:
            self.group_at_rest = any(rate == 0 for rate in rates.values)
        ratios = record.columns.get("param/update_ratio")
        if ratios is None or record.held or record.values.get("scaler_skipped"):
            return
        self._clear(at for at, ratio in ratios.items() if ratio > 0.0)
        if not self._rate_holds(record):
            return
        self.samples += 1
        self.several = "optimizers" in record.values
        self.last = moment_of(record)
        self._count(record, ratios)
        reached = [at for at, (count, _) in self.still.items() if count >= self.limits.samples]
        if reached:
            self._clear(reached)
            yield self._finding(reached, self.limits.samples)

    def finish(self) -> Iterable[Finding]:
        yield from self._compare()
        if self.limits.short_samples <= self.samples < self.limits.samples:
            never = [at for at, (count, _) in self.still.items() if count == self.samples]
            if never:
                yield self._finding(never, self.samples)

    def _compare(self) -> Iterable[Finding]:
        pair = self.saved.pair()
        if pair is not None:
            yield from self._between(*pair)

    def _between(self, now: Saved, before: Saved) -> Iterable[Finding]:
        owners, then = now.trained_by(), before.trained_by()
        judged = [
            name
            for name, moment in owners.items()
            if moment is not None and then.get(name) is not None
            if now.weights[name][3] in ("float32", "float64")
        ]
        still = [name for name in judged if now.same(before, name)]
        if not still or len(still) == len(judged):
            return  # where nothing moves at all, that is another finding
        fed = [
            name
            for name in still
            if _moment_moved(now.moments[owners[name] or ""], before.moments[then[name] or ""])
        ]
        if not fed:
            return
        yield self.find(
            record_at(now.moment),
            f"{len(fed)} of {len(judged)} trained weights are the same, bit by bit, in "
            f"{before.name} (step {before.step}) and {now.name} (step {now.step}), although their "
            f"moments changed: {say_list(fed)}",
            subject=fed[0],
            where=Where(file=now.path, module=fed[0]),
            remedies=_ANOTHER_TENSOR,
            path=now.path,
            before=before.path,
            tensors=fed[:LISTED],
            tensor_count=len(fed),
            trained=len(judged),
        )

    def _clear(self, positions: Iterable[int]) -> None:
        self.cleared.update(positions)
        for position in self.cleared & self.still.keys():
            del self.still[position]

    def _rate_holds(self, record: StepRecord) -> bool:
        before, rate = self.rate, record.values.get("lr", self.rate)
        self.rate, self.peak = rate, max(self.peak, rate)
        if before and rate > before * 1.001:
            self.still.clear()  # a warm-up may begin with steps too small to change anything
            return False
        return rate > 0 and rate >= self.peak / 100 and not self.group_at_rest

    def _count(self, record: StepRecord, ratios: Column) -> None:
        norms = _positive(record.columns.get("param/grad_norm"))
        weights = _positive(record.columns.get("param/weight_norm"))
        moves = [
            ratio * weights.get(at, 1.0) / norms[at]
            for at, ratio in _positive(ratios).items()
            if at in norms
        ]
        if moves:
            self.reach = median_low(moves)
        unknown = 0.0 if weights else 1.0  # beside norms that are known, a missing one was 0
        for position, ratio in ratios.items():
            if ratio != 0.0 or position in self.cleared or position not in norms:
                continue
            weight = weights.get(position, unknown)
            if not self._would_show(norms[position], weight) or not self._is_trained(position):
                continue
            count, before = self.still.get(position, (0, weight))
            if before != weight:
                self._clear([position])  # it moved between the samples
            else:
                self.still[position] = (count + 1, weight)

    def _would_show(self, gradient: float, weight: float) -> bool:
        """Whether a move as far, for its gradient, as the others make could not be lost."""
        if not self.reach:
            return bool(gradient > self.limits.least_gradient)
        return bool(self.reach * gradient >= self.limits.least_ratio * weight)

    def _is_trained(self, position: int) -> bool:
        return not self.trained or position in self.trained

    def _finding(self, positions: list[int], samples: int) -> Finding:
        names = [self.context.name("param", position) for position in sorted(positions)]
        file, line, function = self.lost
        copied = "" if file is None else f"; the optimizer changes a copy, made on line {line}"
        among = f" of {len(self.trained)} trained weights" if self.trained else " weights"
        return self.find(
            record_at(self.last),
            f"{len(names)}{among} did not change at all in {samples} samples although they have a "
            f"gradient and the learning rate is {say(self.rate)}: {say_list(names)}{copied}",
            severity=Severity.INFO if self.several else Severity.ERROR,
            where=Where(file, line, function, module=names[0], rank=self.last[3] or None),
            remedies=[
                *_KEEP_IN_PLACE[: 0 if file is None else 1],
                *_ANOTHER_TENSOR,
            ],
            tensors=names[:LISTED],
            tensor_count=len(names),
            samples=samples,
            lr=self.rate,
        )


_ANOTHER_TENSOR = (
    "Compare id(parameter) in the model and in optimizer.param_groups; build the "
    "optimizer after the model was moved, wrapped, cast or given new layers.",
    "If these weights are 16-bit, the update may be lost to rounding: keep fp32 master "
    "weights, or train in fp32 under autocast.",
)
_KEEP_IN_PLACE = (
    "Change the weight itself (p.add_, p.copy_): .contiguous(), .reshape() and .flatten() copy "
    "where its memory is not in order, and an assignment to p only renames.",
)


def _moment_moved(now: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    """Whether gradients came in between: the average is another one, and not 0."""
    known = bool(now[0]) and bool(before[0]) and math.isfinite(now[1])
    return known and now[0] != before[0] and now[1] > 0


def _positive(column: Column | None) -> dict[int, float]:
    return {at: value for at, value in column.items() if 0.0 < value < math.inf} if column else {}
