from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.check import Check, Needs
from headway.core.facts import LISTED, Facts, say_list
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Moment, SetupRecord, StepRecord, moment_of, record_at
from headway.core.signals import Signal

VALUE, GRADIENT = "loss/", "component_grad/"
FEWEST = 5
"""So many values there must be, however many steps each of them covers."""
ROWS = 10
"""Of another tool's log, so many rows to its end are enough for a 0, whatever they stand for."""
EXACT_DIGITS = 6
"""With fewer digits a value that merely moves slowly looks constant."""

OPTIONAL = re.compile(
    r"aux|(^|_)(z|kl|kld|ent|entropy|mtp|moe|reg|lb|l1|l2)(_|$)|router|balanc|penalty|regular|decay"
)
"""Parts that frameworks log as 0 where they are switched off; in a log that is worth knowing."""


class DeadLossComponent(Check):
    """A named component of the loss does nothing: it is 0, never changes, or sends no gradient.

    ## What it checks
    Every named component (`loss/<name>`): whether it was ever anything but 0, whether it ever
    moved, and, where its gradient is known, whether any of it reaches the weights. A preflight
    also sees scalars that were meant for the loss and are not part of what trains.

    ## Why it matters
    The run looks healthy, the total falls, and one of its goals is not being trained. It shows
    only in the final model: the objective somebody wrote was never part of the training.

    ## How it is measured
    From the first value on, exactly: 0 for 50 steps, or one same other number for 200 steps, while
    the total or another component moves. A gradient of exactly 0 counts where three steps, and
    at the end of a preflight any one, show nothing else while another component sends one.
    In a preflight the graph of the loss tells its parts: a part whose weight is 0; a value that
    is in the sum without its graph; a loss that was computed and never added, where it alone would
    train some parameters, where the sum it was added to is not used, or where nobody looks at it;
    a fresh 0 (`torch.zeros(())`) that is added in its place at 50 steps, and nothing else ever.
    A router's balancing loss is dead where it falls by smaller scores alone: their sum has halved,
    and the counts of the choice are as uneven as they were.

    ## False alarms
    A component that ever moved is alive: a hinge may end at 0, a triplet loss may have empty
    batches. One that never moved from a number other than 0 may rest on a floor (free bits, a
    margin), so that is a warning. A component meant to start later is reported; ignore it. Logs
    with few digits say when a component was never anything but 0, and nothing about constants.
    Copies for the log, metrics beside the loss, losses with a backward pass of their own and a
    weight that is computed and begins at 0 are not dead, nor is a 0 that a sum begins with or that
    stands under a condition about steps or epochs. A fresh 0 that no condition on the data leads to
    may be a part that is switched off: that is information.

    ## What to do
    Follow the component back: an empty selection, a model output that is missing, a weight of 0,
    a result that is thrown away; `detach()`, `.item()`, `no_grad` or `argmax` on the way to it.

    ## References
    The reports behind it: a CPE loss of 0.00 in every epoch of a detector; huggingface/trl#6085;
    NVIDIA-NeMo/Automodel#1408.
    """

    code = "HD106"
    name = "dead-loss-component"
    severity = Severity.ERROR
    summary = "a named component is identically 0 or constant, or sends no gradient"
    needs = Needs(
        any_of=("loss/*", "component_grad/*"),
        kinds=(StepRecord, SetupRecord),
        topics=("loss-component",),
    )
    explains = ("HD204", "HD205", "HD306", "HD107")

    @dataclass(frozen=True)
    class Limits:
        zero_steps: int = 50
        """Steps a component must have been exactly 0, from its first value on."""
        constant_steps: int = 200
        """Steps it must have been exactly one other number."""
        gradients: int = 3
        """Steps at which its gradient must have been exactly 0."""

    def start(self) -> None:
        self.first: dict[str, tuple[Moment, float]] = {}
        """Where each value or gradient was first seen, and the number it has had ever since."""
        self.counts: dict[str, int] = {}
        self.alive: set[str] = set()
        """What had a second number, and so is alive for good."""
        self.total: float | None = None
        self.total_moves = False
        self.told: set[str] = set()
        self.places: dict[str, Any] = {}
        """The line each component is computed at, where it is known."""

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            self._learn_place(record)
            yield from self._seen(record)
            return
        if record.held:
            return
        values = record.values
        if not self.total_moves and math.isfinite(values.get("loss", math.nan)):
            self.total_moves = self.total not in (None, values["loss"])
            self.total = values["loss"]
        for key, value in values.items():
            if not key.startswith((VALUE, GRADIENT)) or key in self.alive:
                continue
            if math.isfinite(value):
                self._count(record, key, value)
                waits = self.context.header.foreign  # it may begin late (annealing): the end tells
                if key not in self.told and key not in self.alive and not waits:
                    yield from self._judge(key, self.limits.gradients)

    def _learn_place(self, record: SetupRecord) -> None:
        facts = Facts.of(record)
        name, place = facts.text("name"), record.facts.get("place")
        if facts.text("kind") == "part" and name and isinstance(place, Mapping):
            self.places.setdefault(name, dict(place))

    def _seen(self, record: SetupRecord) -> Iterable[Finding]:
        """What the graph of the loss has shown about a component."""
        facts = Facts.of(record)
        kind, name = facts.text("kind"), facts.text("name")
        if record.topic != "loss-component" or kind not in SEEN or not name or name in self.told:
            return
        self.told.add(name)
        steps, first = facts.whole("steps") or 1, facts.whole("first_step")
        own, weight = facts.texts("own"), facts.number("weight")
        what, cure = SEEN[kind]
        if weight is not None:
            what += f" (about {say(weight)} times its value)"
        before, after = facts.number("scores_before"), facts.number("scores_after")
        if before is not None and after is not None:
            what += f" (their sum from {say(before)} to {say(after)})"
        if own:
            what += f"; {say_list(own)} would learn from it alone"
        at = StepRecord(record.segment, record.seq, min(first or 0, record.step), rank=record.rank)
        yield self.find(
            at,
            f"component {name} {what}, in all {steps} steps looked at: it has no part in this "
            "training",
            subject=name,
            severity=Severity.INFO if kind == "empty" and not facts.flag("on_data") else None,
            where=facts.where(rank=record.rank),
            remedies=[cure],
            component=name,
            kind=kind,
            steps=steps,
            parameters=own[:LISTED],
            weight=weight,
        )

    def finish(self) -> Iterable[Finding]:
        for key in self.first:
            if key in self.told | self.alive:
                continue
            if key.startswith(GRADIENT) or self.context.header.foreign:
                yield from self._judge(key, 1)

    def _count(self, record: StepRecord, key: str, value: float) -> None:
        _, before = self.first.setdefault(key, (moment_of(record), value))
        self.counts[key] = self.counts.get(key, 0) + 1
        # A gradient is alive by not being 0; a value is by moving.
        if value != before or (key.startswith(GRADIENT) and value != 0):
            self.alive.add(key)

    def _judge(self, key: str, gradients: int) -> Iterable[Finding]:
        count, constant = self.counts[key], self.first[key][1]
        if key.startswith(GRADIENT):
            dead = count >= gradients and any(other.startswith(GRADIENT) for other in self.alive)
            # A component that is 0 itself (an empty batch) may send nothing in a step or two.
            value = VALUE + key.removeprefix(GRADIENT)
            idle = self.first.get(value, (None, 1.0))[1] == 0 and value not in self.alive
            dead = dead and (count >= self.limits.gradients or not idle)
        else:
            signal = self.context.header.signals.get(key, Signal())
            enough = self.limits.zero_steps if constant == 0 else self.limits.constant_steps
            exact = constant == 0 or (signal.digits or EXACT_DIGITS) >= EXACT_DIGITS
            others_move = self.total_moves or any(other.startswith(VALUE) for other in self.alive)
            steps = count * (signal.steps if self.context.header.foreign else signal.span)
            if self.context.header.foreign and constant == 0 and count >= ROWS:
                steps = max(steps, enough)
            dead = exact and others_move and count >= FEWEST and steps >= enough
        if dead:
            self.told.add(key)
            yield self._finding(key, constant, count)

    def _finding(self, key: str, constant: float, count: int) -> Finding:
        if key.startswith(GRADIENT):
            what, cure = "sends no gradient: its norm is exactly 0", CUT
        elif constant == 0:
            digits = self.context.header.signals.get(key, Signal()).digits
            what = "is exactly 0" if digits is None else "is 0 in every digit logged"
            cure = EMPTY
        else:
            what, cure = f"is exactly {say(constant, 6)} and never moves", PINNED
        component = key.removeprefix(GRADIENT).removeprefix(VALUE)
        pinned = cure is PINNED
        severity = Severity.WARNING if pinned else None
        if self.context.header.foreign and OPTIONAL.search(component):
            severity = Severity.INFO
        return self.find(
            record_at(self.first[key][0]),
            f"component {component} {what}, in all {count} values since it began, while the rest "
            "of the loss trains: it has no part in this training",
            subject=component,
            severity=severity,
            where=Facts({"place": self.places.get(component)}).where(rank=self.first[key][0][3]),
            remedies=[cure],
            component=component,
            signal=key,
            value=constant,
            count=count,
        )


