from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from headway.checks.checkpoint_tensors import CHECKPOINT, CheckpointSequence, SavedCheckpoint
from headway.core.check import Check, Needs
from headway.core.facts import LISTED, Parameters, say_list, trained_positions
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import say
from headway.core.optimizer_facts import LostWriteFacts
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
    """A trained weight never changes although the optimizer steps and its gradient is not zero.

    ## What it checks
    That the steps of an optimizer change every parameter with a gradient: live, and between two
    checkpoints that contain the optimizer's moments.

    ## Why it matters
    The optimizer may have a different tensor than the model, write its result to a copy, or make
    steps that are lost to rounding. The loss still falls because of the other layers.

    ## How it is measured
    The update of a weight is exactly 0 in 5 measured steps, the weight has never changed before in
    this run or since its resume, its norm does not change between them, and its gradient is not 0.
    At the end of a run with 3 or 4 measured steps, these are enough. A weight that stops changing
    later does not count. Between checkpoints: the weight is bitwise equal, its moments are not, and
    other weights changed.

    ## False alarms
    Not counted: skipped steps (by the guard or a GradScaler); a learning rate that is rising, 0, or
    below a hundredth of its peak; all weights while the learning rate of some group is 0 (it may be
    theirs); parameters that are frozen or in no optimizer; and weights whose expected update,
    judged by that of the other weights, is less than a millionth of the weight, so that it may be
    lost to rounding (a bias before BatchNorm, SGD with a tiny learning rate). With several
    optimizers it is information only: one of them may be waiting on purpose. In checkpoints, 16-bit
    weights are not judged, because the file may contain a rounded copy. A weight whose moments do
    not change either was frozen.

    ## What to do
    Compare `id(parameter)` in the model and in the optimizer's groups: create the optimizer after
    the model was moved, wrapped or changed. With 16-bit weights, use fp32 master weights.

    ## References
    pytorch/pytorch#118115 (updates lost on non-contiguous tensors); huggingface/accelerate#3256.
    """

    code = "HD306"
    name = "weight-unchanged"
    severity = Severity.ERROR
    summary = "a trainable weight does not change although the optimizer steps"
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
        """Measured steps without any change."""
        short_samples: int = 3
        """The same, at the end of a run too short for more."""
        least_ratio: float = 1e-6
        """An expected update below this share of the weight may be lost to rounding."""
        least_gradient: float = 1e-5
        """If no weight changes at all, a gradient norm below this counts as a reached minimum."""

    def start(self) -> None:
        self.trained: set[int] = set()
        self.group_at_rest = False
        self.rate, self.peak = 0.0, 0.0
        self.lost: tuple[str | None, int | None, str | None] = (None, None, None)
        """The line of the user's optimizer that writes to a copy."""
        self.saved = CheckpointSequence()
        self._restart()

    def _restart(self) -> None:
        self.samples = 0
        self.last: Moment = (0, 0, 0, 0)
        self.several = False
        self.reach = 0.0
        """Median change of a weight relative to its gradient, as last measured."""
        self.cleared: set[int] = set()
        """Positions that changed once, or were reported."""
        self.still: dict[int, tuple[int, float]] = {}
        """Position → samples without change, and the norm of the weight in them."""

    def begin(self, header: Header) -> None:
        self.saved = CheckpointSequence()
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
                where = LostWriteFacts.of(record).place
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

    def _between(self, now: SavedCheckpoint, before: SavedCheckpoint) -> Iterable[Finding]:
        owners, then = now.trained_by(), before.trained_by()
        judged = [
            name
            for name, moment in owners.items()
            if moment is not None and then.get(name) is not None
            if now.weights[name][3] in ("float32", "float64")
        ]
        still = [name for name in judged if now.same(before, name)]
        if not still or len(still) == len(judged):
            return  # if nothing changes at all, that is another finding
        fed = [
            name
            for name in still
            if _moment_moved(now.moments[owners[name] or ""], before.moments[then[name] or ""])
        ]
        if not fed:
            return
        yield self.find(
            record_at(now.moment),
            f"{len(fed)} of {len(judged)} trained weights are bitwise equal in {before.name} "
            f"(step {before.step}) and {now.name} (step {now.step}), although their moments "
            f"changed: {say_list(fed)}",
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
            self.still.clear()  # a warm-up may start with steps too small to change anything
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
        unknown = 0.0 if weights else 1.0  # if other norms are known, a missing one was 0
        for position, ratio in ratios.items():
            if ratio != 0.0 or position in self.cleared or position not in norms:
                continue
            weight = weights.get(position, unknown)
            if not self._would_show(norms[position], weight) or not self._is_trained(position):
                continue
            count, before = self.still.get(position, (0, weight))
            if before != weight:
                self._clear([position])  # it changed between the samples
            else:
                self.still[position] = (count + 1, weight)

    def _would_show(self, gradient: float, weight: float) -> bool:
        """Whether an update proportional to that of the others could not be lost to rounding."""
        if not self.reach:
            return bool(gradient > self.limits.least_gradient)
        return bool(self.reach * gradient >= self.limits.least_ratio * weight)

    def _is_trained(self, position: int) -> bool:
        return not self.trained or position in self.trained

    def _finding(self, positions: list[int], samples: int) -> Finding:
        names = [self.context.name("param", position) for position in sorted(positions)]
        file, line, function = self.lost
        copied = "" if file is None else f"; the optimizer changes a copy, created on line {line}"
        among = f" of {len(self.trained)} trained" if self.trained else ""
        return self.find(
            record_at(self.last),
            f"{len(names)}{among} weights did not change in {samples} measured steps although "
            f"their gradient is not 0 and the learning rate is {say(self.rate)}: "
            f"{say_list(names)}{copied}",
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
    "Compare id(parameter) in the model and in optimizer.param_groups; create the optimizer "
    "after the model was moved, wrapped, cast or extended.",
    "If these weights are 16-bit, the update may be lost to rounding: use fp32 master weights, "
    "or train in fp32 under autocast.",
)
_KEEP_IN_PLACE = (
    "Change the weight in place (p.add_, p.copy_): .contiguous(), .reshape() and .flatten() copy "
    "a non-contiguous tensor, and an assignment to p only rebinds the name.",
)


def _moment_moved(now: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    """Whether the weight got gradients in between: its moment changed and is not 0."""
    known = bool(now[0]) and bool(before[0]) and math.isfinite(now[1])
    return known and now[0] != before[0] and now[1] > 0


def _positive(column: Column | None) -> dict[int, float]:
    return {at: value for at, value in column.items() if 0.0 < value < math.inf} if column else {}
