from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import BAD_STEPS, NOTHING_MOVES
from headway.core.check import Check, Needs
from headway.core.facts import LISTED, say_list
from headway.core.findings import Finding, Severity
from headway.core.model_facts import (
    InitialSignalFacts,
    InitialWeight,
    InitialWeightsFacts,
    SpectralNormFacts,
)
from headway.core.numbers import say
from headway.core.records import SetupRecord


class PoorInitialisation(Check):
    """The initial weights prevent the model from learning: constant, identical, or badly scaled.

    ## What it checks
    The weights of linear layers and convolutions before the first update; whether sibling layers
    start with the same random numbers; how the standard deviation of the
    signal changes from layer to layer in the first forward pass; and whether weights under spectral
    norm have norm 1.

    ## Why it matters
    Units that start identical get identical gradients and stay identical: a wide layer is then
    worth one unit. Weights that are too large make the signal explode or saturate with depth,
    weights that are too small make it vanish. In both cases the first layers get no useful
    gradient.

    ## How it is measured
    A weight is constant if all its elements are equal, and its units are identical if all rows are
    equal. Weights whose names differ by a number alone are compared bitwise: copies are an error if
    their first gradients are equal, too (then they stay equal), and a warning otherwise. Two or
    more weights that start at 0 count if their gradients are exactly 0 in the first steps. For the
    scale, the gain of a layer is the standard deviation (over samples) of its output divided by
    that of its input. The signal explodes if the mean gain is above 3 and it grows to 100 times the
    input; it vanishes below a mean gain of 0.2 and 1/10000 of the input; and it saturates if tanh
    or sigmoid follow mean gains above 5. Spectral norm: the largest singular value is above 3.

    ## False alarms
    Zeros are a common start for the last layer of a model or of a residual branch, and for LoRA's
    B; they count only if most layers, including the first, are zero. Biases, norms and embeddings
    may be constant. Copies that were loaded from a state are not reported, and those that
    `nn.TransformerEncoder` makes are information. The last layer is not judged: its units get
    different gradients. Norm layers rescale the signal, and the scale of the inputs cancels out.

    ## What to do
    Keep torch's default initialisation, or use `kaiming_normal_` for ReLU and `xavier_uniform_` for
    tanh. Only biases should be constant. Run a model with spectral norm once in training mode
    before you evaluate it.

    ## References
    Glorot and Bengio (2010); He et al. (2015); stackoverflow.com/questions/48027263;
    pytorch/pytorch#51800; pytorch/pytorch#86274.
    """

    code = "HD316"
    name = "poor-initialisation"
    severity = Severity.ERROR
    summary = "constant weights, identical units, or a signal that explodes/vanishes with depth"
    needs = Needs(
        kinds=(SetupRecord,), topics=("initial-weights", "initial-signal", "spectral-norm")
    )
    explains = (
        *BAD_STEPS,
        *NOTHING_MOVES,
        "HD101",
        "HD113",
        "HD201",
        "HD203",
        "HD303",
        "HD304",
        "HD305",
        "HD311",
        "HD317",
        "HD318",
        "HD403",
        "HD509",
        "HD512",
    )

    @dataclass(frozen=True)
    class Limits:
        explode_gain: float = 3.0
        """Mean gain of the layers above which a signal can explode."""
        explode: float = 100.0
        """Multiple of the input's standard deviation at which the signal has exploded."""
        vanish_gain: float = 0.2
        """Mean gain of the layers below which a signal can vanish."""
        vanish: float = 1e-4
        """Share of the input's standard deviation below which the signal has vanished."""
        saturate_gain: float = 5.0
        """Mean gain above which tanh and sigmoid saturate."""
        spectral: float = 3.0
        """Largest singular value of a weight under spectral norm."""

    def start(self) -> None:
        self.reported: set[str] = set()

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic == InitialWeightsFacts.topic:
            yield from self._weights(record, InitialWeightsFacts.of(record))
            yield from self._copies(record, InitialWeightsFacts.of(record))
            yield from self._stuck(record, InitialWeightsFacts.of(record))
        elif record.topic == InitialSignalFacts.topic:
            yield from self._signal(record, InitialSignalFacts.of(record))
        else:
            yield from self._spectral(record, SpectralNormFacts.of(record))

    def _weights(self, record: SetupRecord, facts: InitialWeightsFacts) -> Iterable[Finding]:
        weights = [item for item in facts.weights if item.name]
        matrices = [
            item
            for item in weights
            if (item.units or 0) > 1 and (item.inputs or 0) > 1 and not item.grouped
        ]
        inner = [item for item in matrices if item.trainable and not item.last]
        alike = [item for item in inner if item.identical_units and not _is_zero(item)]
        if alike and "alike" not in self.reported:
            self.reported.add("alike")
            names = [item.name or "" for item in alike]
            value = alike[0].constant
            what = "identical units" if value is None else f"the same number ({say(value)})"
            yield self._finding(
                record,
                alike[0],
                f"{len(alike)} of {len(weights)} weight matrices start with {what} everywhere: "
                f"{say_list(names)}; their units get the same gradients and stay identical",
                names,
            )
        zeros = [item for item in weights if _is_zero(item)]
        starts_dead = bool(weights) and _is_zero(weights[0]) and len(zeros) * 2 > len(weights)
        if starts_dead and len(zeros) > 1 and "zeros" not in self.reported:
            self.reported.add("zeros")
            names = [item.name or "" for item in zeros]
            yield self._finding(
                record,
                zeros[0],
                f"{len(zeros)} of {len(weights)} weight matrices start at 0, including the "
                f"first: {say_list(names)}; no gradient passes through a weight of 0",
                names,
            )

    def _copies(self, record: SetupRecord, facts: InitialWeightsFacts) -> Iterable[Finding]:
        names = facts.copies
        if not names or "copies" in self.reported:
            return
        self.reported.add("copies")
        if facts.equal_gradients:
            severity, what = Severity.ERROR, "get the same gradients and stay identical"
        else:
            severity, what = Severity.WARNING, "start as copies of one layer"
        if facts.made_by_torch and not facts.equal_gradients:
            severity = Severity.INFO  # nn.TransformerEncoder copies its layer
        yield self.find(
            record,
            f"{len(names)} weights of sibling layers start with exactly the same random numbers: "
            f"{say_list(names)}; the layers {what}",
            subject="copies",
            severity=severity,
            where=facts.locate(rank=record.rank, module=names[0]),
            remedies=[
                "Construct each layer separately instead of copying one, or initialise the weights "
                "again after copying; do not set the seed in the loop that makes the layers."
            ],
            weights=names[:LISTED],
            count=len(names),
        )

    def _stuck(self, record: SetupRecord, facts: InitialWeightsFacts) -> Iterable[Finding]:
        names = facts.stuck
        if len(names) < 2 or self.reported & {"zeros", "stuck"}:
            return
        self.reported.add("stuck")
        yield self.find(
            record,
            f"{len(names)} weights start at 0 and their gradients are exactly 0 in every step: "
            f"{say_list(names)}; each needs another one to change first",
            subject=names[0],
            where=facts.locate(rank=record.rank, module=names[0]),
            remedies=[
                "Initialise all but the last layer of such a branch at random: one layer of zeros "
                "is enough for the branch to start at 0."
            ],
            weights=names[:LISTED],
            count=len(names),
        )

    def _finding(
        self, record: SetupRecord, first: InitialWeight, message: str, names: list[str]
    ) -> Finding:
        return self.find(
            record,
            message,
            subject=names[0],
            where=first.place.where(rank=record.rank, module=names[0]),
            remedies=[
                "Keep torch's default initialisation, or use kaiming_normal_ or xavier_uniform_ "
                "for the weights; only biases may be constant."
            ],
            weights=names[:LISTED],
            count=len(names),
        )

    def _signal(self, record: SetupRecord, facts: InitialSignalFacts) -> Iterable[Finding]:
        members = facts.members
        ins, outs = facts.inputs, facts.outputs
        if not 3 <= len(members) == len(ins) == len(outs) or "signal" in self.reported:
            return
        first = ins[0]
        gains = [
            math.log(after / before)
            for before, after in zip(ins[:-1], outs[:-1], strict=True)
            if before > 0 and after > 0
        ]
        if first <= 0 or len(gains) < 2:
            return
        limits: PoorInitialisation.Limits = self.limits
        gain = math.exp(sum(gains) / len(gains))
        reached = [*ins[1:]] if facts.tied else [*ins[1:], outs[-1]]
        highest, left = max(reached) / first, ins[-1] / first
        squashed = (facts.squashing or 0) >= len(members) - 1
        if gain >= limits.explode_gain and highest >= limits.explode:
            what = f"grows to {say(highest)} times the input's (limit {say(limits.explode)})"
            why = "weights are too large"
        elif gain <= limits.vanish_gain and left <= limits.vanish:
            what = f"shrinks to {say(left)} of the input's (limit {say(limits.vanish)})"
            why = "weights are too small"
        elif gain >= limits.saturate_gain and squashed and facts.norms == 0:
            what = "saturates tanh or sigmoid"
            why = "weights are too large"
        else:
            return
        self.reported.add("signal")
        yield self.find(
            record,
            f"in the first forward pass the signal {what} over {len(members)} layers, with a "
            f"mean gain of {say(gain)} per layer: the initial {why}",
            subject="signal",
            where=facts.locate(rank=record.rank, module=members[0]),
            remedies=[
                "Use an initialisation that preserves the scale: kaiming_normal_ for ReLU, "
                "xavier_uniform_ for tanh, or torch's default."
            ],
            gain=gain,
            largest=highest,
            left=left,
            layers=len(members),
        )

    def _spectral(self, record: SetupRecord, facts: SpectralNormFacts) -> Iterable[Finding]:
        norm, member = facts.norm, facts.member or "a layer"
        if norm is None or norm <= self.limits.spectral or "spectral" in self.reported:
            return
        self.reported.add("spectral")
        mode = "training" if facts.training else "evaluation"
        yield self.find(
            record,
            f"the weight of {member} under spectral norm has norm {say(norm)} instead of 1 in a "
            f"pass in {mode} mode (limit {say(self.limits.spectral)}): its estimate was never "
            f"updated",
            subject=member,
            where=facts.locate(rank=record.rank, module=member),
            remedies=[
                "Run the model once in training mode before the first pass in evaluation mode."
            ],
            norm=norm,
            limit=self.limits.spectral,
        )


def _is_zero(weight: InitialWeight) -> bool:
    return weight.constant == 0
