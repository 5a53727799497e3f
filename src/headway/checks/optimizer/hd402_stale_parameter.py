from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.facts import say_list
from headway.core.findings import Finding, Severity
from headway.core.optimizer_facts import OptimizerCoverageFacts
from headway.core.records import SetupRecord


class StaleParameter(Check):
    """The optimizer has tensors that are no longer those of the model.

    ## What it checks
    The tensors of every optimizer, against those for which the losses produce gradients.

    ## Why it matters
    The optimizer steps, its tensors get no gradient, and the model that computes the loss does not
    change. No error is raised; the loss stays at its start, or only part of the model learns.

    ## How it is measured
    An optimizer has tensors without any gradient that belong to no module, or to a model that no
    loss depends on, while trainable tensors that do get gradients are in no optimizer.

    ## False alarms
    Old tensors alone are harmless and are not reported: a head that was replaced and added to the
    optimizer, or a second model that is trained later. A layer that is part of the model but never
    called is HD204.

    ## What to do
    Create the optimizer after the model is final: after wrapping, copying, replacing layers, adding
    adapters, and loading that creates a new object.

    ## References
    huggingface/accelerate#3256; pytorch/pytorch#149205.
    """

    code = "HD402"
    name = "stale-parameter"
    severity = Severity.ERROR
    summary = "the optimizer has tensors that are no longer those of the model"
    needs = Needs(kinds=(SetupRecord,), topics=("optimizer-coverage",))
    explains = (
        *POOR_FIT,
        "HD105",
        "HD204",
        "HD205",
        "HD306",
        "HD401",
        "HD403",
        "HD404",
        "HD407",
        "HD413",
        "HD415",
    )
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = OptimizerCoverageFacts.of(record)
        stale = facts.stale_count or 0
        outside = facts.unoptimized_count or 0
        if stale <= 0 or outside <= 0:
            return
        names, news = facts.stale, facts.unoptimized
        held = facts.held or stale
        made_at = facts.optimizer_at.line
        before = f"; the optimizer was created earlier, on line {made_at}" if made_at else ""
        yield self.find(
            record,
            f"{stale} of {held} tensors in the optimizer do not belong to the trained model "
            f"({say_list(names)}), and {outside} trainable parameters of that model are in no "
            f"optimizer: {say_list(news)}{before}",
            where=facts.locate(rank=record.rank, module=news[0] if news else None),
            remedies=[
                "Create the optimizer after the model is final: below the last line that copies, "
                "wraps or replaces the model or a part of it.",
                "For a replaced layer, call `optimizer.add_param_group` with its parameters.",
            ],
            stale=names,
            stale_count=stale,
            unoptimized=news,
            unoptimized_count=outside,
        )
