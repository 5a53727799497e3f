from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low

from headway.core.check import Check, Needs
from headway.core.facts import LISTED, Parameters, trained_weights
from headway.core.findings import Finding, Where
from headway.core.model_facts import PrecisionFacts
from headway.core.numbers import say
from headway.core.records import SetupRecord, StepRecord

NEAR_THE_END = 2.0**-20
"""16 times the smallest float16; if half of a gradient is lost, the rest is below this."""
HALF = frozenset({"float16", "half", "fp16"})


class Fp16Underflow(Check):
    """Most gradient elements underflow to zero in float16, and no loss scaling prevents it.

    ## What it checks
    The share of gradient elements that are exactly 0, in runs that compute in float16 without a
    GradScaler.

    ## Why it matters
    The smallest float16 is 6e-8. Gradients of deep layers are often smaller; they become 0, so the
    weights stop learning while the loss looks normal.

    ## How it is measured
    The gradient of a weight has underflowed if more than half of its elements are exactly 0 and the
    root mean square of the others is below 1e-6, sixteen times the smallest float16. More than half
    of the trained weights must be affected in 3 measured steps in a row; biases and norm layers are
    ignored.

    ## False alarms
    Embeddings, dead ReLU rows, LoRA's A and batches of one sample have many zeros too, but their
    other elements have a normal size. Without facts about precision, in bfloat16, in float32 and
    with a GradScaler nothing is judged. Gradients that are all exactly 0 count only if others are
    about to underflow, or if all are 0 although the loss is not.

    ## What to do
    Use `torch.amp.GradScaler` with float16, or autocast to bfloat16, which has the range of float32
    and needs no scaler. Keep the weights in float32 in both cases.

    ## References
    Micikevicius et al., "Mixed Precision Training", section 3.2.
    """

    code = "HD312"
    name = "fp16-underflow"
    summary = "a large share of gradients underflows to zero in fp16 without a scaler"
    points_at = "backward"
    needs = Needs(
        signals=("param/grad_zero_share", "param/grad_norm"), kinds=(StepRecord, SetupRecord)
    )
    explains = ("HD205", "HD306", "HD307")

    @dataclass(frozen=True)
    class Limits:
        zero_share: float = 0.5
        """Share of a gradient's elements that are 0."""
        samples: int = 3
        """Consecutive measured steps that are needed."""

    def start(self) -> None:
        self.unscaled_half = False
        self.elements: dict[int, int] = {}
        self.in_a_row = 0

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            self._learn(record)
            return
        shares = record.columns.get("param/grad_zero_share")
        norms = record.columns.get("param/grad_norm")
        if not self.unscaled_half or shares is None or norms is None or record.held:
            return
        share_of = {at: share for at, share in shares.items() if at in self.elements}
        sizes = self._sizes(share_of, dict(norms.items()))
        lost = [at for at in sizes if share_of[at] > self.limits.zero_share]
        # A gradient of all zeros may have many causes: others must be about to underflow as well,
        # or all must be 0 although there is a loss.
        nothing_left = len(lost) == len(share_of) and bool(record.values.get("loss"))
        fading = nothing_left or any(sizes.values())
        self.in_a_row = self.in_a_row + 1 if fading and 2 * len(lost) > len(share_of) else 0
        if self.in_a_row == self.limits.samples:
            yield self._finding(record, share_of, {at: sizes[at] for at in lost})

    def _learn(self, record: SetupRecord) -> None:
        parameters = Parameters.of(record)
        if parameters is not None:
            self.elements = trained_weights(parameters)
        elif record.topic == "precision":
            facts = PrecisionFacts.of(record)
            self.unscaled_half = _computes_in_half(facts) and facts.scaler is False

    def _sizes(self, shares: Mapping[int, float], norms: Mapping[int, float]) -> dict[int, float]:
        """Position → size of the non-zero elements, if it is close to the smallest float16."""
        found = {}
        for position, share in shares.items():
            left = self.elements[position] * (1.0 - share)
            size = norms.get(position, math.nan) / math.sqrt(left) if left > 0 else 0.0
            if size < NEAR_THE_END:
                found[position] = size
        return found

    def _finding(
        self, record: StepRecord, shares: Mapping[int, float], sizes: Mapping[int, float]
    ) -> Finding:
        names = [self.context.name("param", position) for position in sizes]
        share = median_low([shares[position] for position in sizes])
        size = max(sizes.values())
        rest = f", the others are at most {say(size)}" if size else ""
        return self.find(
            record,
            f"the gradients of {len(sizes)} of {len(shares)} weights underflow in float16: "
            f"{share:.0%} of their elements are exactly 0{rest}, and no GradScaler is in use",
            where=Where(module=names[0], rank=record.rank or None),
            remedies=[
                "Scale the loss: use torch.amp.GradScaler for backward, step and clipping.",
                "Or autocast to bfloat16, which has the range of float32 and needs no scaler.",
            ],
            tensors=names[:LISTED],
            tensor_count=len(names),
            weights=len(shares),
            median_zero_share=share,
            limit=self.limits.zero_share,
            largest_nonzero_size=size,
        )


def _computes_in_half(facts: PrecisionFacts) -> bool:
    dtypes = (*facts.compute, *facts.weights)
    return any(dtype.removeprefix("torch.") in HALF for dtype in dtypes)
