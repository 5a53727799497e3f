from __future__ import annotations

from collections.abc import Iterable

from headway.checks.loss_context import format_shape, loss_call_site
from headway.checks.symptoms import NOTHING_LEARNED
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import LossCallFacts
from headway.core.records import SetupRecord


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
    the model and the other from the data.

    ## False alarms
    A target of one number (a GAN's 1), a row of weights and one target for many quantiles do not
    make the result larger than the prediction. Intended pairs, with the same number of axes on both
    sides ((B, N, 1) against (B, 1, N)), and differences between predictions are not judged.

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

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = LossCallFacts.of(record)
        site = loss_call_site(facts)
        if not facts.crossed:
            return
        prediction = format_shape(facts.prediction.shape)
        target = format_shape(facts.target.shape)
        what = {"difference": "a difference", "product": "a product"}
        function = facts.function or "a loss"
        raised = " (torch raises an error)" if facts.raised else ""
        yield self.find(
            record,
            f"{what.get(function, function)} compares predictions of shape {prediction} with "
            f"targets of shape {target}{raised}: each prediction is compared with every target, "
            f"not with its own",
            subject=site,
            where=facts.locate(rank=record.rank, op=function),
            remedies=[
                "Give both the same shape: prediction.squeeze(-1) or target.unsqueeze(-1), "
                "whichever "
                "leaves one target per prediction."
            ],
            prediction_shape=prediction,
            target_shape=target,
            function=function,
        )
