from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.check import Check, Needs
from headway.core.facts import Facts
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Moment, SetupRecord, StepRecord, moment_of, record_at
from headway.core.window import Window

VALUE, GRADIENT = "loss/", "component_grad/"
EVERY = 4
"""Only every so-many-th step is looked at: what lasts is seen all the same."""
FIRST, RECENT = 10, 25
"""A component's start level is the median of so many first looks, its present one of the latest."""
TRADED_OFF = 2.0
"""A component that rose by more is in play: the KL term of an autoencoder rises as it learns."""


class DominantLossComponent(Check):
    """One component of the loss swamps the others for good.

    ## What it checks
    The share of each named component: of the gradient, where the gradient of each component is
    known, else of the value.

    ## Why it matters
    An optimizer sees only the sum. A component ten thousand times the others decides every step
    alone, and their goals starve, although each of them is in the loss and has a gradient.

    ## How it is measured
    By gradient: the median norm of one component is 10000 times that of the next (from 1000 times
    on it is told as information); or, over 40 steps, 100 times nearly always, while the others
    have no small weight of their own and get no better. By value, which is weaker evidence: for
    200 steps the others together are less than 1 % of the sum of magnitudes, and either no better
    than when they began, or less than 0.01 %. Otherwise, when they do get better, it is
    information only.

    ## False alarms
    Small regularisers beside the main loss are meant to be small: by value, components below 0.05
    are not asked about. A large constant with a small gradient dominates nothing, so where
    gradients are known, values are not judged. Components that are exactly 0 are another matter.
    One that was given a weight below a tenth is meant to be small.

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
    needs = Needs(
        any_of=("loss/*", "component_grad/*"),
        kinds=(StepRecord, SetupRecord),
        topics=("loss-component",),
    )
    explains = ("HD105", "HD512")

    @dataclass(frozen=True)
    class Limits:
        gradient_ratio: float = 1e4
        """Norm of one component's gradient over that of the next."""
        starving_ratio: float = 100.0
        """The same, where the others have had time to get better and did not."""
        starving_steps: int = 40
        """So long."""
        small_weight: float = 0.1
        """A component with a smaller weight in the loss is meant to be small."""
        rest: float = 0.01
        """By value, what the others together may be of the loss without a question …"""
        rest_at_all: float = 1e-4
        """… and what they may be even if they get better."""
        material: float = 0.05
        """By value, a component smaller than this is taken for a regulariser."""
        window: int = 200
        gradients: int = 3
        """So many steps whose gradients are known."""

    def start(self) -> None:
        self.seen = 0
        self.leader = ""
        self.led_since: Moment = (0, 0, 0, 0)
        self.rests = Window(max(self.limits.window // EVERY, 1))
        """Share of all the others, since the leader leads."""
        self.starts: dict[str, float] = {}
        self.recent: dict[str, Window] = {}
        self.gradients: dict[str, Window] = {}
        self.weights: dict[str, float] = {}
        """Of the components whose weight in the loss is known."""
        self.places: dict[str, Any] = {}
        """The line each component is computed at, where it is known."""
        self.leads: list[str] = []
        """Of each look, who sent a gradient far above the others'; "" where nobody did."""
        self.told: set[str] = set()

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            facts = Facts.of(record)
            name, weight = facts.text("name"), facts.number("weight")
            if facts.text("kind") == "part" and name:
                if weight is not None:
                    self.weights[name] = abs(weight)
                if isinstance(record.facts.get("place"), Mapping):
                    self.places.setdefault(name, dict(record.facts["place"]))
            return
        if record.held and "scaler_skipped" not in record.values:
            return  # what a scaler skips on its way to its scale is as good a look as any
        look = self.seen % EVERY == 0 or self.context.header.foreign
        self.seen += 1
        if not look and self.seen > RECENT:
            return
        values: dict[str, float] = {}
        for key, value in record.values.items():
            if key.startswith(VALUE):
                values[key.removeprefix(VALUE)] = abs(value)
            elif key.startswith(GRADIENT) and value > 0:
                if not self.gradients:
                    self.led_since = moment_of(record)
                self.gradients.setdefault(key.removeprefix(GRADIENT), Window(RECENT)).push(value)
        if self.gradients:
            self._note_lead(record)
            for name, value in values.items():
                self._note_value(name, value)
            yield from self._by_gradient(self.limits.gradients)
            yield from self._starving(record)
        elif look and len(values) > 1:
            yield from self._by_value(record, values)

    def finish(self) -> Iterable[Finding]:
        yield from self._by_gradient(1)
        enough = self.context.header.foreign and len(self.rests) >= FIRST
        if enough and not self.told and self.rests.median < self.limits.rest:
            yield from self._judge(self.leader)

    def _by_gradient(self, enough: int) -> Iterable[Finding]:
        norms = {
            name: window.median for name, window in self.gradients.items() if len(window) >= enough
        }
        if len(norms) < 2 or self.told:
            return
        second, first = sorted(norms, key=norms.__getitem__)[-2:]
        ratio, limit = norms[first] / norms[second], self.limits.gradient_ratio
        meant = self.weights.get(second, 1.0) < self.limits.small_weight
        mild = ratio < limit or meant
        if ratio < limit / (1 if meant else 10) or (mild and enough > 1):
            return  # what is only worth knowing is said at the end
        message = (
            f"sends a gradient of norm {say(norms[first])}, {say(ratio)} times that of the next, "
            f"{second} (limit {say(limit)}): it decides every step alone"
        )
        yield self._finding(first, message, mild=mild, ratio=ratio, limit=limit, next=second)

    def _note_lead(self, record: StepRecord) -> None:
        norms = {
            key.removeprefix(GRADIENT): value
            for key, value in record.values.items()
            if key.startswith(GRADIENT) and 0 < value < math.inf
        }
        if len(norms) < 2:
            return
        second, first = sorted(norms, key=norms.__getitem__)[-2:]
        leads = norms[first] >= self.limits.starving_ratio * norms[second]
        self.leads = [*self.leads, first if leads else ""][-200:]

    def _starving(self, record: StepRecord) -> Iterable[Finding]:
        """One far above the others for long, and the others get no better."""
        limits = self.limits
        leader = self.leads[-1] if self.leads else ""
        often = self.leads.count(leader) >= max(0.9 * len(self.leads), 5)
        if self.told or not leader or not often:
            return
        if record.step - self.led_since[2] < limits.starving_steps:
            return
        others = [name for name in self.starts if name != leader]
        meant = [name for name in others if self.weights.get(name, 1.0) >= limits.small_weight]
        if not meant or any(name not in self.gradients for name in meant):
            return
        ratios = [
            self.recent[name].median_of_last(8) / max(self.starts[name], 1e-30) for name in meant
        ]
        material = all(self.starts[name] >= limits.material for name in meant)
        if not material or not all(0.9 < ratio < TRADED_OFF for ratio in ratios):
            return
        message = (
            f"sends more than {say(limits.starving_ratio)} times the gradient of the others in "
            f"{self.leads.count(leader)} of {len(self.leads)} looks, and after "
            f"{record.step - self.led_since[2]} steps they ({', '.join(meant[:20])}) are no better "
            "than when they began"
        )
        yield self._finding(leader, message, mild=False, limit=limits.starving_ratio)

    def _note_value(self, name: str, value: float) -> None:
        window = self.recent.setdefault(name, Window(RECENT))
        window.push(value)
        if name not in self.starts and len(window) >= (3 if self.context.header.foreign else FIRST):
            self.starts[name] = window.median

    def _by_value(self, record: StepRecord, values: dict[str, float]) -> Iterable[Finding]:
        total = sum(values.values())
        if not 0 < total < math.inf:
            return
        for name, value in values.items():
            self._note_value(name, value)
        leader = max(values, key=values.__getitem__)
        if leader != self.leader:
            self.leader, self.led_since = leader, moment_of(record)
            self.rests.clear()
        self.rests.push(1 - values[leader] / total)
        if self.context.header.foreign:
            return  # a log is judged at its end
        if self.rests.full and leader not in self.told and self.rests.median < self.limits.rest:
            yield from self._judge(leader)

    def _judge(self, leader: str) -> Iterable[Finding]:
        limits, rest = self.limits, self.rests.quantile(0.95)
        others = [
            name
            for name, start in self.starts.items()
            if name != leader and min(self.recent[name].median, start) >= limits.material
        ]
        if rest > limits.rest or not others:
            return
        starve = [
            name
            for name in others
            if 0.9 < self.recent[name].median / self.starts[name] < TRADED_OFF
        ]
        starved = len(starve) == len(others)
        then = "are no better than when they began" if starved else "get better all the same"
        foreign = self.context.header.foreign
        length = f"{len(self.rests)} rows" if foreign else f"{limits.window} steps"
        message = (
            f"leaves the others {say(100 * rest)} % of the loss at most (limit "
            f"{say(100 * limits.rest)} %) for {length}; they ("
            f"{', '.join((starve or others)[:20])}) {then}"
        )
        mild = not starved and rest > limits.rest_at_all
        yield self._finding(leader, message, mild=mild, rest=rest, limit=limits.rest)

    def _finding(self, component: str, message: str, *, mild: bool, **evidence: Any) -> Finding:
        self.told.add(component)
        return self.find(
            record_at(self.led_since),
            f"component {component} {message}",
            subject=component,
            severity=Severity.INFO if mild else None,
            where=Facts({"place": self.places.get(component)}).where(rank=self.led_since[3]),
            remedies=[
                "Compare the gradients the components send, not their values, and set the weights "
                "so that they are of one order.",
                "Look for a sum where the others are means, a unit that makes one large, a weight "
                "with a zero too many.",
            ],
            component=component,
            **evidence,
        )
