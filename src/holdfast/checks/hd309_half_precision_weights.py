from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.check import Check, Needs
from holdfast.core.facts import Facts
from holdfast.core.findings import Finding, Severity, Where
from holdfast.core.parameters import LISTED, Parameters, some
from holdfast.core.records import Header, SetupRecord
from holdfast.core.trained import trained


class HalfPrecisionWeights(Check):
    """Weights that are being trained are stored in fp16.

    ## What it checks
    The dtype of every parameter that is trainable and held by an optimizer.

    ## Why it matters
    An fp16 weight near 1 moves in steps of 0.001 and a gradient below 6e-8 is 0: most updates of a
    usual rate are lost, others overflow. Adam's eps of 1e-8 rounds to 0 and the update becomes
    0/0. With autocast or a GradScaler on top, which both expect fp32 weights, unscaling fails.

    ## How it is measured
    By the parameters' dtypes, before the first step and whenever they change.

    ## False alarms
    A frozen fp16 base under fp32 adapters passes, and so do fp16 copies of which the optimizer
    holds fp32 masters. bf16 weights are judged by what they lose (HD310).

    ## What to do
    Leave the weights in fp32 (no `.half()`, no `torch_dtype=float16` for what trains) and put the
    forward under autocast, with a GradScaler for fp16.

    ## References
    pytorch/pytorch#74739; Micikevicius et al., "Mixed precision training".
    """

    code = "HD309"
    name = "half-precision-weights"
    severity = Severity.ERROR
    summary = "trainable weights are fp16"
    needs = Needs(kinds=(SetupRecord,), topics=("parameters",))

    def start(self) -> None:
        self.told = False

    def begin(self, header: Header) -> None:
        self.told = False

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        parameters = Parameters.of(record)
        if parameters is None:
            return
        dtypes = Facts.of(record).texts("dtypes")
        count = trained(parameters)
        half = [at for at in count if at < len(dtypes) and dtypes[at] == "float16"]
        if not half:
            self.told = False
            return
        if self.told:
            return
        self.told = True
        names = [parameters.name(at) for at in half]
        yield self.find(
            record,
            f"{len(half)} of {len(count)} trained parameters ({parameters.elements(half):,} "
            f"elements) are stored in fp16: {some(names)}. Most updates are below their "
            "resolution, and a GradScaler or autocast on top expects fp32",
            where=Where(module=names[0], rank=record.rank or None),
            remedies=[
                "Keep the weights in fp32 (remove `.half()` or `dtype=torch.float16`) and run the "
                "forward under `torch.autocast`, with a GradScaler for fp16.",
                "To save memory, train bf16 weights with an optimizer that keeps fp32 masters.",
            ],
            tensors=names[:LISTED],
            tensor_count=len(half),
            trained_count=len(count),
        )
