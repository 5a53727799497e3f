from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import NONFINITE_OR_RANK, NOTHING_MOVES, POOR_FIT
from headway.core.check import Check, Needs
from headway.core.facts import LISTED, Parameters, say_list, trained_positions
from headway.core.findings import Finding, Severity, Where
from headway.core.model_facts import ParameterFacts
from headway.core.numbers import say
from headway.core.optimizer_facts import HalfCopiesFacts
from headway.core.records import Header, SetupRecord

COPIES = "half-copies"


class HalfPrecisionWeights(Check):
    """Trained weights are stored in fp16.

    ## What it checks
    The dtype of every parameter that is trainable and belongs to an optimizer.

    ## Why it matters
    An fp16 weight near 1 changes in steps of 0.001, and a gradient below 6e-8 is 0: most updates at
    a usual learning rate are lost, others overflow. Adam's eps of 1e-8 rounds to 0 and the update
    becomes 0/0. Autocast and a GradScaler both expect fp32 weights; with fp16 weights, unscaling
    fails.

    ## How it is measured
    From the dtypes of the parameters, before the first step and whenever they change. fp16 copies
    whose fp32 master weights are in the optimizer are reported by `headway check` if, in 3
    measurements in a row, more than half of the elements of their gradients are exactly 0, the
    largest is below 1e-5, the loss is not 0 and no GradScaler is in use.

    ## False alarms
    A frozen fp16 base under fp32 adapters passes, and so do fp16 copies with fp32 master weights
    whose gradients arrive, for example with a loss that is scaled by hand. bf16 weights are judged
    by HD310.

    ## What to do
    Keep the weights in fp32 (no `.half()`, no `torch_dtype=float16` for trained weights) and run
    the forward pass under autocast, with a GradScaler for fp16.

    ## References
    pytorch/pytorch#74739; Micikevicius et al., "Mixed precision training".
    """

    code = "HD309"
    name = "half-precision-weights"
    severity = Severity.ERROR
    summary = "trainable weights are fp16"
    needs = Needs(kinds=(SetupRecord,), topics=("parameters", COPIES))
    explains = (
        *NOTHING_MOVES,
        *NONFINITE_OR_RANK,
        *POOR_FIT,
        "HD310",
        "HD311",
        "HD312",
        "HD313",
        "HD315",
        "HD411",
        "HD414",
    )

    @dataclass(frozen=True)
    class Limits:
        zero_share: float = 0.5
        """Share of the gradient elements that are 0, for copies of fp32 weights."""
        largest: float = 1e-5
        """Largest value of the other elements: fp16 loses values 200 times smaller."""
        looks: int = 3
        """Consecutive measurements that are needed."""

    def start(self) -> None:
        self.reported = self.copies_reported = False
        self.in_a_row = 0

    def begin(self, header: Header) -> None:
        self.reported = False

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic == COPIES:
            yield from self._judge_copies(record)
        else:
            yield from self._judge_dtypes(record)

    def _judge_copies(self, record: SetupRecord) -> Iterable[Finding]:
        facts = HalfCopiesFacts.of(record)
        share, largest = facts.zero_share, facts.largest
        if share is None or largest is None:
            return
        lost = share > self.limits.zero_share and largest < self.limits.largest
        lost = lost and bool(facts.loss) and not facts.scaler
        self.in_a_row = self.in_a_row + 1 if lost else 0
        names = facts.names
        if self.copies_reported or self.in_a_row < self.limits.looks or not names:
            return
        self.copies_reported = True
        count = facts.count or len(names)
        yield self.find(
            record,
            f"{count} weights are trained as fp16 copies ({say_list(names)}), and {share:.0%} of "
            f"their gradient elements are 0 (limit {self.limits.zero_share:.0%}), the largest is "
            f"{say(largest)}: they underflow before they reach the fp32 master weights",
            subject=COPIES,
            where=Where(module=names[0], rank=record.rank or None),
            remedies=[
                "Scale the loss before backward with a GradScaler, or with a constant factor "
                "that you divide out of the master gradients.",
                "Or keep the weights in fp32 and run the forward pass under `torch.autocast`, "
                "with a GradScaler for fp16.",
            ],
            tensors=names[:LISTED],
            tensor_count=count,
            zero_share=share,
            largest=largest,
        )

    def _judge_dtypes(self, record: SetupRecord) -> Iterable[Finding]:
        parameters = Parameters.of(record)
        if parameters is None:
            return
        dtypes = ParameterFacts.of(record).dtypes
        count = trained_positions(parameters)
        half = [at for at in count if at < len(dtypes) and dtypes[at] == "float16"]
        if not half:
            self.reported = False
            return
        if self.reported:
            return
        self.reported = True
        names = [parameters.name(at) for at in half]
        yield self.find(
            record,
            f"{len(half)} of {len(count)} trained parameters ({parameters.elements(half):,} "
            f"elements) are stored in fp16: {say_list(names)}. Most updates are below their "
            f"resolution, and autocast and GradScaler expect fp32 weights",
            where=Where(module=names[0], rank=record.rank or None),
            remedies=[
                "Keep the weights in fp32 (remove `.half()` or `dtype=torch.float16`) and run "
                "the forward pass under `torch.autocast`, with a GradScaler for fp16.",
                "To save memory, train bf16 weights with an optimizer that has fp32 master "
                "weights.",
            ],
            tensors=names[:LISTED],
            tensor_count=len(half),
            trained_count=len(count),
        )
