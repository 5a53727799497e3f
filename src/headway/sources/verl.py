"""verl: `step:10 - actor/pg_loss:np.float64(0.1) - actor/grad_norm:0.2 - …`, one line for a step.

Metrics of the actor and the critic are means over the step's mini-batches.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, collect, recognised, signal
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "verl"
SAYS = "verl console log"
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(r"(?:^|\s)step:(?P<step>\d{1,15}) - (?=[\w/@.-]{1,200}:)"),
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    log = collect(_DIALECT, path)
    signal(log, r"loss|grad_norm|kl|entropy", fold="mean", span=1, scope="global")
    return log
