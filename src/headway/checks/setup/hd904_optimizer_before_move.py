from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import NOTHING_MOVES, POOR_FIT
from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.optimizer_facts import OptimizerCoverageFacts
from headway.core.records import SetupRecord


class OptimizerBeforeMove(Check):
    """The optimizer was created before the model was moved, cast or wrapped.

    ## What it checks
    If an optimizer has other tensors than the model: how the two differ.

    ## Why it matters
    Most moves keep the tensors and change their data; some (FSDP, `to_empty`, quantisation,
    wrappers that copy) create new ones. An optimizer that was created before continues with the old
    ones.

    ## How it is measured
    The devices or the dtypes of the optimizer's stale tensors differ from those of the model's
    tensors of the same shapes, or the model is now inside a wrapper that did not contain it before.

    ## False alarms
    `.to(device)` and `.half()` keep the tensors: an optimizer that was created before them is fine,
    and nothing is reported. The same holds if the optimizer has the model's own tensors.

    ## What to do
    Move, cast and wrap the model first, then create the optimizer.

    ## References
    pytorch/pytorch#149205; torch.optim's note on moving a model before the optimizer is built.
    """

    code = "HD904"
    name = "optimizer-before-move"
    summary = "the optimizer was created before the model was moved or wrapped"
    needs = Needs(kinds=(SetupRecord,), topics=("optimizer-coverage",))
    explains = (*NOTHING_MOVES, *POOR_FIT, "HD204", "HD401", "HD402", "HD403", "HD413", "HD415")
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = OptimizerCoverageFacts.of(record)
        if (facts.stale_count or 0) <= 0:
            return
        how = _how(facts)
        if how is None:
            return
        names = facts.unoptimized
        yield self.find(
            record,
            f"the optimizer was created before {how}: it has the old tensors, and "
            f"{facts.unoptimized_count or len(names)} of the model's are in no optimizer",
            where=facts.locate(rank=record.rank, module=names[0] if names else None),
            remedies=["Move, cast and wrap the model first, then create the optimizer."],
            how=how,
            stale_count=facts.stale_count,
        )


def _how(facts: OptimizerCoverageFacts) -> str | None:
    devices, dtypes = facts.device, facts.dtype
    wrapper = facts.wrapper
    if len(devices) == 2 and devices[0] != devices[1]:
        return f"the model was moved from {devices[0]} to {devices[1]}"
    if len(dtypes) == 2 and dtypes[0] != dtypes[1]:
        return f"the model was cast from {dtypes[0]} to {dtypes[1]}"
    return None if wrapper is None else f"the model was wrapped in {wrapper}"
