from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.check import Check, Needs
from holdfast.core.facts import Facts
from holdfast.core.findings import Finding, Where
from holdfast.core.moment import Moment, moment_of, record_at
from holdfast.core.numbers import say
from holdfast.core.records import Header, SetupRecord, StepRecord


class SaturatedActivation(Check):
    """The tanh or sigmoid outputs of a hidden layer are pinned at their limits.

    ## What it checks
    The outputs of tanh and sigmoid in hidden layers; output layers, and gates that multiply
    another value, are left out.

    ## Why it matters
    At the limits the slope is next to 0, so hardly any gradient passes: what lies before the layer
    stops learning.

    ## How it is measured
    The share of values within half a percent of the range from a limit (tanh beyond ±0.99,
    sigmoid below 0.005 or above 0.995). Fires when it is 80 % in three looks in a row.

    ## False alarms
    Trained layers saturate in part; half of the values at the limits is nothing unusual. The
    gates of recurrent layers are meant to close.

    ## What to do
    Scale the inputs to about unit size, start with smaller weights (Xavier), normalise before the
    activation, or lower the learning rate.

    ## References
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks".
    """

    code = "HD305"
    name = "saturated-activation"
    summary = "tanh/sigmoid outputs pinned at their limits"
    needs = Needs(signals=("act/saturated_share",), kinds=(StepRecord, SetupRecord))

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.8
        """Share of the values at the limits."""
        looks: int = 3
        """So many looks in a row."""

    def start(self) -> None:
        self.in_a_row: dict[int, int] = {}
        self.since: dict[int, Moment] = {}
        self.told: set[int] = set()
        self.places: dict[str, tuple[str | None, int | None, str | None]] = {}

    def begin(self, header: Header) -> None:
        self.in_a_row = {}  # steps that are taken again tell nothing new

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            facts = Facts.of(record)
            if record.topic == "activation" and (member := facts.text("member")):
                at = facts.where()
                self.places[member] = (at.file, at.line, at.function)
            return
        column = record.columns.get("act/saturated_share")
        if column is None:
            return
        for position, share in column.items():
            if not share >= self.limits.share:
                self.in_a_row.pop(position, None)
                self.told.discard(position)
                continue
            if position not in self.in_a_row:
                self.since[position] = moment_of(record)
            self.in_a_row[position] = self.in_a_row.get(position, 0) + 1
            if self.in_a_row[position] >= self.limits.looks and position not in self.told:
                self.told.add(position)
                yield self._finding(position, share)

    def _finding(self, position: int, share: float) -> Finding:
        member = self.context.name("act", position)
        file, line, function = self.places.get(member, (None, None, None))
        since = self.since[position]
        return self.find(
            record_at(since),
            f"{say(100 * share)} % of the outputs of {member} are pinned at their limits, in "
            f"{self.in_a_row[position]} looks since step {since[2]} (limit "
            f"{say(100 * self.limits.share)} %): hardly any gradient passes",
            subject=member,
            where=Where(file, line, function, member, rank=since[3] or None),
            remedies=[
                "Scale the inputs, or the initial weights before it, so that its inputs are of "
                "about unit size; or normalise before the activation.",
                "If it began during training: lower the learning rate.",
            ],
            share=share,
            limit=self.limits.share,
            looks=self.in_a_row[position],
        )
