from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.facts import onset_record
from headway.core.findings import Finding, Severity
from headway.core.records import SetupRecord
from headway.core.sequence_facts import EndTokenFacts


class TokenNeverLearned(Check):
    """The token that ends the sequences is never a target: it is masked with the padding.

    ## What it checks
    Which token ends the rows of a language model's input, whether the same token fills the padding,
    and whether it is ever among the targets.

    ## Why it matters
    The model never learns to stop. The loss looks normal, but generation runs on to its maximum
    length. The usual cause is `tokenizer.pad_token = tokenizer.eos_token` with a collator that
    replaces every pad token in the labels by -100.

    ## How it is measured
    Over the first steps: one token ends the rows and also pads them, it is part of the rows
    themselves (the attention mask includes it, or batches padded to the longest row end in exactly
    one), it is never a target, and in most rows the token right before it is the last target.
    Targets whose loss is multiplied by 0 count as ignored. Where there is no attention mask, a
    script that sets its padding token to the end token is enough for a warning. Or
    the loss ignores the id of a token (`ignore_index=0`) that occurs inside the rows, between other
    targets, in at least a fifth of them: a warning.

    ## False alarms
    A pad token that is not part of the rows is rightly ignored and not reported. Nor is a template
    that ends in a line break after the end token, because a line break does not pad. Without an
    attention mask, with rows padded to a fixed length and no such line nothing can be said.

    ## What to do
    Use a pad token of its own (`tokenizer.add_special_tokens({"pad_token": "<pad>"})`, then resize
    the embeddings), or mask the labels by the attention mask instead of by token id.

    ## References
    huggingface/trl#1623; NVIDIA-NeMo/Automodel#1336; huggingface/blog#1302.
    """

    code = "HD119"
    name = "token-never-learned"
    severity = Severity.ERROR
    summary = "a token, such as the end token, is masked out of every target"
    needs = Needs(kinds=(SetupRecord,), topics=("end-token",))
    explains = ()
    once = "segment"

    @dataclass(frozen=True)
    class Limits:
        rows: int = 8
        """Minimum number of rows."""
        share: float = 0.8
        """Share of the rows that end in the token, and whose targets stop right before it."""
        inside: float = 0.2
        """Share of the rows with an ignored token between other targets."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = EndTokenFacts.of(record)
        share = self.limits.share
        if facts.ignored_inside:
            yield from self._inside(record, facts)
        rows, stops = facts.rows or 0, facts.stops_before or 0.0
        if facts.token is None or facts.learned or not facts.pads or rows < self.limits.rows:
            return
        part_of_rows = facts.ends_longest or (facts.attended or 0.0) >= share
        if not (part_of_rows or facts.pad_is_end) or stops < share:
            return
        yield self.find(
            onset_record(record),
            f"token {facts.token} ends {stops:.0%} of {rows} rows and is never a target: it is "
            f"also the padding, and every label equal to it is ignored, so the model never learns "
            f"to stop",
            severity=None if part_of_rows else Severity.WARNING,
            where=facts.locate(rank=record.rank),
            remedies=[
                "Use a pad token that differs from the end token, or mask the labels by the "
                "attention mask instead of by token id.",
            ],
            token=facts.token,
            rows=rows,
            stops_before=stops,
            attended=facts.attended,
            ignore_index=facts.ignore_index,
        )

    def _inside(self, record: SetupRecord, facts: EndTokenFacts) -> Iterable[Finding]:
        rows, found = facts.rows or 0, facts.rows_inside or 0
        if rows < self.limits.rows or found < self.limits.inside * rows:
            return
        yield self.find(
            record,
            f"the loss ignores token {facts.ignore_index}, which occurs between other targets in "
            f"{found} of {rows} rows ({facts.ignored_inside} times): it is not padding, and the "
            f"model never learns to produce it",
            subject="inside",
            severity=Severity.WARNING,
            where=facts.locate(rank=record.rank),
            remedies=[
                "Leave `ignore_index` out, or give the padding an id that no token has.",
            ],
            ignore_index=facts.ignore_index,
            rows=rows,
            rows_inside=found,
        )
