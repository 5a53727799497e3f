from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import NOTHING_MOVES, POOR_FIT
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.optimizer_facts import ClipScaledFacts
from headway.core.records import SetupRecord


class ClipBeforeUnscale(Check):
    """Gradients are clipped while they are still multiplied by the GradScaler's scale.

    ## What it checks
    Every clipping with a GradScaler in use: whether `scaler.unscale_(optimizer)` was called before.

    ## Why it matters
    The limit is compared with gradients that are 65536 times too large, so every step is clipped to
    limit/scale. With SGD the updates almost vanish; with Adam their size hides the problem and the
    balance between steps is lost. No error is raised.

    ## How it is measured
    The scaler has multiplied a loss of this step, its scale is not 1, and it has not unscaled the
    gradients of the optimizer whose parameters are clipped. The gradients were not divided by hand
    either: one gradient is compared with its value after backward.

    ## False alarms
    A disabled scaler, a scale of 1 and gradients divided by hand pass.

    ## What to do
    Call `scaler.unscale_(optimizer)` before clipping; `scaler.step` then does not unscale again.

    ## References
    milesial/Pytorch-UNet#468; PyTorch, "Automatic mixed precision examples: gradient clipping".
    """

    code = "HD314"
    name = "clip-before-unscale"
    severity = Severity.ERROR
    summary = "clipping sees scaled gradients: the effective limit is max_norm/scale"
    needs = Needs(kinds=(SetupRecord,), topics=("clip-scaled",))
    explains = (*NOTHING_MOVES, *POOR_FIT, "HD208")
    once = "run"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = ClipScaledFacts.of(record)
        scale = facts.scale
        if not facts.scaled or scale is None or scale <= 0:
            return
        function = facts.function or "clipping"
        limit, norm = facts.limit, facts.norm
        real = (
            ""
            if limit is None
            else f": the effective limit is {say(limit / scale)}, not {say(limit)}"
        )
        observed = "" if norm is None else f" (norm {say(norm)})"
        yield self.find(
            record,
            f"{function} clips gradients that are still multiplied by the loss scale "
            f"{say(scale)}{observed}{real}",
            where=facts.locate(rank=record.rank, op=function),
            remedies=["Call `scaler.unscale_(optimizer)` after backward and before clipping."],
            scale=scale,
            limit=limit,
            norm=norm,
        )
