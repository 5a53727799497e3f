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
    """One rank produced the NaN or Inf that then reached all ranks.

    ## What it checks
    For a bad step: which ranks produced a non-finite value themselves, before their gradients were
    reduced with those of the others.

    ## Why it matters
    The reduction of the gradients spreads the NaN of one rank to all of them, so that every rank
    reports the same and none stands out. The rank leads to the batch, the sample or the device that
    caused it.

    ## How it is measured
    Each rank checks its own loss and its own gradients before the reduction, and the results are
    gathered. If every rank is non-finite, the cause is common to all (the weights, the learning
    rate) and nothing is reported here.

    ## False alarms
    A step that a GradScaler skips is its normal search for a scale, and one rank overflows before
    the others. It is reported once the skips do not end (20 in a row) or continue at a scale below
    1.

    ## What to do
    Inspect the batch that this rank read in this step. If it is clean, and the same rank is
    affected again with other batches, check its hardware: memory errors (ECC, Xid) in the system
    log, the vendor's diagnostics, another node.

    ## References
    PyTorch, "DistributedDataParallel" (gradients are averaged during backward); Dixit et al.,
    "Silent Data Corruptions at Scale" (2021).
    """

    code = "HD602"
    name = "rank-nonfinite"
    severity = Severity.ERROR
    summary = "one rank produced the NaN or Inf that reached all ranks"
    needs = Needs(signals=(SIGNAL,))
    explains = (*NONFINITE_CODES, "HD313", "HD414")
    yields_to = ("HD301", "HD302", "HD408", "HD303")

    @dataclass(frozen=True)
    class Limits:
        scaler_skips: int = 20
        """Consecutive steps that a GradScaler may skip while it searches for its scale."""

    def start(self) -> None:
        self.skips_in_a_row = 0
        self.last_skip: int | None = None

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        flags = values_by_rank(record, SIGNAL)
        bad_ranks = [rank for rank, flag in flags.items() if flag > 0]
        # The column may contain the bad ranks only: the axis has the number of ranks.
        count = max(len(flags), len(self.context.names("rank")))
        if self._scaler_searches(record) or not 0 < len(bad_ranks) < count:
            return
        yield self._finding(record, sorted(bad_ranks), count)

    def _scaler_searches(self, record: StepRecord) -> bool:
        if not any(value for _, value in record.family("scaler_skipped")):
            return False
        # Steps without columns do not arrive here, so count consecutive steps by their number.
        in_a_row = self.last_skip is not None and record.step - self.last_skip == 1
        self.skips_in_a_row = self.skips_in_a_row + 1 if in_a_row else 1
        self.last_skip = record.step
        scale = min((value for _, value in record.family("loss_scale")), default=math.inf)
        return scale >= 1 and self.skips_in_a_row <= self.limits.scaler_skips

    def _finding(self, record: StepRecord, bad_ranks: list[int], count: int) -> Finding:
        first, others = bad_ranks[0], count - len(bad_ranks)
        its = "its" if len(bad_ranks) == 1 else "their"
        message = (
            f"{say_ranks(bad_ranks)} produced the non-finite value"
            f"{self._cause(record, bad_ranks, its)}; "
            f"the other {f'{others} ranks were' if others > 1 else 'rank was'} finite"
        )
        if record.held:
            message += "; update skipped on every rank"
        return self.find(
            record,
            message,
            subject=say_ranks(bad_ranks),
            where=Where(rank=first),
            remedies=[
                f"Inspect the batch that {say_ranks(bad_ranks)} read in this step.",
                f"If the batch is clean and {say_ranks(bad_ranks)} fails again with other batches, "
                "check the device: memory errors in the system log, another node.",
            ],
            guilty=bad_ranks[:LISTED],
            guilty_count=len(bad_ranks),
            ranks=count,
            loss=_value(record, "rank/loss", first),
            grad_norm=_value(record, "rank/grad_norm", first),
            held=record.held,
        )

    @staticmethod
    def _cause(record: StepRecord, bad_ranks: list[int], its: str) -> str:
        losses = [_value(record, "rank/loss", rank) for rank in bad_ranks]
        bad = next((loss for loss in losses if loss is not None and not math.isfinite(loss)), None)
        if bad is not None:
            return f" ({its} loss is {say(bad)})"
        return f" ({its} loss is finite, {its} gradient is not)" if None not in losses else ""


def _value(record: StepRecord, name: str, rank: int) -> float | None:
    column = record.columns.get(name)
    return None if column is None else dict(column.items()).get(rank)
