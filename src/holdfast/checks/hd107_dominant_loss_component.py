from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.check import Check, Needs
from holdfast.core.findings import Finding, Severity
from holdfast.core.moment import Moment, moment_of, record_at
from holdfast.core.numbers import say
from holdfast.core.records import StepRecord
from holdfast.core.window import Window

VALUE, GRADIENT = "loss/", "component_grad/"
EVERY = 50
"""The values are judged at every so-many-th step."""
FIRST = 20
"""A component's own start level is the median of so many first values."""


class DominantLossComponent(Check):
    """One component of the loss swamps the others for good.

    ## What it checks
    The share of each named component: of the gradient, where the gradient of each component is known,
    else of the value.

    ## Why it matters
    An optimizer sees only the sum. A component a thousand times the others decides every step alone,
    and their goals starve, although each of them is in the loss and has a gradient.

    ## How it is measured
    By gradient: the median norm of one component is 10000 times that of the next (from 1000 times
    on it is told as information). By value, which is weaker evidence: for 200 steps one
    component is 99 % of the sum of magnitudes, and the others are of the size of an ordinary loss
    and no better than when they began. When they do get better, that is information only.

    ## False alarms
    Small regularisers beside the main loss are meant to be small: by value, components below 0.05
    are not asked about. A large constant with a small gradient dominates nothing, so where
    gradients are known, values are not judged. Components that are exactly 0 are another matter.

    ## What to do
    Compare the gradients the components send, not their values. Look for a sum where the others
    are means, a unit (pixels, milliseconds) that makes one large, a weight with a zero too many.
    Then set the weights so that the gradients are of one order, or learn them.

    ## References
    Kendall, Gal and Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses"; Chen et al.,
    "GradNorm"; NVIDIA-NeMo/Automodel#1408.
    """

    code = "HD107"
    name = "dominant-loss-component"
    summary = "one component's gradient or value swamps the others for good"
    needs = Needs(any_of=("loss/*", "component_grad/*"))

    @dataclass(frozen=True)
    class Limits:
        gradient_ratio: float = 1e4
        """Norm of one component's gradient over that of the next."""
        value_share: float = 0.99
        """Share of the sum of magnitudes."""
        material: float = 0.05
        """By value, a component smaller than this is taken for a regulariser."""
        window: int = 200
        gradients: int = 3
        """So many steps whose gradients are known."""

    def start(self) -> None:
        self.leader = ""
        self.led_since: Moment | None = None
        self.shares = Window(self.limits.window)
        """Of the leader, since it leads."""
        self.starts: dict[str, float] = {}
        self.recent: dict[str, Window] = {}
        self.gradients: dict[str, Window] = {}
        self.first_gradient: Moment | None = None
        self.told: set[str] = set()

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        if record.held:
            return
        values: dict[str, float] = {}
        for key, value in record.values.items():
            if key.startswith(VALUE):
                values[key] = abs(value)
            elif key.startswith(GRADIENT) and value > 0:
                self.first_gradient = self.first_gradient or moment_of(record)
                self.gradients.setdefault(key.removeprefix(GRADIENT), Window(FIRST)).push(value)
        if self.gradients:
            yield from self._by_gradient(self.limits.gradients)
        elif len(values) > 1:
            yield from self._by_value(record, values)

    def finish(self) -> Iterable[Finding]:
        yield from self._by_gradient(1)

    def _by_gradient(self, enough: int) -> Iterable[Finding]:
        norms = {
            name: window.median for name, window in self.gradients.items() if len(window) >= enough
        }
        if len(norms) < 2 or "gradient" in self.told:
            return
        second, first = sorted(norms, key=norms.__getitem__)[-2:]
        ratio = norms[first] / norms[second]
        if ratio < self.limits.gradient_ratio / 10:
            return
        self.told.add("gradient")
        assert self.first_gradient is not None
        yield self.find(
            record_at(self.first_gradient),
            f"component {first} sends a gradient of norm {say(norms[first])}, {say(ratio)} times that "
            f"of the next, {second} (limit {say(self.limits.gradient_ratio)}): it decides every step "
            "alone",
            subject=first,
            severity=None if ratio >= self.limits.gradient_ratio else Severity.INFO,
            remedies=REMEDIES,
            component=first,
            ratio=ratio,
            limit=self.limits.gradient_ratio,
            gradient_norms=dict(sorted(norms.items())[:20]),
        )

    def _by_value(self, record: StepRecord, values: dict[str, float]) -> Iterable[Finding]:
        total = sum(values.values())
        if not 0 < total < math.inf:
            return
        for key, value in values.items():
            window = self.recent.setdefault(key, Window(EVERY))
            window.push(value)
            if key not in self.starts and len(window) == FIRST:
                self.starts[key] = window.median
        leader = max(values, key=values.__getitem__)
        if leader != self.leader:
            self.leader, self.led_since = leader, moment_of(record)
            self.shares.clear()
        self.shares.push(values[leader] / total)
        if self.shares.full and record.seq % EVERY == 0 and leader not in self.told:
            yield from self._judge(leader, values)

    def _judge(self, leader: str, values: dict[str, float]) -> Iterable[Finding]:
        share = self.shares.quantile(0.05)
        material = [
            key
            for key in values
            if key != leader and self.recent[key].median >= self.limits.material
        ]
        if share < self.limits.value_share or not material or not self.starts.keys() >= values.keys():
            return
        self.told.add(leader)
        starve = [key for key in material if self.recent[key].median > 0.95 * self.starts[key]]
        swamped = len(starve) == len(material) or share > 1 - (1 - self.limits.value_share) / 100
        name = leader.removeprefix(VALUE)
        others = ", ".join(key.removeprefix(VALUE) for key in (starve or material)[:20])
        then = "are no better than when they began" if starving else "get better all the same"
        assert self.led_since is not None
        yield self.find(
            record_at(self.led_since),
            f"component {name} is {say(100 * share)} % of the loss or more (limit "
            f"{say(100 * self.limits.value_share)} %) for {len(self.shares)} steps and the others "
            f"({others}) {then}",
            subject=name,
            severity=None if starving else Severity.INFO,
            remedies=REMEDIES,
            component=name,
            share=share,
            limit=self.limits.value_share,
            starving=[key.removeprefix(VALUE) for key in starve[:20]],
        )


REMEDIES = (
    "Compare the gradients the components send, not their values, and set the weights so that they "
    "are of one order.",
    "Look for a sum where the others are means, a unit that makes one large, a weight with a zero too "
    "many.",
)
