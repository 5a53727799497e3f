from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.check import Check, Needs
from headway.core.facts import LISTED, Place, say_list
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import LossComponentFacts
from headway.core.numbers import say
from headway.core.records import Moment, SetupRecord, StepRecord, moment_of, record_at
from headway.core.signals import Signal

VALUE, GRADIENT = "loss/", "component_grad/"
FEWEST = 5
"""Smallest number of values, however many steps each of them covers."""
ROWS = 10
"""In another tool's log: rows of 0 up to its end that are enough, for any number of steps."""
EXACT_DIGITS = 6
"""With fewer digits, a value that changes slowly looks constant."""

OPTIONAL = re.compile(
    r"aux|(^|_)(z|kl|kld|ent|entropy|mtp|moe|reg|lb|l1|l2|tv|adv|gan|disc)(_|$)|router|balanc"
    r"|penalty|regular|decay|depth|normal|lpips|percep|distort|smooth|unsup|ptx"
)
"""Components that frameworks log as 0 when they are switched off: information only in a log."""


class DeadLossComponent(Check):
    """A named component of the loss has no effect: it is 0, never changes, or has no gradient.

    ## What it checks
    Every named component (`loss/<name>`): whether it is ever different from 0, whether it ever
    changes, and, if its gradient is known, whether any of it reaches the weights. A preflight also
    finds scalars that were meant for the loss but are not part of what is trained.

    ## Why it matters
    The total loss falls, but one objective is not being trained. This is usually noticed only when
    the final model is evaluated.

    ## How it is measured
    Exactly, from the first value on: 0 for 50 steps, or one other constant for 200 steps, while the
    total or another component changes. A gradient of exactly 0 counts after three steps (at the end
    of a preflight, after one) if another component has a non-zero gradient. A preflight reads the
    components from the autograd graph of the loss. It reports a component whose weight is 0; a
    value that is added to the sum without its graph, or that is 0 because it compares something
    with itself or, in six steps from the first on, two values that are equal; a part whose gradient
    reaches only parameters of an optimizer that does not step next, and is cleared before it does
    (a generator's loss on a detached sample); a loss that is computed and never added, if some
    parameters would be trained by it alone, if the sum it was added to is not used, or if nothing
    reads it; and a constant 0 (`torch.zeros(())`) that is added in its place in all of 50 steps. A
    router's balancing loss is dead if it falls only because the scores shrink: their sum has
    halved, and the experts are chosen as unevenly as before.

    ## False alarms
    A component that ever changed is alive: a hinge loss may end at 0, a triplet loss may have empty
    batches. A component that is constant at a number other than 0 may have reached a floor (free
    bits, a margin), so that is a warning. A component that is meant to start later is reported;
    ignore it. In logs with few digits only components of 0 are reported, not other constants.
    Copies made for logging, metrics computed next to the loss, losses with their own backward pass
    and a computed weight that starts at 0 are not dead. Neither is the 0 that a sum starts from, or
    a 0 under a condition on steps or epochs. A constant 0 that does not depend on a condition on
    the data may be a part that is switched off: that is information.

    ## What to do
    Trace the component back to its inputs: look for an empty selection, a missing model output, a
    weight of 0, a discarded result, or `detach()`, `.item()`, `no_grad` or `argmax` on the way.

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
        """Steps for which a component must be exactly 0, from its first value on."""
        constant_steps: int = 200
        """Steps for which it must be exactly one other number."""
        gradients: int = 3
        """Steps for which its gradient must be exactly 0."""

    def start(self) -> None:
        self.first: dict[str, tuple[Moment, float]] = {}
        """Where each value or gradient first occurred, and its constant value since then."""
        self.counts: dict[str, int] = {}
        self.alive: set[str] = set()
        """Keys that have changed, and so are alive for the rest of the run."""
        self.total: float | None = None
        self.total_moves = False
        self.reported: set[str] = set()
        self.places: dict[str, Any] = {}
        """The line that computes each component, if known."""

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            self._learn_place(record)
            yield from self._judge_graph(record)
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
                waits = self.context.rows  # it may start late (annealing): judge at the end
                if key not in self.reported and key not in self.alive and not waits:
                    yield from self._judge(key, self.limits.gradients)

    def _learn_place(self, record: SetupRecord) -> None:
        facts = LossComponentFacts.of(record)
        name, place = facts.name, record.facts.get("place")
        if facts.kind == "part" and name and isinstance(place, Mapping):
            self.places.setdefault(name, dict(place))

    def _judge_graph(self, record: SetupRecord) -> Iterable[Finding]:
        """Report what the autograd graph of the loss shows about a component."""
        facts = LossComponentFacts.of(record)
        kind, name = facts.kind, facts.name
        if (
            record.topic != "loss-component"
            or kind not in GRAPH_FAULTS
            or not name
            or name in self.reported
        ):
            return
        self.reported.add(name)
        steps, first = facts.steps or 1, facts.first_step
        own, weight = facts.own, facts.weight
        what, cure = GRAPH_FAULTS[kind]
        if weight is not None:
            what += f" (about {say(weight)} times its value)"
        before, after = facts.scores_before, facts.scores_after
        if before is not None and after is not None:
            what += f" (their sum from {say(before)} to {say(after)})"
        if facts.reached:
            what += f" ({say_list(facts.reached)})"
        if own:
            what += f"; only it would train {say_list(own)}"
        at = StepRecord(record.segment, record.seq, min(first or 0, record.step), rank=record.rank)
        yield self.find(
            at,
            f"component {name} {what}, in all {steps} inspected steps: it has no effect on "
            f"{'them' if kind == 'unstepped' else 'training'}",
            subject=name,
            severity=Severity.INFO if kind == "empty" and not facts.on_data else None,
            where=facts.locate(rank=record.rank),
            remedies=[cure],
            component=name,
            kind=kind,
            steps=steps,
            parameters=own[:LISTED],
            weight=weight,
        )

    def finish(self) -> Iterable[Finding]:
        for key in self.first:
            if key in self.reported | self.alive:
                continue
            if key.startswith(GRADIENT) or self.context.rows:
                yield from self._judge(key, 1)

    def _count(self, record: StepRecord, key: str, value: float) -> None:
        _, before = self.first.setdefault(key, (moment_of(record), value))
        self.counts[key] = self.counts.get(key, 0) + 1
        # A gradient is alive if it is not 0, a value if it changes.
        if value != before or (key.startswith(GRADIENT) and value != 0):
            self.alive.add(key)

    def _judge(self, key: str, gradients: int) -> Iterable[Finding]:
        count, constant = self.counts[key], self.first[key][1]
        if key.startswith(GRADIENT):
            dead = count >= gradients and any(other.startswith(GRADIENT) for other in self.alive)
            # A component that is 0 itself (an empty batch) may have no gradient for a step or two.
            value = VALUE + key.removeprefix(GRADIENT)
            idle = self.first.get(value, (None, 1.0))[1] == 0 and value not in self.alive
            dead = dead and (count >= self.limits.gradients or not idle)
        else:
            signal = self.context.header.signals.get(key, Signal())
            enough = self.limits.zero_steps if constant == 0 else self.limits.constant_steps
            exact = constant == 0 or (signal.digits or EXACT_DIGITS) >= EXACT_DIGITS
            others_move = self.total_moves or any(other.startswith(VALUE) for other in self.alive)
            steps = count * self.context.header.steps_per_value(key)
            if self.context.rows and constant == 0 and count >= ROWS:
                steps = max(steps, enough)
            dead = exact and others_move and count >= FEWEST and steps >= enough
        if dead:
            self.reported.add(key)
            yield self._finding(key, constant, count)

    def _finding(self, key: str, constant: float, count: int) -> Finding:
        if key.startswith(GRADIENT):
            what, cure = "has no gradient: its norm is exactly 0", CUT
        elif constant == 0:
            digits = self.context.header.signals.get(key, Signal()).digits
            what = "is exactly 0" if digits is None else "is 0 in every digit logged"
            cure = EMPTY
        else:
            what, cure = f"is exactly {say(constant, 6)} and never changes", PINNED
        component = key.removeprefix(GRADIENT).removeprefix(VALUE)
        pinned = cure is PINNED
        severity = Severity.WARNING if pinned else None
        if self.context.rows and OPTIONAL.search(component):
            severity = Severity.INFO
        return self.find(
            record_at(self.first[key][0]),
            f"component {component} {what}, in all {count} values so far, while the rest of the "
            f"loss "
            "changes: it has no effect on training",
            subject=component,
            severity=severity,
            where=Place.read(self.places.get(component)).where(rank=self.first[key][0][3]),
            remedies=[cure],
            component=component,
            signal=key,
            value=constant,
            count=count,
        )


EMPTY = "Trace it back: look for an empty selection, a missing model output, or a weight of 0."
PINNED = (
    "Check whether it is computed from constants or frozen weights, or has reached a floor (a "
    "clamp, "
    "free bits, a margin), where its gradient is 0."
)
CUT = (
    "Look for detach(), .item(), .data, no_grad, numpy or argmax between the weights and this "
    "component, and for a weight of 0."
)
GRAPH_FAULTS = {
    "weightless": (
        "is computed with its graph but multiplied by a weight of exactly 0",
        "Set the intended weight, or remove the component and save the time.",
    ),
    "detached": (
        "is added to the loss as a plain number, without its graph",
        "Add the tensor itself: look for .item(), float(), .detach(), .data, torch.tensor(…) or "
        "no_grad between the model and the sum.",
    ),
    "empty": (
        "is never computed: this line adds a constant 0 in its place",
        "Check the condition above that line: it selects nothing, in any step. Provide what it "
        "needs (a second sample of each class, a positive, a missing model output), or remove the "
        "term.",
    ),
    "gamed": (
        "falls only because all scores shrink; the experts are chosen as unevenly as before",
        "Use scores that sum to 1 over the experts (a softmax, or divide by their sum): otherwise "
        "the minimum is at scores of 0.",
    ),
    "unmoved": (
        "sends its gradient only to parameters that the next step() does not move",
        "Pass the tensor itself, not a detached copy, to the model that judges it; or call step() "
        "of the optimizer that holds those parameters before their gradients are cleared.",
    ),
    "unstepped": (
        "reaches the parameters of an optimizer whose step() is never called; this line steps "
        "another one",
        "Call step() of the optimizer that holds those parameters here.",
    ),
    "same": (
        "is 0 and has no graph: it compares values with themselves, and none depends on a trained "
        "parameter",
        "Compute one side from the model that is trained (the student, the prediction).",
    ),
    "equal": (
        "compares two values that are equal, so it is 0 and has no gradient",
        "Compare values that differ: look for an augmentation that changes nothing, or one output "
        "on both sides.",
    ),
    "discarded": (
        "is computed but never becomes part of a loss that backward() is called on",
        "Add it to the loss and keep the result: `loss = loss + weight * part`. `loss.add(…)` "
        "alone has no effect.",
    ),
}
