from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.facts import LISTED, Parameters, say_list, trained_weights
from headway.core.findings import Finding, Where
from headway.core.records import (
    Column,
    Header,
    Moment,
    SetupRecord,
    StepRecord,
    moment_of,
    record_at,
)


class ZeroGradient(Check):
    """The gradient of a trained weight is exactly zero in every step.

    ## What it checks
    Weights that are part of the graph and so have a gradient, every element of which is 0 in every
    step, while the gradients of other weights are not.

    ## Why it matters
    Something multiplies the gradient by 0: a loss weight of 0, `round`, `argmax` or `sign` without
    a straight-through estimator, a softmax over one element, dead units. Reading the last step of a
    bidirectional RNN's output leaves its reverse direction with a single step. The weight stays at
    its random initial value, and no error is raised.

    ## How it is measured
    A norm of exactly 0 in all of the first 10 measured steps; 5 at the end of a short run. Biases
    and gains of norm layers are not judged.

    ## False alarms
    LoRA's A and layers before a zero-initialised gate have a gradient of 0 in the first step or
    two, not later. An idle expert whose siblings (the same name with another number) get gradients,
    and a rare row of an embedding, are normal. While all gradients are 0 (a batch without loss)
    nothing is counted.

    ## What to do
    Follow the weight to the loss and look for an op whose derivative is 0 or a factor of 0.

    ## References
    Humbatova et al., "Taxonomy of real faults in deep learning systems".
    """

    code = "HD205"
    name = "zero-gradient"
    summary = "the gradient of a trainable tensor is exactly zero in every step"
    needs = Needs(signals=("param/grad_norm",), kinds=(StepRecord, SetupRecord))
    explains = ("HD306", "HD307")

    @dataclass(frozen=True)
    class Limits:
        samples: int = 10
        """Measured steps in which the gradient must be 0."""
        short_samples: int = 5
        """The same, at the end of a short run."""

    def start(self) -> None:
        self.weights: set[int] = set()
        self.sizes_known = False
        self._restart()

    def _restart(self) -> None:
        self.zeros: dict[int, int] = {}
        self.alive: set[int] = set()
        self.last: Moment = (0, 0, 0, 0)
        self.reported: set[str] = set()

    def begin(self, header: Header) -> None:
        self._restart()

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            parameters = Parameters.of(record)
            if parameters is not None:
                weights = set(trained_weights(parameters))
                self.sizes_known = bool(parameters.numel)
                if weights != self.weights:
                    self.weights = weights
                    self._restart()
            return
        column = record.columns.get("param/grad_norm")
        if column is None or record.held or record.values.get("scaler_skipped"):
            return
        self._add_sample(record, column)
        dead = [at for at, count in self.zeros.items() if count >= self.limits.samples]
        yield from self._judge(dead)

    def finish(self) -> Iterable[Finding]:
        dead = [at for at, count in self.zeros.items() if count >= self.limits.short_samples]
        yield from self._judge(dead)

    def _add_sample(self, record: StepRecord, column: Column) -> None:
        norms = dict(column.items())
        if not any(norm > 0 and math.isfinite(norm) for norm in norms.values()):
            return
        self.last = moment_of(record)
        for at, norm in norms.items():
            if norm == 0 and at not in self.alive and self._is_weight(at):
                self.zeros[at] = self.zeros.get(at, 0) + 1
            elif norm != 0:
                self.alive.add(at)
                self.zeros.pop(at, None)

    def _is_weight(self, at: int) -> bool:
        return at in self.weights if self.sizes_known else not self.weights or at in self.weights

    def _judge(self, dead: list[int]) -> Iterable[Finding]:
        names = {at: self.context.name("param", at) for at in dead}
        kin = {_kind(self.context.name("param", at)) for at in self.alive}
        # One of several siblings may be idle, but not all of them.
        odd = [at for at in dead if names[at] not in self.reported and not _idles(names[at], kin)]
        if odd:
            self.reported.update(names[at] for at in odd)
            yield self._finding([names[at] for at in odd], min(self.zeros[at] for at in odd))

    def _finding(self, names: list[str], samples: int) -> Finding:
        reverse = all(re.search(r"weight_hh_l\d+_reverse$", name) for name in names)
        place = self.context.places.get("last_step" if reverse else "zero_gradient")
        file, line = (
            (place.get("file"), place.get("line")) if isinstance(place, Mapping) else (None,) * 2
        )
        return self.find(
            record_at(self.last),
            f"the gradient of {say_list(names)} is exactly 0 in all {samples} measured steps, "
            f"while that of other trained weights is not",
            where=Where(file, line, module=names[0], rank=self.last[3] or None),
            remedies=[_REVERSE]
            if reverse
            else [
                f"Follow {names[0]} to the loss and look for a factor of 0, round(), argmax() or "
                f"sign(), a softmax over a single element, or units that are always off."
            ],
            tensors=names[:LISTED],
            tensor_count=len(names),
            samples=samples,
        )


_REVERSE = (
    "The last step of a bidirectional layer's output has seen only one step of the reverse "
    "direction. Read its final state (`h_n[-1]`), or step 0 of the reverse half of the output."
)


def _kind(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _idles(name: str, kin: set[str]) -> bool:
    """Whether it is one of several siblings (experts, branches) of which others get gradients."""
    branches = re.search(r"expert|branch|adapter|task|domain|head", name.lower()) is not None
    return branches and any(char.isdigit() for char in name) and _kind(name) in kin