EMPTY = (
    "Follow it back: it is computed from an empty selection, from a model output that is missing, "
    "or multiplied by a weight of 0."
)
PINNED = (
    "Look whether it is computed from constants or frozen weights, or rests on a floor (a clamp, "
    "free bits, a margin), where its gradient is 0."
)
CUT = (
    "Look for detach(), .item(), .data, no_grad, numpy or argmax between the weights and this "
    "component, and for a weight of 0."
)
SEEN = {
    "weightless": (
        "is computed with its graph and multiplied by a weight of exactly 0",
        "Give it the weight it is meant to have, or leave it out and save the time.",
    ),
    "detached": (
        "is in the sum as a plain number, without its graph",
        "Add the tensor itself: look for .item(), float(), .detach(), .data, torch.tensor(…) or "
        "no_grad between the model and the sum.",
    ),
    "empty": (
        "is never computed: what joins the loss is a fresh 0 that the line named here makes",
        "Look at the condition above that line: it finds nothing to compare, step after step. "
        "Give the batch what it looks for (a second sample of each class, a positive, a model "
        "output that is missing), or leave the term out.",
    ),
    "gamed": (
        "falls because all scores shrink, while the choice between experts is as uneven as before",
        "Balance with scores that sum to 1 over the experts (a softmax, or divide by their sum): "
        "otherwise it is lowest where all scores are 0.",
    ),
    "discarded": (
        "is computed and never becomes part of a loss that backward is called on",
        "Add it to the loss and keep the result: `loss = loss + weight * part`. `loss.add(…)` "
        "alone changes nothing.",
    ),
}
