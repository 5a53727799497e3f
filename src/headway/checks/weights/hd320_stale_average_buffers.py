from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.model_facts import AveragedModelFacts
from headway.core.numbers import say
from headway.core.records import SetupRecord


class StaleAverageBuffers(Check):
    """An averaged model (EMA, SWA) is evaluated with batch-norm statistics that were never updated.

    ## What it checks
    Models that run without gradients and in evaluation mode, and have the shape of a trained model:
    their weights, and the running statistics of their batch-norm layers.

    ## Why it matters
    Only the weights were averaged. Batch norm still has mean 0 and variance 1, so every activation
    is scaled wrongly: the averaged model looks useless, or teaches wrong targets, although its
    weights are good.

    ## How it is measured
    All batch-norm layers of the copy have the statistics of a new layer, those of the trained model
    have moved, and the weights of the copy have moved too and are close to the trained ones.

    ## False alarms
    A copy whose weights do not move (a fixed random network, the model before training) is not
    reported, nor a network of the same shape with weights of its own, nor a teacher in training
    mode, which uses the statistics of its batch.

    ## What to do
    Copy the buffers as well when you average (`ema_buffer.copy_(buffer)` for every buffer), use
    `torch.optim.swa_utils.AveragedModel`, which does, or call
    `torch.optim.swa_utils.update_bn(loader, averaged)` before you evaluate.

    ## References
    FlyreelAI/sesemi#36; CuriousAI/mean-teacher#9; saltoricristiano/cosmix-uda#21;
    pytorch/ignite#2590; the documentation of `torch.optim.swa_utils`.
    """

    code = "HD320"
    name = "stale-average-buffers"
    severity = Severity.ERROR
    summary = "an averaged model uses batch-norm statistics that were never updated"
    needs = Needs(kinds=(SetupRecord,), topics=("averaged-model",))
    explains = ("HD104", "HD512")
    once = "run"

    @dataclass(frozen=True)
    class Limits:
        distance: float = 0.5
        """Largest relative distance of a weight of the copy from the trained one."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = AveragedModelFacts.of(record)
        layers, distance = facts.layers, facts.distance
        if not layers or distance is None or distance > self.limits.distance:
            return
        seen = "" if facts.batches is None else f" while the trained model saw {facts.batches}"
        yield self.find(
            record,
            f"the averaged copy of {facts.module or 'the model'} runs with the initial statistics "
            f"of its {layers} batch-norm layers (mean 0, variance 1){seen and seen + ' batches'}; "
            f"its weights differ by {say(distance)} of their size from the trained ones",
            where=facts.locate(rank=record.rank, module=facts.example),
            remedies=[
                "Copy every buffer of the model into the average as well, or use "
                "`torch.optim.swa_utils.AveragedModel`, which does.",
                "Call `torch.optim.swa_utils.update_bn(loader, averaged)` before you evaluate.",
            ],
            layers=layers,
            distance=distance,
            batches=facts.batches,
        )
