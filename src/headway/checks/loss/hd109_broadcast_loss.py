from __future__ import annotations

from collections.abc import Iterable

from headway.checks.loss_context import format_shape, loss_call_site
from headway.checks.symptoms import NOTHING_LEARNED
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import LossCallFacts
from headway.core.records import SetupRecord

DISTINCT_TARGETS = 3


class BroadcastLoss(Check):
    """Prediction and target have different shapes and are broadcast against each other.

    ## What it checks
    The shapes of prediction and target in an element-wise loss: in torch's loss functions and in
    differences and products written by hand.

    ## Why it matters
    (N, 1) against (N) gives (N, N): every prediction is compared with every target. The best answer
    is then the mean of all targets, whatever the input. The loss falls and then stays at that
    level.

    ## How it is measured
    From the shapes: the result is larger than either input, both have the same axes apart from
    those of size 1, and a backward pass trains on it. In hand-written code, one side must come from
    the model and the other from the data; advantages of shape (N, N) that come from (N) and (N, 1)
    count, too. In torch's regression losses a prediction must not be repeated: (N, 1) against
    (N, 4), or (1, C) against (N, C) although the model was given N rows. A single target of shape
    (1, 1) for several predictions is a warning if it changes from call to call.

    ## False alarms
    A constant target of one number (a GAN's 1), a row of weights and one target for many quantiles
    or members of an ensemble do not make the result larger than the prediction. Intended pairs,
    with the same number of axes on both sides ((B, N, 1) against (B, 1, N)), and differences
    between predictions are not judged.

    ## What to do
    Give both the same shape: `prediction.squeeze(-1)` or `target.unsqueeze(-1)`.

    ## References
    pytorch/pytorch#16045.
    """

    code = "HD109"
    name = "broadcast-loss"
    severity = Severity.ERROR
    summary = "prediction and target shapes broadcast ((N,1) against (N))"
    needs = Needs(kinds=(SetupRecord,), topics=("loss-call", "loss-formula"))
    explains = (*NOTHING_LEARNED, "HD115")
    once = "segment"

    def start(self) -> None:
        self.single_targets: dict[str, list[float]] = {}

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = LossCallFacts.of(record)
        if facts.crossed or facts.repeated == "prediction":
            yield self._finding(record, facts)
        elif facts.repeated == "target" and self._varies(facts):
            yield self._single_target(record, facts)

    def _varies(self, facts: LossCallFacts) -> bool:
        """Whether the target of a line is another number each time: the labels of a GAN are two."""
        seen = self.single_targets.setdefault(loss_call_site(facts), [])
        if facts.target.low is not None and facts.target.low not in seen:
            seen.append(facts.target.low)
        return len(seen) == DISTINCT_TARGETS

    def _finding(self, record: SetupRecord, facts: LossCallFacts) -> Finding:
        prediction = format_shape(facts.prediction.shape)
        target = format_shape(facts.target.shape)
        what = {"difference": "a difference", "product": "a product"}
        function = facts.function or "a loss"
        raised = " (torch raises an error)" if facts.raised else ""
        return self.find(
            record,
            f"{what.get(function, function)} compares predictions of shape {prediction} with "
            f"targets of shape {target}{raised}: each prediction is compared with "
            f"{'every target' if facts.crossed else 'several targets'}, not with its own",
            subject=loss_call_site(facts),
            where=facts.locate(rank=record.rank, op=function),
            remedies=[
                "Give both the same shape: prediction.squeeze(-1) or target.unsqueeze(-1), "
                "whichever leaves one target per prediction."
            ],
            prediction_shape=prediction,
            target_shape=target,
            function=function,
        )

    def _single_target(self, record: SetupRecord, facts: LossCallFacts) -> Finding:
        prediction = format_shape(facts.prediction.shape)
        function = facts.function or "a loss"
        return self.find(
            record,
            f"{function} compares predictions of shape {prediction} with a target of shape "
            f"{format_shape(facts.target.shape)}: all predictions are trained towards one number",
            subject=loss_call_site(facts),
            severity=Severity.WARNING,
            where=facts.locate(rank=record.rank, op=function),
            remedies=[
                "Give every prediction its own target, or reduce the predictions to the shape of "
                "the target. If one target for all is meant, use target.expand_as(prediction)."
            ],
            prediction_shape=prediction,
            target_shape=format_shape(facts.target.shape),
            function=function,
        )
