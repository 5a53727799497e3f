from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.optimizer_facts import AutocastFacts
from headway.core.records import SetupRecord


class AutocastInert(Check):
    """Autocast is enabled, but the work is done in fp32.

    ## What it checks
    Whether the matrix products, convolutions and attention of training forward passes run in 16
    bits once an enabled autocast region has been entered.

    ## Why it matters
    The run is as slow and uses as much memory as without autocast, unnoticed. A GradScaler on top
    of it only skips steps.

    ## How it is measured
    From the dtype of the results of these ops, weighted by their size, over the first steps: less
    than 1 % in 16 bits although a region was entered with gradients enabled. The output of a module
    with a matrix of its own that comes out of a custom op or an `autograd.Function` counts, too.

    ## False alarms
    `enabled=False` is not a request for autocast, and neither is autocast in validation only. Parts
    that stay in fp32 on purpose pass as long as something runs in 16 bits. 16-bit weights count as
    16-bit work.

    ## What to do
    Put the forward pass inside the region, with the device type of the model and a 16-bit dtype.

    ## References
    Lightning-AI/lightning-thunder#725; PyTorch, "Automatic mixed precision package".
    """

    code = "HD315"
    name = "autocast-inert"
    summary = "autocast is enabled, but the work runs in fp32"
    needs = Needs(kinds=(SetupRecord,), topics=("autocast",))
    explains = ("HD312", "HD313", "HD414")
    once = "run"

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.01
        """Share of the work that must be in 16 bits."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = AutocastFacts.of(record)
        share, entered = facts.low_share, facts.entered or 0
        if share is None or entered <= 0 or share >= self.limits.share:
            return
        if not facts.regions:
            return
        why, remedy = _why(facts)
        yield self.find(
            record,
            f"autocast was entered {entered} times, but {say(100 * (1 - share))} % of the matrix "
            f"work of the training forward passes ran in fp32: {why}",
            where=facts.locate(rank=record.rank),
            remedies=[remedy],
            low_share=share,
            limit=self.limits.share,
            inside_share=facts.inside_share,
            device=facts.device,
        )


def _why(facts: AutocastFacts) -> tuple[str, str]:
    device = facts.device or "the model's device"
    inside = facts.inside_share or 0.0
    regions = facts.regions
    kinds = sorted({region.device_type or "" for region in regions})
    if device not in kinds:
        return (
            f"the region is for {' and '.join(kinds)}, the work is on {device}",
            f'Pass the device type of the model to autocast: `torch.autocast("{device}", …)`.',
        )
    if any(region.dtype in ("float32", "float64") for region in regions):
        return (
            "the region's dtype is float32",
            "Pass `dtype=torch.bfloat16` to autocast (or float16 with a GradScaler).",
        )
    if not any(region.enabled for region in regions):
        return (
            "torch switched the region off: the device or the dtype is not supported there",
            "Pass a dtype that this device supports to autocast, such as `torch.bfloat16`.",
        )
    if facts.disabling and inside > 0:
        line = facts.disabling[0].place.line
        at = "" if line is None else f" (line {line})"
        return (
            f"a nested region with enabled=False covers the forward pass{at}",
            "Restrict the region with `enabled=False` to the ops that need fp32.",
        )
    if (facts.opaque_share or 0.0) > 0.5:
        return (
            "custom ops compute it, which autocast does not cast",
            "Cast their inputs: `torch.library.register_autocast` for a custom op, "
            "`torch.amp.custom_fwd(cast_inputs=…)` for an autograd.Function.",
        )
    return (
        "the region does not cover the forward pass",
        "Move the forward pass and the loss inside `with torch.autocast(…):`.",
    )
