from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.update_trial import OBJECTIVE
from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.optimizer_facts import ObjectiveFacts
from headway.core.records import SetupRecord


class AccumulationUnscaled(Check):
    """Gradients of several micro-batches are summed instead of averaged.

    ## What it checks
    Several backward passes from one line before one step: the weight with which the mean loss of a
    micro-batch enters each of them, and what happens to the gradients before the step.

    ## Why it matters
    With n micro-batches the gradient is n times too large. The effective learning rate is n times
    the configured one, clipping applies where it should not, and a different number of
    micro-batches changes the training.

    ## How it is measured
    The mean loss is changed slightly while the recorded ops are run again; the change of the total
    gives its weight. The weight must be 1, all passes must use the same ops and weights on
    different data, nothing may be cleared in between, and the gradients must not be divided by the
    number of passes afterwards. For a loss of several means, from three micro-batches on: nothing
    on the way to the total is multiplied or divided by their number, the weights add up to at least
    1, and the largest is at least 0.5.

    ## False alarms
    Losses that are sums (over tokens, over an episode), several tasks or heads, losses from
    different lines, and frameworks that divide themselves are not reported. If the learning rate
    was chosen for the sum, ignore the code.

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
    once = "run"

    @dataclass(frozen=True)
    class Limits:
        near: float = 0.1
        """Largest distance from 1 of a weight that was not divided."""
        divided: float = 0.2
        """Largest relative distance from the mean of gradients that were divided."""
        least: float = 0.5
        """Smallest weight that the largest of several terms must have."""
        fewest: int = 3
        """Fewest micro-batches for which a sum of several terms is judged."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = ObjectiveFacts.of(record)
        count = facts.backwards or 1
        alike = facts.one_line and facts.same_ops and facts.same_weights
        if count < 2 or not alike or facts.same_data:
            return
        kept = facts.gradients_kept
        if kept is None or abs(kept * count - 1) <= self.limits.divided:
            return
        whole = self._whole(facts) or self._sum(facts, count)
        if whole is None:
            return
        name, weight = whole
        yield self.find(
            record,
            f"{count} micro-batches are summed into one step, not averaged: {name} enters each "
            f"backward pass with a weight of {say(weight)} instead of {say(weight / count)}, so "
            f"the gradient is {count} times that of the mean",
            where=facts.locate(rank=record.rank),
            remedies=[f"Divide the loss by {count} before backward(): (loss / {count}).backward()"],
            micro_batches=count,
            weight=weight,
            expected=weight / count,
            optimizer=facts.optimizer,
        )

    def _whole(self, facts: ObjectiveFacts) -> tuple[str, float] | None:
        """The mean that makes up most of the loss, if it enters undivided."""
        root = facts.root
        for part in facts.parts:
            weight, value = part.weight, part.value
            if root is None or weight is None or value is None or not part.mean:
                continue
            most = abs(weight * value) >= abs(root) / 2
            if most and abs(weight - 1) <= self.limits.near:
                return (part.name or "the loss").removeprefix("aten."), weight
        return None

    def _sum(self, facts: ObjectiveFacts, count: int) -> tuple[str, float] | None:
        """The largest of several means, if nothing divides their sum by the count."""
        parts = [(part, abs(part.weight or 0.0)) for part in facts.parts if part.weight]
        if facts.divided or count < self.limits.fewest or len(parts) < 2:
            return None
        if not all(part.mean and part.known for part, _ in parts):
            return None
        first, weight = max(parts, key=lambda item: item[1])
        if weight < self.limits.least or sum(each for _, each in parts) < 1 - self.limits.near:
            return None
        return first.name or "the loss", weight
