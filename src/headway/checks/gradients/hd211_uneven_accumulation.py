from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.facts import onset_record, say_list
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import SetupRecord
from headway.core.sequence_facts import TokenWeightFacts


class UnevenAccumulation(Check):
    """Micro-batches with different token counts are averaged as means.

    ## What it checks
    Losses of a sequence model that are means over the labels that count, in steps with several
    backward passes: the number of labels in each micro-batch, and the weight of its mean.

    ## Why it matters
    The weight of a token depends on the other tokens in its micro-batch: those of a short one count
    more. The result differs from that of one large batch, more so with long and short sequences in
    one data set, and changes with the number of micro-batches.

    ## How it is measured
    The weight of a token is the weight of its micro-batch's mean in the loss, by autograd, divided
    by the number of labels. All means have the same weight, labels are ignored (padding, prompts),
    and in at least half of the accumulated steps a token weighs 1.5 times as much as another.

    ## False alarms
    Sums divided by the number of labels of the whole step, and means weighted by their count, are
    correct and not reported. Images and other targets that are not one for each token are not
    judged, and a smaller last batch is one step only.

    ## What to do
    Sum the loss (`reduction="sum"`) and divide it by the number of labels of all micro-batches of
    the step. With the Hugging Face `Trainer`, use a version and a model that get
    `num_items_in_batch`.

    ## References
    huggingface/transformers#34191; OpenNMT/OpenNMT-py#2209; verl-project/verl#7225; "Fixing
    gradient accumulation" (Hugging Face, 2024).
    """

    code = "HD211"
    name = "uneven-accumulation"
    severity = Severity.ERROR
    summary = "micro-batches with different token counts are averaged as means"
    needs = Needs(kinds=(SetupRecord,), topics=("token-weights",))
    explains = ()
    once = "run"

    @dataclass(frozen=True)
    class Limits:
        ratio: float = 1.5
        """Ratio of the largest to the smallest weight of a token, in the median step."""
        steps: int = 2
        """Minimum number of accumulated steps."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = TokenWeightFacts.of(record)
        steps, ratio = facts.steps or 0, facts.ratio or 0.0
        if steps < self.limits.steps or 2 * (facts.uneven or 0) < steps:
            return
        if ratio < self.limits.ratio or not facts.equal_weights or not facts.ignored:
            return
        counts = [int(count) for count in facts.counts]
        yield self.find(
            onset_record(record),
            f"{len(counts)} micro-batches with {say_list(counts, 4)} labels are averaged as means "
            f"with equal weights: a token of one counts {say(ratio)} times as much as a token of "
            f"another (median of {steps} steps)",
            subject="tokens",
            where=facts.locate(rank=record.rank, op=facts.function),
            remedies=[
                'Use `reduction="sum"` and divide by the number of labels of all micro-batches of '
                "the step.",
            ],
            ratio=ratio,
            counts=counts,
            steps=steps,
        )
