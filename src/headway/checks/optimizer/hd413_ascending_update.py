from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import BAD_STEPS, NONFINITE_OR_RANK
from headway.checks.update_trial import OBJECTIVE, TRIAL, TriedUpdate, setup_moment
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.optimizer_facts import ObjectiveFacts, ObjectivePart
from headway.core.records import Moment, SetupRecord, record_at

TURNED = (-1.1, -0.9)
"""Ratio of the measured slope to that of the gradient, if all gradients are negated."""
WHOLE = 0.25
"""Largest relative difference between the known losses and the total."""


class AscendingUpdate(Check):
    """The update raises the loss on its own batch at any step size: a sign is flipped.

    ## What it checks
    How an update changes the loss of the batch it was computed from; and the sign with which a
    torch loss function enters the tensor that `backward` is called on.

    ## Why it matters
    A flipped sign trains the model to be as wrong as possible. The loss may rise so slowly that it
    looks like a learning rate that is too high, but no learning rate fixes it.

    ## How it is measured
    After a step the loss is computed again at small parts of its update. It must rise at all of
    them, in every one of at least 3 trials including the first step: a first step must lower the
    loss, regardless of momentum and noise. A loss that enters with a negative weight is reported if
    the total contains nothing else, in 2 steps.

    ## False alarms
    If several optimizers step, one may ascend on purpose (GANs, minimax). `maximize=True` is meant
    for rewards: it is reported only if a torch loss function is maximised. Gradient reversal layers
    change the gradient in the backward pass and are not judged, nor are updates that mostly shrink
    the weights. An attack on an input does not train a model. Entropy bonuses, -ELBO and -reward
    contain no negative loss function.

    ## What to do
    Look for `p.grad.neg_()`, a `+` where the step subtracts, `maximize=True`, or a minus before the
    loss.

    ## References
    TheDeepChecker, "sign flipped" among its seeded faults.
    """

    code = "HD413"
    name = "ascending-update"
    severity = Severity.ERROR
    summary = "the update raises the loss on its own batch at any step size"
    needs = Needs(kinds=(SetupRecord,), topics=(TRIAL, OBJECTIVE))
    explains = (
        *BAD_STEPS,
        *NONFINITE_OR_RANK,
        "HD403",
        "HD105",
        "HD113",
        "HD317",
        "HD318",
        "HD512",
        "HD404",
        "HD509",
    )

    @dataclass(frozen=True)
    class Limits:
        trials: int = 3
        """Trials that must agree."""
        objectives: int = 2
        """Steps in which a loss must enter with the wrong sign."""

    def start(self) -> None:
        self.uphill: dict[int, int] = {}
        """Trials that went uphill, by optimizer."""
        self.cleared: set[int] = set()
        """Optimizers that went downhill, or that ascend on purpose."""
        self.onset: dict[int, Moment] = {}
        self.negative = 0
        self.negative_onset: Moment | None = None
        self.reported = False

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if self.reported:
            return
        if record.topic == OBJECTIVE:
            yield from self._judge_objective(record, ObjectiveFacts.of(record))
            return
        tried = TriedUpdate.of(record)
        if tried is not None and not tried.facts.maximize:
            yield from self._judge_trial(record, tried)

    def _judge_trial(self, record: SetupRecord, tried: TriedUpdate) -> Iterable[Finding]:
        number = tried.facts.number or 0
        if number in self.cleared or tried.slope is None:
            return
        if not self._climbs(tried):
            self.cleared.add(number)
            return
        self.uphill[number] = self.uphill.get(number, 0) + 1
        self.onset.setdefault(number, setup_moment(record))
        if self.uphill[number] >= self.limits.trials:
            self.reported = True
            yield self._climbing(self.onset[number], tried, self.uphill[number])

    def _climbs(self, tried: TriedUpdate) -> bool:
        agreement = tried.agreement
        if tried.slope is None or tried.slope <= 0 or agreement is None:
            return False
        turned = TURNED[0] <= agreement <= TURNED[1]
        small = [loss for at, loss in tried.losses.items() if at <= 1]
        return (
            tried.alone
            and (tried.faithful or turned)
            and tried.shrinks < 0.5
            and all(loss >= tried.loss - tried.noise for loss in small)
        )

    def _climbing(self, onset: Moment, tried: TriedUpdate, count: int) -> Finding:
        stepped = tried.facts.stepped_slope
        agreement = tried.agreement or 1.0
        if agreement < 0:
            what = "the gradients are negated during the backward pass"
            cure = "Look for a hook or a custom backward that returns the negative gradient."
            where = tried.where
        elif stepped is not None and stepped > 0:
            what = "the optimizer adds the gradient instead of subtracting it"
            cure = "Subtract the gradient when you update the weights: p -= lr * grad."
            own = tried.facts.own_step.file is not None
            where = tried.line(tried.facts.own_step if own else tried.facts.step_place)
        else:
            what = "the gradients are negated between the backward pass and the step"
            cure = "Look for p.grad.neg_(), p.grad *= -1 or a negative factor before this step."
            where = tried.line(tried.facts.step_place)
        return self.find(
            record_at(onset),
            f"the update raises the loss on its own batch at every tested step size, in all "
            f"{count} trials (last: {say(tried.loss, 4)} before, {say(tried.after, 4)} after): "
            f"{what}",
            where=where,
            remedies=[cure],
            loss_before=tried.loss,
            loss_after=tried.after,
            slope=tried.slope,
            trials=count,
            optimizer=tried.facts.optimizer,
        )

    def _judge_objective(self, record: SetupRecord, facts: ObjectiveFacts) -> Iterable[Finding]:
        known = [part for part in facts.parts if part.known]
        weights = [part.weight or 0.0 for part in known]
        maximize = facts.maximize
        wrong = all(weight > 0 for weight in weights) if maximize else all(w < 0 for w in weights)
        if not (known and wrong and self._is_all(facts, known) and facts.of_models):
            self.negative = 0
            return
        if (facts.optimizers or 1) > 1:
            return
        self.negative += 1
        self.negative_onset = self.negative_onset or setup_moment(record)
        if self.negative < self.limits.objectives:
            return
        self.reported = True
        name = known[-1].name or "a loss"
        what = (
            f"{name} is maximised: the optimizer was created with maximize=True"
            if maximize
            else f"backward() is called on the negative of {name} (weight {say(weights[-1])}): "
            f"every step raises it"
        )
        yield self.find(
            record_at(self.negative_onset),
            what,
            where=facts.locate(rank=record.rank),
            remedies=[
                "Remove maximize=True: it is meant for rewards."
                if maximize
                else "Remove the minus: the optimizer already minimises the loss."
            ],
            loss=name,
            weight=weights[-1],
            maximize=maximize,
        )

    @staticmethod
    def _is_all(facts: ObjectiveFacts, known: list[ObjectivePart]) -> bool:
        """Whether nothing else is in the total."""
        root = facts.root
        if root is None:
            return False
        explained = sum((p.weight or 0.0) * (p.value or 0.0) for p in known)
        return abs(root - explained) <= WHOLE * max(abs(root), abs(explained))
