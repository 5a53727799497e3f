from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import NOTHING_LEARNED
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.records import SetupRecord
from headway.core.sequence_facts import TokenTargetFacts


class ShiftedLabels(Check):
    """Labels of a language model are shifted twice or not at all: they are not the next token.

    ## What it checks
    The targets of `cross_entropy`, `nll_loss` or `gather` against the input tokens of the model:
    the target of position t should be the token at t + 1.

    ## Why it matters
    Shifted twice, the model learns to skip a token: the loss falls, generated text is broken. Not
    shifted, a causal model copies its input: the loss falls to almost 0 and nothing is learned. The
    usual cause is a data set or collator that shifts the labels for a model that shifts them
    itself, as all Hugging Face models do.

    ## How it is measured
    At least 99 % of the targets that are not ignored equal the token two positions later, and at
    most 60 % equal the token at any other position. For targets that equal their own token, one
    token is changed in a copy of the model: the outputs at that position and after it must change,
    and none before it.

    ## False alarms
    Multi-token prediction also has a head for the next token and is not reported. Neither are
    autoencoders and masked language models, which see all tokens, nor models that shift their input
    themselves, nor data that repeat with a period of two.

    ## What to do
    Shift once. For a model that takes `labels`, pass `labels = input_ids.clone()`. With a loss of
    your own, use `cross_entropy(logits[:, :-1], input_ids[:, 1:])`.

    ## References
    huggingface/transformers#47394, #37830, #46784, #46897, #32944.
    """

    code = "HD118"
    name = "shifted-labels"
    severity = Severity.ERROR
    summary = "targets are not the next token: shifted twice, or not at all"
    needs = Needs(kinds=(SetupRecord,), topics=("token-targets",))
    explains = (*NOTHING_LEARNED, "HD104")
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = TokenTargetFacts.of(record)
        if facts.shift == 2:
            message = (
                "the labels are shifted twice: the target of position t is the input token at "
                "t + 2, so the model learns to skip a token"
            )
            remedy = (
                "Shift once: pass `labels = input_ids.clone()` to a model that shifts them itself, "
                "or compare `logits[:, :-1]` with `input_ids[:, 1:]`."
            )
        elif facts.shift == 0 and facts.copies:
            message = (
                "the labels are not shifted: the target of position t is the input token at t, "
                "which the causal model sees and only has to copy"
            )
            remedy = "Compare `logits[:, :-1]` with `input_ids[:, 1:]`."
        else:
            return
        yield self.find(
            record,
            message,
            where=facts.locate(rank=record.rank, module=facts.module, op=facts.function),
            remedies=[remedy],
            shift=facts.shift,
            share=facts.share,
            targets=facts.targets,
        )
