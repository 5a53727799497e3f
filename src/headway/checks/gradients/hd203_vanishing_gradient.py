from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from headway.core.check import Check, Needs
from headway.core.facts import Parameters, trained_weights
from headway.core.findings import Finding, Where
from headway.core.numbers import say
from headway.core.records import Column, SetupRecord, StepRecord


class VanishingGradient(Check):
    """The gradient shrinks by orders of magnitude towards the first layers.

    ## What it checks
    The size of the gradients of the first layers' weights against that of the last layers' weights.

    ## Why it matters
    Early layers that receive a thousandth of the signal stay at their random initial values, and
    the last layers are trained on top of noise. With SGD the early layers do not change; Adam turns
    rounding noise into steps.

    ## How it is measured
    The gradient norm per element (norm ÷ √elements) of every trained weight, without biases and
    norm layers, in the order of the model, divided into four parts with their medians. The gradient
    has vanished if the first part is below 0.0003 of the last and the decay is gradual: every part
    is at least a factor of 3 below the next. Five measured steps in a row are needed. It is
    reported once, until it recovers tenfold.

    ## False alarms
    A zero-initialised head or residual branch, LoRA's A matrices, an idle expert or a frozen layer
    reduce the signal in one place or have none at all; only a decay from part to part counts.
    Gradients of exactly 0 are ignored, and convergence shrinks all parts alike. With several
    optimizers the order of the parameters is not the order of one network, so nothing is judged.

    ## What to do
    Replace saturating activations (sigmoid, tanh) in deep stacks by ReLU or GELU, add residual
    connections or normalisation, and use the initialisation that fits the activation. A higher
    learning rate does not help: the last layers diverge before the first ones learn.

    ## References
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks"; AutoTrainer compares the first layer with the last in the same way.
    """

    code = "HD203"
    name = "vanishing-gradient"
    summary = "early layers' signal is orders of magnitude below the last layers'"
    needs = Needs(signals=("param/grad_norm",), kinds=(StepRecord, SetupRecord))
    explains = ("HD509",)

    @dataclass(frozen=True)
    class Limits:
        ratio: float = 3e-4
        """First part ÷ last part below which the gradient has vanished."""
        decay: float = 3.0
        """Factor by which each part must be below the next."""
        samples: int = 5
        """Consecutive measured steps that are needed."""
        layers: int = 6
        """Smallest number of weights that is judged."""

    def start(self) -> None:
        self.elements: dict[int, int] = {}
        self.in_a_row = 0
        self.reported = False

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            parameters = Parameters.of(record)
            if parameters is not None:
                self.elements, self.in_a_row = trained_weights(parameters), 0
            return
        column = record.columns.get("param/grad_norm")
        if column is None or record.held or "optimizers" in record.values:
            return
        levels = self._levels(column)
        if len(levels) < self.limits.layers:
            return
        parts = self._parts(levels)
        ratio = 10 ** min(parts[0] - parts[-1], 0.0)
        gradual = all(b - a >= math.log10(self.limits.decay) for a, b in pairwise(parts))
        self.in_a_row = self.in_a_row + 1 if ratio < self.limits.ratio and gradual else 0
        if ratio > 10 * self.limits.ratio:
            self.reported = False
        if self.in_a_row >= self.limits.samples and not self.reported:
            self.reported = True
            yield self._finding(record, ratio, parts, next(iter(levels)))

    def _levels(self, column: Column) -> dict[int, float]:
        """Position → log10 of the gradient per element, for weights with a gradient."""
        elements = self.elements
        return {
            position: math.log10(norm) - math.log10(elements[position]) / 2
            for position, norm in sorted(column.items())
            if elements.get(position) and 0.0 < norm < math.inf
        }

    @staticmethod
    def _parts(levels: dict[int, float]) -> list[float]:
        values = list(levels.values())
        edges = [round(part * len(values) / 4) for part in range(5)]
        return [median_low(values[start:end]) for start, end in pairwise(edges)]

    def _finding(self, record: StepRecord, ratio: float, parts: list[float], first: int) -> Finding:
        name = self.context.name("param", first)
        return self.find(
            record,
            f"the gradient of the first layers' weights is {say(ratio)} of the last layers' "
            f"(limit {say(self.limits.ratio)}) with a gradual decay, in {self.in_a_row} measured "
            f"steps: the layers from {name} on hardly learn",
            where=Where(module=name, rank=record.rank or None),
            remedies=[
                "Replace sigmoid or tanh in the deep stack by ReLU or GELU, or add residual "
                "connections or normalisation.",
                "Use the initialisation that fits the activation, so that the signal keeps its "
                "size.",
            ],
            ratio=ratio,
            limit=self.limits.ratio,
            gradient_per_element_by_quarter=[10**part for part in parts],
            samples=self.in_a_row,
        )
