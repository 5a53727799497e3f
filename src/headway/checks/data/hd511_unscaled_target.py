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
    The numbers that predictions are compared with: in `mse_loss`, `l1_loss`, `smooth_l1_loss`,
    `huber_loss`, or in a difference that the script takes itself.

    ## Why it matters
    A model starts with outputs near 0. Targets in the hundreds make the first losses and gradients
    enormous: steps are too large, or the clip decides them, and the output layer spends the
    training on reaching the right size.

    ## How it is measured
    Over all targets of a line: their root mean square is above 200, or they lie about a mean beyond
    30 that is 30 times their spread; and the first predictions are at least five times smaller.

    ## False alarms
    A model that scales its output itself predicts on the targets' scale from the start. Returns of
    reinforcement learning of about 100 pass. The first predictions of a resumed run fit already.

    ## What to do
    Standardise the targets by the mean and spread of the training set, and undo it when you
    predict; or give the model an output layer that does.

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
        """Their mean, and their mean over their spread."""
        predictions: float = 0.2
        """First predictions this large, as a share of the targets, are on their scale."""

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
            f"targets have a root mean square of {say(rms)} (mean {say(mean)}, spread {say(std)}; "
            f"limit {say(limits.rms)}), the model's first predictions one of {say(predicted)}",
            subject=facts.loss or "",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Standardise the targets by the mean and spread of the training set, and undo it "
                "when you predict.",
            ],
            value=rms,
            limit=limits.rms,
            mean=mean,
            std=std,
            prediction_rms=predicted,
        )
