from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.facts import Facts, say_list
from headway.core.findings import Finding, Severity
from headway.core.records import Header, SetupRecord


class StaleParameter(Check):
    """The optimizer holds tensors that are no longer the model's.

    ## What it checks
    The tensors of every optimizer, against those the losses send gradients to.

    ## Why it matters
    The optimizer steps, its tensors get no gradient, and the model that computes the loss is not
    touched. Nothing raises; the loss stays where it began, or only part of the model learns.

    ## How it is measured
    An optimizer holds tensors without any gradient that belong to no module, or to a model no loss
    reaches, while trainable tensors that do get gradients are in no optimizer.

    ## False alarms
    Old tensors alone are harmless and are not told: a head that was replaced and added to the
    optimizer, a second model whose turn has not come. A layer that is part of the model but never
    called is another matter (HD204).

    ## What to do
    Build the optimizer after the model is final: after wrapping, copying, replacing layers,
    adding adapters, and loading that makes a new object.

    ## References
    huggingface/accelerate#3256; pytorch/pytorch#149205.
    """

    code = "HD402"
    name = "stale-parameter"
    severity = Severity.ERROR
    summary = "the optimizer holds tensors that are no longer the model's"
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

    def start(self) -> None:
        self.told = False

    def begin(self, header: Header) -> None:
        self.told = False

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = Facts.of(record)
        stale = facts.whole("stale_count") or 0
        outside = facts.whole("unoptimized_count") or 0
        if self.told or stale <= 0 or outside <= 0:
            return
        self.told = True
        names, news = facts.texts("stale"), facts.texts("unoptimized")
        held = facts.whole("held") or stale
        made_at = facts.table("optimizer_at").whole("line")
        before = f"; the optimizer was built before that, on line {made_at}" if made_at else ""
        yield self.find(
            record,
            f"{stale} of the {held} tensors in the optimizer are no part of the model that is "
            f"trained ({say_list(names)}), and {outside} trainable parameters of that "
            "model are in no "
            f"optimizer: {say_list(news)}{before}",
            where=facts.where(rank=record.rank, module=news[0] if news else None),
            remedies=[
                "Build the optimizer after the model is final: below the last line that copies, "
                "wraps or replaces the model or a part of it.",
                "For a layer that was replaced: `optimizer.add_param_group` with its parameters.",
            ],
            stale=names,
            stale_count=stale,
            unoptimized=news,
            unoptimized_count=outside,
        )
