from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Where
from headway.core.model_facts import OutputLogitsFacts
from headway.core.numbers import say
from headway.core.records import SetupRecord, StepRecord
from headway.core.window import DownsampledSeries

BLOCKS = 4


class OutputLogitDrift(Check):
    """All output logits drift together: log Z moves away from its start and does not stop.

    ## What it checks
    The common level of the logits that a softmax normalises (their mean over the classes), and log
    Z (the logarithm of the sum of their exponentials), against the spread over the classes.

    ## Why it matters
    The loss does not depend on a constant that is added to all logits, so nothing corrects it.
    Logits of a few hundred lose their differences to rounding, first in half precision, and the run
    diverges without a visible cause.

    ## How it is measured
    The drift is the distance that level and log Z have moved in the same direction since the start.
    It is reported if it is at least 8 and twice the spread, and has grown in each quarter of the
    run, in the last one at no less than a third of the mean rate.

    ## False alarms
    A confident classifier has a large log Z and a large spread, and its level stays. A language
    model that learns which tokens are rare lowers the level, and log Z stays. A shift that stops is
    not a drift.

    ## What to do
    Add a small penalty on log Z (z-loss, 1e-4 times its square), remove the bias of the output
    layer, lower its learning rate or raise its weight decay.

    ## References
    Chowdhery et al., "PaLM" (z-loss); Wortsman et al., "Small-scale proxies for large-scale
    Transformer training instabilities".
    """

    code = "HD318"
    name = "output-logit-drift"
    summary = "log Z of the output layer drifts away from 0"
    needs = Needs(signals=("logit_level", "logit_spread", "log_z"), kinds=(StepRecord, SetupRecord))
    explains = ("HD103", "HD104", "HD202", "HD207", "HD208")

    @dataclass(frozen=True)
    class Limits:
        drift: float = 8.0
        """Distance that level and log Z must have moved together."""
        spreads: float = 2.0
        """The same distance, as a multiple of the spread over the classes."""
        looks: int = 16
        """Smallest number of measurements for a trend."""

    def start(self) -> None:
        self.first: list[tuple[float, float]] = []
        self.drifts = DownsampledSeries(128)
        self.reported = False
        self.place: tuple[str | None, int | None, str | None] = (None, None, None)

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            if record.topic == "output-logits":
                at = OutputLogitsFacts.of(record).place
                self.place = (at.file, at.line, at.function)
            return
        level, spread, log_z = (
            record.values.get(name, math.nan) for name in ("logit_level", "logit_spread", "log_z")
        )
        if not all(math.isfinite(value) for value in (level, spread, log_z)):
            return
        if len(self.first) < 3:
            self.first.append((level, log_z))
            return
        starts = [median(values) for values in zip(*self.first, strict=True)]
        moved = (level - starts[0], log_z - starts[1])
        together = min(map(abs, moved)) if moved[0] * moved[1] > 0 else 0.0
        drift = math.copysign(together, moved[0])
        self.drifts.push(record.step, drift)
        enough = together >= max(self.limits.drift, self.limits.spreads * spread)
        if enough and not self.reported and self._grows(drift):
            self.reported = True
            yield self._finding(record, drift, level, log_z, spread)

    def _grows(self, drift: float) -> bool:
        """Whether every quarter of the run added to it, the last one not much less."""
        values = [math.copysign(1.0, drift) * value for _, value in self.drifts.points]
        if len(values) < self.limits.looks:
            return False
        edges = [len(values) * part // BLOCKS for part in range(BLOCKS + 1)]
        levels = [median(values[start:end]) for start, end in pairwise(edges)]
        rises = [after - before for before, after in pairwise(levels)]
        mean = sum(rises) / len(rises)
        return min(rises) > 0 and rises[-1] >= mean / 3

    def _finding(
        self, record: StepRecord, drift: float, level: float, log_z: float, spread: float
    ) -> Finding:
        return self.find(
            record,
            f"all output logits have drifted by {say(drift)} since the start and continue to "
            f"drift (limit {say(max(self.limits.drift, self.limits.spreads * spread))}): their "
            f"mean is {say(level)}, log Z {say(log_z)}, while the spread over the classes is "
            f"only {say(spread)}",
            where=Where(*self.place, rank=record.rank or None),
            remedies=[
                "Add a penalty on log Z: loss + 1e-4 * logits.logsumexp(-1).pow(2).mean().",
                "Remove the bias of the output layer, or lower the learning rate.",
            ],
            drift=drift,
            level=level,
            log_z=log_z,
            spread=spread,
        )
