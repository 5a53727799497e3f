from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.check import Check, Needs
from headway.core.facts import Place
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import LossComponentFacts
from headway.core.numbers import say
from headway.core.records import Moment, SetupRecord, StepRecord, moment_of, record_at
from headway.core.window import Window

VALUE, GRADIENT = "loss/", "component_grad/"
EVERY = 4
"""Only every fourth step is inspected: that is enough for something permanent."""
FIRST, RECENT = 10, 25
"""Number of first samples whose median is a component's start level, and of latest samples for
its current level."""
_PLAYERS = {
    **dict.fromkeys(("d", "disc", "dis", "discriminator"), "d"),
    **dict.fromkeys(("g", "gen", "generator"), "g"),
}
"""Names of the two losses of a GAN."""
GONE, GROWN = 0.01, 3.0
"""Share of its start level at which a discriminator's loss is gone, and the factor by which the
generator's has grown."""
TRADED_OFF = 2.0
"""A component that rises by more is being trained: an autoencoder's KL term rises as it learns."""


class DominantLossComponent(Check):
    """One component of the loss dominates the others permanently.

    ## What it checks
    The share of each named component: of the gradient, if the gradient of each component is known,
    otherwise of the value.

    ## Why it matters
    The optimizer sees only the sum. A component ten thousand times larger than the others
    alone determines every step. The other objectives are not trained, although each of them is in
    the loss and has a gradient.

    ## How it is measured
    By gradient: the median norm of one component is 10000 times that of the next (from 1000 times
    on it is information); or it is 100 times larger nearly always over 40 steps, while the others
    have no small weight of their own and do not improve. By value, which is weaker evidence: for
    200 steps the others together are less than 1 % of the sum of magnitudes, and either have not
    improved since they started or are less than 0.01 %. If they do improve, it is information only.
    In the log of a GAN: the discriminator's loss has fallen to a hundredth of its start while the
    generator's has tripled.

    ## False alarms
    Small regularisers next to the main loss are meant to be small: by value, components below 0.05
    are ignored. A large constant with a small gradient dominates nothing, so values are not judged
    if gradients are known. Components that are exactly 0 are HD106. A component with a weight below
    0.1 is meant to be small.

    ## What to do
    Compare the gradients of the components, not their values. Look for a sum where the others are
    means, a unit (pixels, milliseconds) that makes one large, or a weight with a zero too many.
    Then choose the weights so that the gradients have the same order of magnitude, or learn the
    weights.

    ## References
    Kendall, Gal and Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses"; Chen et al.,
    "GradNorm"; NVIDIA-NeMo/Automodel#1408.
    """

    code = "HD107"
    name = "dominant-loss-component"
    summary = "the gradient or value of one component dominates the others permanently"
    needs = Needs(
        any_of=("loss/*", "component_grad/*"),
        kinds=(StepRecord, SetupRecord),
        topics=("loss-component",),
    )
    explains = ("HD105", "HD512")

    @dataclass(frozen=True)
    class Limits:
        gradient_ratio: float = 1e4
        """Ratio of the largest gradient norm of a component to the next."""
        starving_ratio: float = 100.0
        """The same, if the others had time to improve and did not."""
        starving_steps: int = 40
        """Steps the others must have had to improve."""
        small_weight: float = 0.1
        """A component with a smaller weight in the loss is meant to be small."""
        rest: float = 0.01
        """By value: share of the loss below which the others together are reported."""
        rest_at_all: float = 1e-4
        """The same, below which they are reported even if they improve."""
        material: float = 0.05
        """By value: a component smaller than this counts as a regulariser."""
        window: int = 200
        gradients: int = 3
        """Number of steps with known gradients that are needed."""

    def start(self) -> None:
        self.seen = 0
        self.leader = ""
        self.led_since: Moment = (0, 0, 0, 0)
        self.rests = Window(max(self.limits.window // EVERY, 1))
        """Combined share of the others since the current component dominates."""
        self.starts: dict[str, float] = {}
        self.recent: dict[str, Window] = {}
        self.gradients: dict[str, Window] = {}
        self.weights: dict[str, float] = {}
        """Weight in the loss of each component, if known."""
        self.places: dict[str, Any] = {}
        """The line that computes each component, if known."""
        self.leads: list[str] = []
        """For each sample, the component whose gradient is far above the others; "" if none is."""
        self.reported: set[str] = set()

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            facts = LossComponentFacts.of(record)
            name, weight = facts.name, facts.weight
            if facts.kind == "part" and name:
                if weight is not None:
                    self.weights[name] = abs(weight)
                if isinstance(record.facts.get("place"), Mapping):
                    self.places.setdefault(name, dict(record.facts["place"]))
            return
        if record.held and "scaler_skipped" not in record.values:
            return  # steps that a scaler skips while it finds its scale are valid samples
        look = self.seen % EVERY == 0 or self.context.rows
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
        if self.context.rows and not self.reported:
            yield from self._won()
        enough = self.context.rows and len(self.rests) >= FIRST
        if enough and not self.reported and self.rests.median < self.limits.rest:
            yield from self._judge(self.leader)

    def _by_gradient(self, enough: int) -> Iterable[Finding]:
        norms = {
            name: window.median for name, window in self.gradients.items() if len(window) >= enough
        }
        if len(norms) < 2 or self.reported:
            return
        second, first = sorted(norms, key=norms.__getitem__)[-2:]
        ratio, limit = norms[first] / norms[second], self.limits.gradient_ratio
        meant = self.weights.get(second, 1.0) < self.limits.small_weight
        mild = ratio < limit or meant
        if ratio < limit / (1 if meant else 10) or (mild and enough > 1):
            return  # information is reported at the end
        message = (
            f"has a gradient of norm {say(norms[first])}, {say(ratio)} times that of the "
            f"next, {second} (limit {say(limit)}): it alone determines every step"
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
        """Report a component far above the others for long, while the others do not improve."""
        limits = self.limits
        leader = self.leads[-1] if self.leads else ""
        often = self.leads.count(leader) >= max(0.9 * len(self.leads), 5)
        if self.reported or not leader or not often:
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
            f"has more than {say(limits.starving_ratio)} times the gradient of the others "
            f"in {self.leads.count(leader)} of {len(self.leads)} sampled steps; after "
            f"{record.step - self.led_since[2]} steps the others ({', '.join(meant[:20])}) "
            f"have not improved"
        )
        yield self._finding(leader, message, mild=False, limit=limits.starving_ratio)

    def _note_value(self, name: str, value: float) -> None:
        window = self.recent.setdefault(name, Window(RECENT))
        window.push(value)
        if name not in self.starts and len(window) >= (3 if self.context.rows else FIRST):
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
        if self.context.rows:
            return  # a log is judged at its end
        if self.rests.full and leader not in self.reported and self.rests.median < self.limits.rest:
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
        then = "have not improved" if starved else "still improve"
        length = f"{len(self.rests)} rows" if self.context.rows else f"{limits.window} steps"
        message = (
            f"leaves at most {say(100 * rest)} % of the loss to the others (limit "
            f"{say(100 * limits.rest)} %) for {length}; the others "
            f"({', '.join((starve or others)[:20])}) {then}"
        )
        mild = not starved and rest > limits.rest_at_all
        yield self._finding(leader, message, mild=mild, rest=rest, limit=limits.rest)

    def _won(self) -> Iterable[Finding]:
        """For a log: the discriminator of a GAN whose loss is gone while the generator's grows."""
        names = {_PLAYERS[key]: name for name in self.starts if (key := name.lower()) in _PLAYERS}
        if len(names) < 2 or any(len(self.recent[name]) < RECENT for name in names.values()):
            return
        (lost, lost_first), (gen, gen_first) = (
            (self.recent[names[side]].median, self.starts[names[side]]) for side in "dg"
        )
        gone = lost <= GONE * lost_first and lost_first >= self.limits.material
        if not gone or gen < GROWN * gen_first:
            return
        message = (
            f"went from {say(gen_first)} to {say(gen)} while {names['d']} fell from "
            f"{say(lost_first)} to {say(lost)}: the discriminator has won, and the generator gets "
            "no useful gradient"
        )
        yield self._finding(names["g"], message, mild=False, generator=gen, discriminator=lost)

    def _finding(self, component: str, message: str, *, mild: bool, **evidence: Any) -> Finding:
        self.reported.add(component)
        return self.find(
            record_at(self.led_since),
            f"component {component} {message}",
            subject=component,
            severity=Severity.INFO if mild else None,
            where=Place.read(self.places.get(component)).where(rank=self.led_since[3]),
            remedies=[
                "Compare the gradients of the components, not their values, and set the weights "
                "so that the gradients have the same order of magnitude.",
                "Look for a sum where the others are means, a unit that makes one component "
                "large, or a weight with a zero too many.",
            ],
            component=component,
            **evidence,
        )
