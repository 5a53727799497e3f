from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.records import SetupRecord
from headway.core.sequence_facts import PaddingFacts


class PaddingLeak(Check):
    """Padding changes the output of a sample.

    ## What it checks
    Models that read padded batches of tokens: whether the output for a row depends on how much
    padding follows it.

    ## Why it matters
    A sample's answer depends on the longest sample in its batch. A recurrent network that is read
    at the last time step has forgotten the text behind the padding; attention and averages without
    a mask dilute it. Accuracy is lower than it could be and changes with the batch size.

    ## How it is measured
    Once, a copy of the model in evaluation mode runs the most padded row with all of its padding,
    with less, and with none. A change of at least 10 % of the standard deviation of the outputs
    over the batch is reported, if less padding makes a difference too; from 1 % on it is
    information, or an error if the batch has a mask of the padding that the model is not given.
    A model that returns its loss alone is judged by the loss of the row. Vectors that are 0 at the
    padding are judged where the model is given a mask of it.

    ## False alarms
    Packed sequences, masks and reads at the last real token give the same output and are quiet. So
    is a convolution with a maximum over time. Outputs at padded positions are not compared. Padding
    on the left is not judged.

    ## What to do
    Read the output at the last real token (`pack_padded_sequence`, or `gather` with the lengths),
    pass the padding mask to the attention, and divide averages by the real length.

    ## References
    keitakurita/practical-torchtext#5; the documentation of
    `torch.nn.utils.rnn.pack_padded_sequence`.
    """

    code = "HD513"
    name = "padding-leak"
    severity = Severity.ERROR
    summary = "padding changes a sample's output"
    needs = Needs(kinds=(SetupRecord,), topics=("padding-dependence",))
    explains = ("HD105", "HD512")
    once = "segment"

    @dataclass(frozen=True)
    class Limits:
        change: float = 0.1
        """Change of the output without padding, in standard deviations over the batch."""
        mild: float = 0.01
        """The same for information."""
        amount: float = 1e-3
        """Change with less padding: below, the amount of padding does not matter."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts, limits = PaddingFacts.of(record), self.limits
        change, amount = facts.no_padding, facts.more_padding
        if change is None or amount is None or amount < limits.amount or change < limits.mild:
            return
        severe = change >= limits.change or facts.unused_mask
        mask = (
            "; the batch has a mask of it that the model is not given" if facts.unused_mask else ""
        )
        op = f"; {facts.op} is the first op that reads it" if facts.op else ""
        yield self.find(
            record,
            f"padding changes the output: without it, the output of a row with {facts.content} of "
            f"{facts.length} tokens changes by {change:.0%} of the standard deviation over the "
            f"batch{op}{mask}",
            severity=None if severe else Severity.INFO,
            where=facts.locate(rank=record.rank, module=facts.module, op=facts.op),
            remedies=[
                "Read the last real token (`pack_padded_sequence`, or `gather` with the lengths), "
                "pass the padding mask to the attention, or divide averages by the real length.",
            ],
            change=change,
            change_with_less_padding=amount,
            pad=facts.pad,
            content=facts.content,
            length=facts.length,
        )
