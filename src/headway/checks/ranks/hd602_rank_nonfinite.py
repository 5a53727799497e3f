from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.ranks._shared import say_ranks, values_by_rank
from headway.checks.symptoms import NONFINITE_CODES
from headway.core.check import Check, Needs
from headway.core.facts import LISTED
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import say
from headway.core.records import StepRecord

SIGNAL = "rank/nonfinite"


class RankNonfinite(Check):
    """One rank made the NaN or Inf that all ranks then saw.

    ## What it checks
    On a step that went bad: which ranks made something non-finite themselves, before their
    gradients were added to those of the others.

    ## Why it matters
    The reduction of the gradients spreads one rank's NaN over all of them, so that every rank
    reports the same and none can be told from the rest. The rank is the way to the batch, the
    sample or the device that did it.

    ## How it is measured
    Each rank looks at its own loss and its own gradients before the reduction, and the answers are
    gathered. If every rank is bad, it is nobody's doing in particular (the weights, the learning
    rate) and nothing is said here.

    ## False alarms
    A step that a GradScaler skipped is its normal search for a scale, and one rank overflows
    before the others. It is reported once the skips do not end (20 in a row) or go on at a scale
    below 1.

    ## What to do
    Look at the batch this rank read at this step. If it was clean, and the same rank is bad again
    and again with other batches, look at its hardware: memory errors (ECC, Xid) in the system log,
    a run of the vendor's diagnostics, another node.

    ## References
    PyTorch, "DistributedDataParallel" (gradients are averaged during backward); Dixit et al.,
    "Silent Data Corruptions at Scale" (2021).
    """

    code = "HD602"
    name = "rank-nonfinite"
    severity = Severity.ERROR
    summary = "one rank made the NaN or Inf that all ranks saw"
    needs = Needs(signals=(SIGNAL,))
    explains = (*NONFINITE_CODES, "HD313", "HD414")
    yields_to = ("HD301", "HD302", "HD408", "HD303")

    @dataclass(frozen=True)
    class Limits:
        scaler_skips: int = 20
        """So many steps in a row may a GradScaler skip before it is no search for a scale."""

    def start(self) -> None:
        self.skips_in_a_row = 0
        self.last_skip: int | None = None

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        flags = values_by_rank(record, SIGNAL)
        guilty = [rank for rank, flag in flags.items() if flag > 0]
        # The column may hold the guilty ones only: the axis knows how many ranks there are.
        count = max(len(flags), len(self.context.names("rank")))
        if self._scaler_searches(record) or not 0 < len(guilty) < count:
            return
        yield self._finding(record, sorted(guilty), count)

    def _scaler_searches(self, record: StepRecord) -> bool:
        if not any(value for _, value in record.family("scaler_skipped")):
            return False
        # Steps without columns are not seen here, so the row is told by the numbers of the steps.
        in_a_row = self.last_skip is not None and record.step - self.last_skip == 1
        self.skips_in_a_row = self.skips_in_a_row + 1 if in_a_row else 1
        self.last_skip = record.step
        scale = min((value for _, value in record.family("loss_scale")), default=math.inf)
        return scale >= 1 and self.skips_in_a_row <= self.limits.scaler_skips

    def _finding(self, record: StepRecord, guilty: list[int], count: int) -> Finding:
        first, others = guilty[0], count - len(guilty)
        its = "its" if len(guilty) == 1 else "their"
        said = (
            f"{say_ranks(guilty)} made the non-finite number{self._what(record, guilty, its)}; "
            f"the other {f'{others} ranks were' if others > 1 else 'rank was'} fine"
        )
        if record.held:
            said += "; the update was held back on every rank"
        return self.find(
            record,
            said,
            subject=say_ranks(guilty),
            where=Where(rank=first),
            remedies=[
                f"Look at the batch that {say_ranks(guilty)} read at this step.",
                f"If the batch is clean and it is {say_ranks(guilty)} again with other batches, "
                "look at the device: memory errors in the system log, another node.",
            ],
            guilty=guilty[:LISTED],
            guilty_count=len(guilty),
            ranks=count,
            loss=_value(record, "rank/loss", first),
            grad_norm=_value(record, "rank/grad_norm", first),
            held=record.held,
        )

    @staticmethod
    def _what(record: StepRecord, guilty: list[int], its: str) -> str:
        losses = [_value(record, "rank/loss", rank) for rank in guilty]
        bad = next((loss for loss in losses if loss is not None and not math.isfinite(loss)), None)
        if bad is not None:
            return f" ({its} loss is {say(bad)})"
        return f" ({its} loss is finite, {its} gradient is not)" if None not in losses else ""


def _value(record: StepRecord, name: str, rank: int) -> float | None:
    column = record.columns.get(name)
    return None if column is None else dict(column.items()).get(rank)
