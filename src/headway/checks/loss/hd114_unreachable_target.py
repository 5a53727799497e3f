from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.loss_context import loss_call_site
from headway.checks.symptoms import NOTHING_LEARNED
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity, Where
from headway.core.loss_facts import LossCallFacts
from headway.core.numbers import say
from headway.core.records import SetupRecord

ENDLESS = 1e299


class UnreachableTarget(Check):
    """Targets are outside the range that the output can produce.

    ## What it checks
    The targets of a regression loss (torch's or a difference written by hand) whose prediction is
    bounded by a sigmoid, tanh, ReLU, softplus, exponential, square or clamp, with the factors and
    offsets after it; and the targets of binary cross entropies, which must be between 0 and 1.

    ## Why it matters
    The output saturates at the end of its range, its gradient vanishes, and part of the error can
    never be removed. A binary cross entropy with targets outside 0 to 1 falls below 0 without
    bound.

    ## How it is measured
    The share of targets that are outside the range by more than 1 % of its width.

    ## False alarms
    Less than 5 % of the targets outside (outliers, rounding) is not reported. The range is that of
    the whole formula after the last layer. If it cannot be derived (learned scales, further
    layers), nothing is reported.

    ## What to do
    Remove the activation from the output, choose one that covers the targets, or scale the targets
    into its range. For labels -1 and 1 with a binary cross entropy, use `(labels + 1) / 2`. For
    several classes in one number, use `cross_entropy` with one output per class.

    ## References
    TheDeepChecker's case regrNN_inapp_act; the documentation of `torch.nn.BCEWithLogitsLoss`.
    """

    code = "HD114"
    name = "unreachable-target"
    severity = Severity.ERROR
    summary = "targets outside the range the output layer can produce"
    needs = Needs(kinds=(SetupRecord,), topics=("loss-call", "loss-formula"))
    explains = (*NOTHING_LEARNED, "HD104", "HD304", "HD305", "HD511")
    once = "segment"

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.05
        """Share of targets outside the range that is reported."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = LossCallFacts.of(record)
        target, bounded = facts.target, facts.bounded
        share, reach = target.outside_share, target.reach
        site = loss_call_site(facts)
        if share is None or share < self.limits.share or len(reach) != 2:
            return
        low, high = target.low, target.high
        ends = f"{_end(reach[0])} to {_end(reach[1])}"
        function = facts.function or "the loss"
        binary = function.startswith("binary")
        made_by = bounded.made_by or facts.prediction.made_by
        where = facts.locate(rank=record.rank, op=function)
        made_at = bounded.made_at
        if made_at.file is not None:
            # The fix belongs in the line of the activation, not in that of the loss.
            where = Where(
                file=made_at.file,
                line=made_at.line,
                function=made_at.function,
                op=made_by,
                rank=record.rank or None,
            )
        what = (
            "the range of a probability"
            if binary
            else f"the range of the output after its {made_by}"
        )
        yield self.find(
            record,
            f"{share:.0%} of the targets are outside {ends}, {what}: they range from "
            f"{'?' if low is None else say(low)} to {'?' if high is None else say(high)}",
            subject=site,
            where=where,
            remedies=[BINARY if binary else RANGE],
            outside_share=share,
            target_low=low,
            target_high=high,
            reach_low=reach[0],
            reach_high=reach[1],
            made_by=made_by,
        )


def _end(number: float) -> str:
    if abs(number) >= ENDLESS:
        return "infinity" if number > 0 else "minus infinity"
    return say(number)


RANGE = (
    "Remove the activation from the output, choose one that covers the targets, or scale the "
    "targets into its range."
)
BINARY = (
    "Targets of a binary cross entropy must be between 0 and 1: map -1 and 1 to 0 and 1, "
    "divide counts by their maximum, and use cross_entropy if the numbers are classes."
)
