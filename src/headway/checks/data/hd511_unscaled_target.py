from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import BAD_STEPS
from headway.core.check import Check, Needs
from headway.core.data_facts import TargetScaleFacts
from headway.core.facts import onset_record
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.records import SetupRecord


class UnscaledTarget(Check):
    """The targets of a regression are far from unit scale, and the model's outputs are not.

    ## What it checks
    The values that predictions are compared with: in `mse_loss`, `l1_loss`, `smooth_l1_loss`,
    `huber_loss`, or in a difference that the script computes itself.

    ## Why it matters
    A model starts with outputs near 0. Targets in the hundreds make the first losses and gradients
    enormous: steps are too large, or clipping determines them, and the output layer spends the
    training on reaching the right scale.

    ## How it is measured
    Over all targets of a line: their root mean square is above 200, or their mean is beyond 30 and
    30 times their standard deviation; and the first predictions are at least five times smaller.

    ## False alarms
    A model that scales its output itself predicts on the scale of the targets from the start.
    Returns of about 100 in reinforcement learning pass. The first predictions of a resumed run
    already fit.

    ## What to do
    Standardise the targets by the mean and standard deviation of the training set, and invert it
    when you predict; or add an output layer that does.

    ## References
    Braiek and Khomh, "TheDeepChecker" (unscaled outputs).
    """

    code = "HD511"
    name = "unscaled-target"
    summary = "regression targets far from unit scale"
    needs = Needs(kinds=(SetupRecord,), topics=("targets",))
    explains = (
        *BAD_STEPS,
        "HD105",
        "HD107",
        "HD113",
        "HD114",
        "HD203",
        "HD403",
        "HD404",
        "HD512",
        "HD509",
    )
    yields_to = ("HD114",)

    @dataclass(frozen=True)
    class Limits:
        rms: float = 200.0
        """Root mean square of the targets."""
        offset: float = 30.0
        """Smallest mean of the targets, and smallest ratio of mean to standard deviation."""
        predictions: float = 0.2
        """Share of the targets' size from which the first predictions are on their scale."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = TargetScaleFacts.of(record)
        rms, mean, std = facts.rms, facts.mean, facts.std
        predicted, samples = facts.prediction_rms, facts.samples or 0
        if rms is None or mean is None or std is None or predicted is None or samples < 2:
            return
        limits = self.limits
        large = rms > limits.rms
        offset = abs(mean) > limits.offset and std > 0 and abs(mean) > limits.offset * std
        if not (large or offset) or predicted > limits.predictions * rms:
            return
        yield self.find(
            onset_record(record),
            f"the targets have a root mean square of {say(rms)} (mean {say(mean)}, standard "
            f"deviation {say(std)}; limit {say(limits.rms)}), but the model's first predictions "
            f"one of only {say(predicted)}",
            subject=facts.loss or "",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Standardise the targets by the mean and standard deviation of the training set, "
                "and invert it when you predict.",
            ],
            value=rms,
            limit=limits.rms,
            mean=mean,
            std=std,
            prediction_rms=predicted,
        )
