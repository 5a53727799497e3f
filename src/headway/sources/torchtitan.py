"""torchtitan: `step:  1  loss: 12.2721  grad_norm:  1.2345  memory: 18.30GiB(19.27%)  …`.

Loss and norm are of the very step, reduced over all ranks.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, collect, recognised, signal
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "torchtitan"
SAYS = "torchtitan console log"
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(r"^(?:Training\s\|\s)?step:\s{1,4}(?P<step>[\d,]{1,15})\s\s(?=loss:)"),
    evaluation=re.compile(r"^validate step:\s{1,4}(?P<step>[\d,]{1,15})\s\s(?=loss:)"),
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    log = collect(_DIALECT, path)
    signal(log, r"^(?:loss|grad_norm)$", scope="global")
    return log
