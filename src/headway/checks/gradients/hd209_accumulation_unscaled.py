from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.update_trial import OBJECTIVE
from headway.core.check import Check, Needs
from headway.core.facts import Facts
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.records import SetupRecord


class AccumulationUnscaled(Check):
    """Gradients of several micro-batches are summed where they should be averaged.

    ## What it checks
    Several backward passes before one step, from one line: the weight with which the mean loss
    of a micro-batch enters each of them, and what becomes of the gradients before the step.

    ## Why it matters
    The gradient is as many times too large as there are micro-batches. The learning rate is so
    many times what it says, clipping cuts where it should not, and changing the accumulation
    changes the training.

    ## How it is measured
    The mean loss is changed a little while the recorded ops are run again: what becomes of the
    total is its weight. It must be 1, with all passes made of the same ops and weights on different
    data, nothing cleared in between, and no division of the gradients by their number afterwards.

    ## False alarms
    Losses that are sums (over tokens, over an episode), several tasks or heads, losses from
    different lines, and frameworks that divide by themselves are not reported. Where the rate was
    chosen for the sum, ignore the code.

    ## What to do
    Divide the loss by the number of micro-batches before `backward()`.

    ## References
    huggingface/transformers#35203; "Fixing gradient accumulation" (Hugging Face, 2024).
    """

    code = "HD209"
    name = "accumulation-unscaled"
    summary = "micro-batches are summed, not averaged"
    needs = Needs(kinds=(SetupRecord,), topics=(OBJECTIVE,))
    explains = ("HD207", "HD208", "HD308", "HD202", "HD403", "HD512", "HD105")

    @dataclass(frozen=True)
    class Limits:
        near: float = 0.1
        """A weight this near to 1 is one that nothing was divided by."""
        divided: float = 0.2
        """Gradients this near to their mean, relative, were divided."""

    def start(self) -> None:
        self.told = False

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = Facts.of(record)
        count = facts.whole("backwards") or 1
        alike = all(facts.flag(key) for key in ("one_line", "same_ops", "same_weights"))
        if self.told or count < 2 or not alike or facts.flag("same_data"):
            return
        kept = facts.number("gradients_kept")
        if kept is None or abs(kept * count - 1) <= self.limits.divided:
            return
        whole = self._whole(facts)
        if whole is None:
            return
        self.told = True
        name, weight = whole
        yield self.find(
            record,
            f"{count} micro-batches are summed into one step and not averaged: {name} enters "
            f"each backward pass with a weight of {say(weight)} instead of {say(1 / count)}, so "
            f"the gradient is {count} times that of the mean",
            where=facts.where(rank=record.rank),
            remedies=[f"Divide the loss by {count} before backward(): (loss / {count}).backward()"],
            micro_batches=count,
            weight=weight,
            expected=1 / count,
            optimizer=facts.text("optimizer"),
        )

    def _whole(self, facts: Facts) -> tuple[str, float] | None:
        """The mean that most of the loss is made of, if it enters as it is."""
        root = facts.number("root")
        for part in facts.tables("parts"):
            weight, value = part.number("weight"), part.number("value")
            if root is None or weight is None or value is None or not part.flag("mean"):
                continue
            most = abs(weight * value) >= abs(root) / 2
            if most and abs(weight - 1) <= self.limits.near:
                return (part.text("name") or "the loss").removeprefix("aten."), weight
        return None
