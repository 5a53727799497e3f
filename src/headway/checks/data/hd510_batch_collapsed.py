from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.data_facts import BatchSizeFacts
from headway.core.facts import onset_record
from headway.core.findings import Finding
from headway.core.optimizer_facts import ClearedGradientsFacts
from headway.core.records import SetupRecord


class BatchCollapsed(Check):
    """The model trains on far fewer samples per step than configured.

    ## What it checks
    The number of samples that the model receives between two updates, against the loader's
    `batch_size` and the batch size in the variables and options of the script; and micro-batches
    whose gradients `zero_grad()` clears before the step.

    ## Why it matters
    With a batch of 1 instead of 32, gradients are noise, batch norm sees single samples, and an
    epoch takes 32 times the steps. Everything runs, and no error is raised.

    ## How it is measured
    All forward passes of a step together have less than a quarter of the samples, in every
    inspected step, at least three. Any axis may be the batch: an input with an axis of the full
    size passes. Of several backward passes of one line between two steps, only the last one is left
    by a `zero_grad()` of one line: the same number in each of the first 3 steps, with the weights
    unchanged in between and gradients that the script does not replace itself.

    ## False alarms
    Pieces of a batch (accumulation, chunks) add up. Last batches are short, the others are not.
    Sizes below 8 are not judged.

    ## What to do
    Print the shape right before the model. Look for a loader with another size, an index
    (`batch[0]`), a `squeeze` or a reshape on the way, or a wrapper that splits the batch.

    ## References
    huggingface/transformers#34204.
    """

    code = "HD510"
    name = "batch-collapsed"
    summary = "the real batch size is not the configured one"
    needs = Needs(kinds=(SetupRecord,), topics=("batch-size", "cleared-gradients"))
    explains = (*POOR_FIT, "HD103", "HD105", "HD207", "HD404")

    @dataclass(frozen=True)
    class Limits:
        steps: int = 3

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic == "cleared-gradients":
            yield from self._cleared(record, ClearedGradientsFacts.of(record))
            return
        facts = BatchSizeFacts.of(record)
        collapsed, whole = facts.collapsed or 0, facts.whole or 0
        samples, meant = facts.samples, facts.meant
        if (
            facts.wanted
            or collapsed < self.limits.steps
            or whole > 0.05 * collapsed
            or not samples
            or not meant
        ):
            return
        yield self.find(
            onset_record(record),
            f"the model receives {samples} of {meant} samples per step, in all {collapsed} "
            f"inspected steps ({facts.whence or 'the script'} sets {meant})",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Print the shape right before the model, and look for an index, a squeeze or a "
                "reshape on the way, or a loader with another size.",
            ],
            value=samples,
            meant=meant,
            steps=collapsed,
        )

    def _cleared(self, record: SetupRecord, facts: ClearedGradientsFacts) -> Iterable[Finding]:
        lost, steps = facts.lost or 0, facts.steps or 0
        if facts.empty or not lost or steps < self.limits.steps:
            return
        yield self.find(
            record,
            f"zero_grad() clears the gradients of {lost} of {lost + 1} backward passes before "
            f"step() uses them, in all {steps} inspected steps: each step trains on 1 of "
            f"{lost + 1} micro-batches",
            subject="cleared micro-batches",
            where=facts.locate(rank=record.rank),
            remedies=["Call zero_grad() once per step(), not once per backward()."],
            value=1,
            meant=lost + 1,
            steps=steps,
        )
