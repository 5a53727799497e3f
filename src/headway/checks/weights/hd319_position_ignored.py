from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.records import SetupRecord
from headway.core.sequence_facts import PositionFacts


class PositionIgnored(Check):
    """A sequence model has position encodings, but all positions are the same to it.

    ## What it checks
    Models that read tokens and have a table of absolute positions (a parameter, buffer or embedding
    named `pos…`, `pe`, `wpe`, as wide as the token embedding).

    ## Why it matters
    The model treats its input as a bag of tokens. The usual causes are one row of the table for all
    positions (`pe[:, n]` instead of `pe[:, :n]`), and a table that is added along the batch: a
    module written for (time, batch) gets (batch, time).

    ## How it is measured
    Once, in a copy of the model in evaluation mode. If there is an output for each token, a
    sequence of one repeated token must give different outputs at different positions. Otherwise
    the tokens are put into another order, which must change the output.

    ## False alarms
    Models without a table of positions, and those with relative, rotary or ALiBi positions are not
    judged, nor a table that starts at 0. Recurrent networks and convolutions see the order
    anyway and are not reported.

    ## What to do
    Print the shape of what is added to the token embeddings: its time axis must be as long as
    the sequence. Use `pe[:, :n]`, and `transpose` a table that was written for (time, batch).

    ## References
    DiffPoseTalk#20; tanjimin/C.Origami#42; songyangco/GETNext#2.
    """

    code = "HD319"
    name = "position-ignored"
    severity = Severity.ERROR
    summary = "position encodings have no effect: one position for all"
    needs = Needs(kinds=(SetupRecord,), topics=("position-dependence",))
    explains = (*POOR_FIT, "HD105")
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = PositionFacts.of(record)
        if not facts.ignored:
            return
        shown = (
            f"one token repeated {facts.positions} times gives the same output everywhere"
            if facts.trial == "repeated token"
            else "the same tokens in another order give the same output"
        )
        yield self.find(
            record,
            f"{facts.module or 'the model'} has position encodings ({facts.table}), but they make "
            f"no difference between positions: {shown}",
            where=facts.locate(rank=record.rank, module=facts.module),
            remedies=[
                "Compare the shape of the encodings with that of the embeddings where they are "
                "added: their time axis must be as long as the sequence (`pe[:, :n]`).",
            ],
            table=facts.table,
            ratio=facts.ratio,
            positions=facts.positions,
        )
