from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.loss_context import loss_call_site
from headway.checks.symptoms import NOTHING_LEARNED
from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.loss_facts import LossCallFacts
from headway.core.records import SetupRecord


class ClippedLogits(Check):
    """A ReLU or a clamp at 0 between the last layer and the loss clips the logits.

    ## What it checks
    The input of `cross_entropy`, `nll_loss` (below its `log_softmax`) and
    `binary_cross_entropy_with_logits`: whether a ReLU, ReLU6 or a clamp at 0 produced it.

    ## Why it matters
    A clipped logit has no gradient: a class whose logits are all below 0 is never learned, and a
    binary output can never fall below a probability of one half. The model trains, but slower and
    to a worse result, and a bad initialisation can leave it stuck.

    ## How it is measured
    From the graph, through reshapes. At least 2 % of the logits must be clipped.

    ## False alarms
    Activations that keep a slope (LeakyReLU, GELU, softplus), negative distances, and wide clamps
    against overflow are not reported. Logits that are deliberately non-negative (evidential
    learning) use another loss.

    ## What to do
    Remove the activation after the last layer.

    ## References
    pytorch/tutorials#1526; the documentation of `torch.nn.CrossEntropyLoss` ("unnormalized
    logits").
    """

    code = "HD120"
    name = "clipped-logits"
    summary = "a ReLU clips the logits before the loss"
    needs = Needs(kinds=(SetupRecord,), topics=("loss-call",))
    explains = NOTHING_LEARNED
    once = "segment"

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.02
        """Share of clipped logits that is reported."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = LossCallFacts.of(record)
        prediction = facts.prediction
        clipped_by, share = prediction.clipped_by, prediction.clipped_share
        if clipped_by is None or share is None or share < self.limits.share:
            return
        function = facts.function or "the loss"
        yield self.find(
            record,
            f"{share:.0%} of the logits that {function} receives are clipped to 0 by a "
            f"{clipped_by} after the last layer: they have no gradient",
            subject=loss_call_site(facts),
            where=facts.locate(rank=record.rank, place=prediction.clipped_at, op=clipped_by),
            remedies=[f"Remove the {clipped_by} after the last layer and pass its output."],
            clipped_by=clipped_by,
            clipped_share=share,
            classes=facts.classes,
        )
